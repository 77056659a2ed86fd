"""How far logits spread: which moment of a run counts, and that the figure shows every run."""

import pytest
from made_kept import map_line, map_lines

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.map_logits import Spread, logits_figure, logits_sentences, spreads
from nonloc_paper.report.trainability import TrainabilityMap, cells

CELL = next(cell for cell in PARTS["ten_epochs"].cells if cell.form == "stable")


def moment(step, *values):
    return {"step": step, "loss": 1.0, "stages": [{"logit_spread": value} for value in values]}


def only(line):
    (found,) = spreads(cells([line]))
    return found


def test_a_run_that_ended_counts_with_the_widest_stage_at_its_end():
    line = map_line(CELL, 0) | {"after": moment(390, 7.0, 9.0, None)}
    assert only(line) == Spread("stable", 9.0, diverged=False)


def test_a_run_that_diverged_counts_fifty_steps_before():
    before = [moment(step, 1.0 * step) for step in range(300, 401, 10)]
    assert only(map_line(CELL, 0, diverged=400) | {"before": before}) == Spread(
        "stable", 350.0, diverged=True
    )


@pytest.mark.parametrize(
    "before", [[], [moment(395, 1e9)], [moment(300, None)]], ids=["none", "late", "infinite"]
)
def test_a_run_that_was_not_seen_then_is_left_out(before):
    assert spreads(cells([map_line(CELL, 0, diverged=400) | {"before": before}])) == []


def test_sentences_count_the_calm_ones():
    lines = [
        map_line(CELL, 0) | {"after": moment(390, 32_499.0)},
        map_line(CELL, 1) | {"after": moment(390, 9.331)},
        map_line(CELL, 2, diverged=400) | {"before": [moment(350, 138.2)]},
    ]
    found = TrainabilityMap((), cells(lines), {"ten_epochs_scaled": cells([map_line(CELL, 0)])})
    gone, ended, scaled = logits_sentences(found)
    assert gone == (
        "As they are: 1 runs, 50 steps before they diverged: 138 (median; 138 to 138), below 100 in 0 of them."
    )
    assert ended.endswith("2 runs, at their end: 16,300 (median; 9.33 to 32,500), below 100 in 1 of them.")
    assert scaled.startswith("Logits divided by √d: 1 runs, at their end: 7 ")
    assert logits_sentences(TrainabilityMap((), ())) == []


def test_runs_that_nobody_watched_are_counted():
    lines = [
        map_line(CELL, 0, diverged=400) | {"before": [moment(350, 138.2)]},
        map_line(CELL, 1, diverged=24) | {"before": [moment(20, 2000.0)]},
    ]
    (gone,) = logits_sentences(TrainabilityMap((), cells(lines)))
    assert gone.startswith("As they are: 1 of 2 runs, 50 steps before they diverged: 138 ")


def test_the_figure_has_a_column_for_each_form_and_kernel_and_a_mark_for_each_run():
    parts = {name: cells(map_lines(name, lambda cell, seed: False)) for name in PARTS}
    (axes,) = logits_figure(TrainabilityMap(parts.pop("one_epoch"), parts.pop("ten_epochs"), parts)).axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    forms = ["original", "diffusive", "stable"]
    others = ["stable\nheat", "original\none ω", "diffusive\nω each", "diffusive\nω each, 1/√d"]
    assert names == [*forms, *(f"{form}\n1/√d" for form in forms), *others]
    assert len(axes.lines) == 81 + 54 + 18 + 27 + 27 + 9
    assert logits_figure(TrainabilityMap((), ())) is None
