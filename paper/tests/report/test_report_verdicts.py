"""settle: every verdict from the parts that lead to it."""

import pytest

from nonloc_paper.report.verdicts import Part, settle


def part(holds, n=3, varies=""):
    return Part("p", holds, n, "numbers", varies)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([True, True], "reproduced"),
        ([False, False], "not reproduced"),
        ([True, False], "depends on the number of blocks"),
        ([True, False, None], "depends on the number of blocks"),
        ([True, None], "undecided at n = 3"),
        ([None], "undecided at n = 3"),
        ([], "undecided at n = 0"),
    ],
)
def test_parts_at_the_default_protocol(answers, expected):
    assert settle([part(holds) for holds in answers]).text == expected


def test_the_opposite_from_another_start_is_a_dependence():
    other_starts = {"start 0.07": [part(True, 2)]}
    verdict = settle([part(False)], other_starts)
    assert verdict.text == "depends on the initialisation"
    assert [condition for condition, _ in verdict.parts] == ["default protocol", "start 0.07"]


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (False, [part(False, 2)], "not reproduced"),
        (False, [part(None, 2)], "not reproduced"),
        (False, [], "not reproduced"),
        (True, [part(True, 2), part(False, 2)], "reproduced"),
        (None, [part(True, 5)], "undecided at n = 3"),
    ],
)
def test_what_is_not_the_opposite_from_another_start_changes_nothing(here, there, expected):
    assert settle([part(here)], {"start 0.07": there}).text == expected


def test_what_was_not_measured_from_another_start_is_passed_over():
    verdict = settle([part(True), part(True)], {"start 0.07": [part(None, 0), part(False, 2)]})
    assert verdict.text == "depends on the initialisation"
    assert len(verdict.parts) == 3


def test_runs_that_disagree_make_it_depend_on_the_seed():
    assert settle([part(None, 3, "the seed")]).text == "depends on the seed"


def test_what_is_left_open_is_told_apart():
    failed = Part("4 blocks", False, 3, "numbers")
    moot = Part("p", None, 2, "numbers", moot="there is nothing to mitigate")
    assert settle([part(None, 0)]).left_open == "Not measured yet: p"
    assert settle([moot]).left_open == "There is nothing to mitigate"
    assert settle([failed, part(None)]).left_open == (
        "A part fails, so it cannot come out as reproduced any more"
    )


@pytest.mark.parametrize("answer", [True, False])
def test_what_is_decided_leaves_nothing_open(answer):
    assert settle([part(answer)]).left_open == ""


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([None], "More measurements would tell"),
        ([2], "Planned runs are missing for p0"),
        ([0], "All planned runs are recorded, and leave it open"),
        ([0, 0], "All planned runs are recorded, and leave it open"),
        ([1, 0], "Planned runs are missing for p0"),
    ],
)
def test_why_it_is_open_tells_whether_runs_are_missing(left, expected):
    parts = [Part(f"p{number}", None, 3, "numbers", left=one) for number, one in enumerate(left)]
    assert settle(parts).left_open == expected


@pytest.mark.parametrize("n", [0, 1])
def test_what_cannot_be_decided_waits_for_nothing(n):
    """All runs may have diverged: then there is no pair, and it was measured nevertheless."""
    moot = "all runs of p diverged"
    assert settle([Part("p", None, n, "numbers", moot=moot, left=0)]).left_open == "All runs of p diverged"
    failed = settle([Part("p", False, 5, "numbers", moot=moot), part(None)]).left_open
    assert "All runs of p diverged" not in failed
