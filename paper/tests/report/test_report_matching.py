"""On the backbones that match: every rule of the protocol on records whose answer is known."""

import pytest
from made_records import arranged, map_of, never, records

from nonloc_paper.report.contrasts import Contrast, difference
from nonloc_paper.report.matching import (
    hypothesis_parts,
    hypothesis_sentence,
    hypothesis_word,
    matching_sections,
    primary,
)
from nonloc_paper.report.summary import errors_table, forest_figure, forest_lines, form_by_affinity_table
from nonloc_paper.report.table1_runs import setting
from nonloc_paper.suites import SUITES
from nonloc_paper.suites.matching_tables import MATCHING

N2, N3 = "preresnet20", "preresnet29"


def table1(own_less_one, lost=()):
    """Runs of proposed blocks with these differences, a list by seed; `lost` has (blocks, seed) that diverged."""
    own = {
        f"{n}-block (proposed), own affinities": [
            None if (n, seed) in lost else 8.0 + value for seed, value in enumerate(own_less_one)
        ]
        for n in (2, 3, 4, 5, 6)
    }
    one = {f"{n}-block (proposed)": [8.0] * len(own_less_one) for n in (2, 3, 4, 5, 6)}
    return records("table1-n3", own | one)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([], "undecided"),
        ([-0.5, -0.4, -0.5], "undecided"),
        ([-0.5, -0.4, -0.5, -0.4], "held"),
        ([-0.5, 0.4, -0.5, 0.4], "undecided"),
        ([-0.05, 0.05, -0.05, 0.05], "refuted"),
        ([0.5, 0.4, 0.5, 0.4], "refuted"),
        ([-0.15, -0.15, -0.15, 0.05], "undecided"),
    ],
)
def test_the_hypothesis_is_held_below_0_and_refuted_above_a_tenth(values, word):
    assert hypothesis_word(primary(arranged(table1([9.0, *values])))) == word


def test_seeds_1_to_4_decide_and_seed_0_is_shown():
    runs = arranged(table1([5.0, -0.5, -0.4, -0.5, -0.4, 9.0]))
    assert primary(runs).values == {1: -0.5, 2: -0.4, 3: -0.5, 4: -0.4}
    assert "**held, n = 4**" in hypothesis_sentence(runs)
    _, second, third, seen = hypothesis_parts(runs)
    # Errors of 7.5 and 7.6, s = 0.058: 7.62 and 7.55 are within 3.182 · 0.058 · √(1/4 + π/10) = 0.138 of 7.55.
    # With one affinity all have 8.0, so no other number is predicted.
    where = "Published errors that lie where our runs predict them: "
    assert second == f"{where}2 of 5 with own affinities and 0 of 5 with one."
    assert third == "Proposed runs from larger starts that diverge: not yet known."
    assert seen == "Seed 0, seen before the rules were written: +5.00. It decides nothing."
    only = arranged(table1([-0.5]))
    assert "**undecided, n = 0**" in hypothesis_sentence(only)
    assert sum(part.endswith("not yet known.") for part in hypothesis_parts(only)) == 3


def test_a_seed_with_a_diverged_run_has_no_average_and_is_counted():
    runs = arranged(table1([0.0, -0.5, -0.4, -0.5, -0.4], lost={(3, 2), (4, 0)}))
    assert list(primary(runs).values) == [1, 3, 4]
    assert hypothesis_parts(runs)[0].endswith("n = 3; 1 of 4 seeds lost by divergence.")
    assert "**held, n = 3**" in hypothesis_sentence(runs), "all four seeds have ended"


def sections(*lists):
    """Every table of the page by the title of its suite."""
    found = {section.title: section.contents for section in matching_sections(arranged(*lists))}
    return {suite.name: found.get(suite.title) for suite in MATCHING}


def test_published_numbers_are_held_against_the_prediction_of_their_row():
    """Errors of 7.6 to 7.8, t(3) = 3.182, s = 0.1155: ± 3.182 · 0.1155 · √(1/4 + π/10) = 0.276."""
    errors = [1.0, 7.6, 7.8, 7.6, 7.8]
    rows = (
        "5-block (proposed)",
        "5-block (proposed), own affinities",
        "2-block (original)",
        "1-block (original)",
    )
    _, _, table = sections(records("table1-n3", dict.fromkeys(rows, errors)))["table1-n3"]
    assert tuple(table.lines) == (
        ("5-block (proposed), own affinities", "7.70 [7.52, 7.88], n = 4", "7.29, outside 7.42 to 7.98"),
        ("5-block (proposed)", "7.70 [7.52, 7.88], n = 4", "7.29, outside 7.42 to 7.98"),
        ("2-block (original)", "7.70 [7.52, 7.88], n = 4", "7.83, inside 7.42 to 7.98"),
    ), "the paper has no error of one block"


