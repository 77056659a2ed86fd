"""What files hold: strict JSON, and the first field that does not fit is named."""

import re
from contextlib import nullcontext

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.file_schemas import PERCENT, RESULT
from nonloc_paper.schema import COUNT, HASH, NUMBER, TEXT, Maybe, Text, check, check_lines, parse


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b'{"a": 1, "a": 1}', "a name is there twice"),
        (b'{"a": NaN}', "a number that is not finite"),
        (b'{"a": [-Infinity]}', "a number that is not finite"),
        (b'{"a": 1e999}', "a number that is not finite"),
        (b'{"a": 18446744073709551616}', "a number of more than 64 bits"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "limit"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"\\udfff": 1}', "surrogates not allowed"),
        (b'{"a": "\xe4"}', "'utf-8' codec can't decode"),
        ('{"a": 1}'.encode("utf-16"), "'utf-8' codec can't decode"),
        (b"[" * 34 + b"]" * 34, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"", "Expecting value"),
    ],
)
def test_what_is_no_strict_json_is_refused(content, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse(content)


def test_strict_json_is_read():
    assert parse(b'{"a": [1, -2.5, true, null, "\\ud83d\\ude00 \xc3\xa4"]}') == {
        "a": [1, -2.5, True, None, "😀 ä"]
    }
    assert parse(b"[" * 32 + b"]" * 32) is not None


SCHEMA = {
    "outcome": {"step": COUNT, "more?": Maybe(NUMBER)},
    "stages": [{"name": TEXT}],
    "pair?": (COUNT, COUNT),
}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"outcome": {"step": 3, "more": None}, "stages": []}, None),
        ({"outcome": {"step": 3}, "stages": [{"name": ""}], "pair": [1, 2]}, None),
        ({}, "lacks outcome"),
        ([], "has a value a list, not an object"),
        ({"outcome": None, "stages": []}, "has outcome None, not an object"),
        ({"outcome": {}, "stages": []}, "lacks outcome.step"),
        ({"outcome": {"step": None}, "stages": []}, "has outcome.step None, not a whole number ≥ 0"),
        ({"outcome": {"step": 3, "mode": 1}, "stages": []}, "has an unknown field 'outcome.mode'"),
        ({"outcome": {"step": 3, "more?": 1}, "stages": []}, "has an unknown field 'outcome.more?'"),
        ({"outcome": {"step": 3}, "stages": {}}, "has stages an object, not a list"),
        (
            {"outcome": {"step": 3}, "stages": [{"name": "a"}, {"name": 1}]},
            "has stages[1].name 1, not printed text",
        ),
        ({"outcome": {"step": 3}, "stages": [None]}, "has stages[0] None, not an object"),
        ({"outcome": {"step": 3}, "stages": [], "pair": [1]}, "has pair with 1 items, not 2"),
        ({"outcome": {"step": 3}, "stages": [], "pair": [1, -1]}, "has pair[1] -1, not a whole number ≥ 0"),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(value, wrong):
    message = re.escape(f"a.json {wrong}; restore it")
    with pytest.raises(CorruptDataError, match=f"^{message}$") if wrong else nullcontext():
        check(value, SCHEMA, "a.json", "restore it")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (PERCENT, [0, 100, 8.19], ["8.9", [1], float("inf"), float("nan"), -5, True, 1000, None]),
        (COUNT, [0, 7], [1.0, -1, False, 10**400]),
        (NUMBER, [-1e300, 3], [10**400, float("-inf"), "3", True]),
        (HASH, ["0" * 64], ["0" * 63, "0" * 64 + "\n", "F" * 64, 0]),
        (TEXT, ["", "√ 1\n"], ["\0", "\x1b[31m", 3, None]),
        (Text(("a", "b")), ["a"], ["c", ["a"], None]),
        (Maybe(PERCENT), [None, 5], [False, -1]),
    ],
)
def test_each_kind_of_value_has_a_type_and_a_range(schema, good, bad):
    for value in good:
        check(value, schema, "a.json")
    for value in bad:
        with pytest.raises(CorruptDataError):
            check(value, schema, "a.json")


def test_a_long_value_is_not_echoed_whole_and_a_line_is_named(tmp_path):
    with pytest.raises(CorruptDataError, match=r"a\.jsonl, line 2, has epoch .{40}, not a whole") as found:
        check_lines([{"epoch": 1}, {"epoch": "x" * 10_000}], {"epoch": COUNT}, tmp_path / "a.jsonl")
    assert len(str(found.value)) < 300


def test_what_a_later_record_adds_to_a_result_is_known():
    assert {"recipe_sha256?", "records?", "earlier?"} <= RESULT.keys()