def test_corners_tell_embeddings_from_states():
    """Own embeddings gain 0.4 points, the current state 0.1, with noise in both."""
    noise = (0.0, 0.02, -0.02)
    one_state, own_input = (row.label for row in SUITES["corners-n3"].rows)
    corners = {one_state: [7.9 + x for x in noise], own_input: [7.6 - x for x in noise]}
    table = {"5-block (proposed)": [8.0] * 3, "5-block (proposed), own affinities": [7.5] * 3}
    _, errors, effects, _ = sections(records("corners-n3", corners), records("table1-n3", table))[
        "corners-n3"
    ]
    assert errors.lines[1] == ("own embeddings", "7.60, 7.58, 7.62", "7.50, 7.50, 7.50")
    assert [line[0::3] for line in effects.lines] == [
        ("own minus one embedding", "gains"),
        ("current state minus input", "gains"),
    ]
    assert [line[1].split(" ")[0] for line in effects.lines] == ["−0.40", "−0.10"]
    corners[one_state] = [7.9, 8.9, 6.9]
    _, _, effects, _ = sections(records("corners-n3", corners), records("table1-n3", table))["corners-n3"]
    assert [line[3] for line in effects.lines] == ["undecided"] * 2


@pytest.mark.parametrize(
    ("four", "word"),
    [
        ([13.0, 13.1, 12.9], "breaks"),
        ([10.5, 10.6, None], "breaks"),
        ([10.5, 10.6, 10.4], "does not break"),
        ([11.5, 12.6, 11.4], "not shown"),
    ],
)
def test_four_blocks_break_at_the_low_rate_if_they_diverge_or_are_a_point_worse(four, word):
    baseline, two, four_label, _ = (row.label for row in SUITES["rate-n3"].rows)
    runs = records("rate-n3", {baseline: [11.0, 11.1, 10.9], two: [20.0] * 3, four_label: four})
    _, table, _ = sections(runs)["rate-n3"]
    assert [line[3] for line in table.lines] == ["–", word]


def test_larger_starts_are_counted_by_form_and_affinity():
    labels = [row.label for row in SUITES["starts-n3"].rows]
    runs = records("starts-n3", {label: [None, 50.0, None if "own" in label else 60.0] for label in labels})
    third = (
        "Proposed runs from larger starts that diverge: 12 of 18 with own affinities and 6 of 18 with one."
    )
    assert third in hypothesis_parts(arranged(runs))
    table, _ = sections(runs)["starts-n3"]
    assert tuple(table.lines[:4]) == (
        ("deviation 0.07",),
        ("original", "1 of 3", "1 of 3", "1 of 3", "–", "3 of 9"),
        ("proposed, own affinities", "2 of 3", "–", "2 of 3", "2 of 3", "6 of 9"),
        ("proposed, one affinity", "1 of 3", "–", "1 of 3", "1 of 3", "3 of 9"),
    )


def test_every_suite_has_its_section_once_a_run_is_recorded():
    lists = [records(suite.name, {row.label: [8.0, 8.1] for row in suite.rows}) for suite in MATCHING]
    found = sections(*lists)
    assert None not in found.values()
    assert sections(lists[0]) == {**dict.fromkeys(found), "table1-n3": sections(lists[0])["table1-n3"]}
    _, pairs, predicted = found["table2-n9"]
    assert [line[0] for line in pairs.lines] == [
        f"{one} minus {other}" for one, other in SUITES["table2-n9"].pairs
    ]
    assert len(predicted.lines) == 10
    for name in ("scaled-n3", "places-n3"):
        assert len(found[name][1].lines) == 1


def test_rows_that_the_paper_does_not_tell_apart_have_no_published_difference():
    runs = arranged(table1([0.0, 0.1]), records("table1-n3", {"baseline": [8.0, 8.1]}))
    own, one = (runs.find(form="diffusive", blocks=5, backbone=N3, shared=shared) for shared in (False, True))
    baseline = runs.find(form=None, backbone=N3)
    assert difference(own, one).published is None
    assert primary(runs).published is None
    assert difference(own, baseline).published == pytest.approx(7.29 - 8.19)
    assert Contrast("", ((1.0, own), (-1.0, None))).published is None


def test_the_table_of_errors_has_n_and_spread():
    runs = arranged(
        table1([0.0, -0.2, -0.4]),
        records("table1-n3", {"baseline": [8.1, 8.3], "4-block (original)": [7.5, None]}),
    )
    lines = {line[0]: line[1:] for line in errors_table(runs, N3).lines}
    assert lines["baseline"] == ("8.20 (8.10 to 8.30, n = 2)", "8.19", "–", "–", "–", "–")
    assert lines["4"][:2] == ("7.50 (n = 1); 1 of 2 diverged", "15.02")
    assert lines["4"][2:5] == ("7.80 (7.60 to 8.00, n = 3)", "8.00 (8.00 to 8.00, n = 3)", "7.37")
    assert lines["4"][5].startswith("−0.30 [")
    assert lines["4"][5].endswith("n = 2"), "without seed 0"
    assert not errors_table(runs, N2)


def test_table_2_has_its_own_published_errors():
    made = {"3-block (proposed), own affinities": [25.5, 25.7], "3-block (proposed)": [26.0, 26.2]}
    cifar100 = setting(SUITES["table2-n9"].rows[0].recipe)
    (line,) = errors_table(arranged(records("table2-n9", made)), cifar100.backbone, cifar100.other).lines
    own, one = "25.60 (25.50 to 25.70, n = 2)", "26.10 (26.00 to 26.20, n = 2)"
    assert line == ("3", "–", "–", own, one, "25.57", "−0.50 [−0.50, −0.50], n = 2")


def test_form_by_affinity_has_divergence_and_error():
    trained = map_of(ten_epochs=lambda cell, seed: cell.form == "original", ten_epochs_shared=never)
    table = {f"{n}-block (original)": [8.0, 9.0] for n in (2, 3, 4)}
    lines = form_by_affinity_table(arranged(records("table1", table)), trained).lines
    assert [line[0] for line in lines if len(line) == 1] == [
        "diverged, 2 bottlenecks a group",
        "error, 2 bottlenecks a group",
    ]
    assert lines[1] == ("original, 2, 3 and 4 blocks", "27 of 27", "0 of 27", "p < 0.001")
    assert lines[-1] == ("original, 2 to 4 blocks", "8.50 [2.15, 14.85], n = 2", "–", "–")


def test_the_forest_has_every_seed_the_interval_and_the_published_difference():
    runs = arranged(
        table1([-0.9, -0.2, -0.4]),
        records("table1-n3", {"baseline": [8.0] * 3, "4-block (original)": [7.9] * 3}),
    )
    labels = [label for label, *_ in forest_lines(runs, N3)]
    assert labels.count("own minus one affinity") == 1
    first, second = forest_figure(runs).axes
    assert not second.texts
    titles = [label for label, _, contrast in forest_lines(runs, N3) if contrast is None]
    shown = [*titles[:2], "◇ +6.83 ▸", *titles[2:5], "◂ −7.65 ◇", titles[5], "◂ −7.65 ◇"]
    assert [text.get_text() for text in first.texts] == shown
    assert all(first.get_ylim()[0] < mark.get_ydata()[0] < first.get_ylim()[1] for mark in first.lines[1:])

    def marks(marker, axes=first, face=None):
        found = [line for line in axes.lines if line.get_marker() == marker]
        return [line.get_xdata()[0] for line in found if face in (None, line.get_markerfacecolor())]

    five = -labels.index("5")
    means = {
        (line.get_ydata()[0], round(line.get_xdata()[0], 6))
        for line in first.lines
        if line.get_marker() == "s"
    }
    assert (five, -0.3) in means, "of seeds 1 and 2"
    assert [round(value, 6) for value in marks("o", face="none")].count(-0.9) == 11, "seed 0 is hollow"
    assert len(marks("D")) == 10
    assert forest_figure(arranged(records("table1", {"2-block (original)": [8.0]}))) is None
