"""The trainability map: cells, answers, tables, and figures that show what the table holds."""

import math

import pytest
from made_kept import deep_originals, map_line, map_lines, write_map

from nonloc.outcomes import CorruptDataError
from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.map_answers import answers, cells_table, largest_deviation, late_table, limits_table
from nonloc_paper.report.map_figures import before_divergence, heat_map
from nonloc_paper.report.trainability import TrainabilityMap, cells, inits, read_map, recorded


@pytest.fixture(scope="module")
def found():
    return TrainabilityMap(*(cells(map_lines(part, deep_originals)) for part in ("one_epoch", "ten_epochs")))


def lines_of(table):
    return {line[0]: line[1:] for _, lines in table.groups for line in lines}


def test_cells_hold_all_seeds(found):
    assert len(found.one_epoch) == 270
    cell = found.cell(0.1, "normal 0.1", "original", 2)
    assert (cell.n, len(cell.diverged), len(cell.trained), cell.first_step) == (2, 1, 1, 102)
    assert (cell.loss, cell.all_train) == (1.2, False)
    assert found.rates == [0.1, 0.03, 0.01]


def test_stable_stages_are_a_form_of_their_own_and_come_last(found):
    assert list(dict.fromkeys(cell.form for cell in found.ten_epochs)) == ["original", "diffusive", "stable"]


def test_a_run_no_better_than_guessing_does_not_train():
    cell = PARTS["one_epoch"].cells[0]
    (one,) = cells([map_line(cell, 0, loss=math.log(10)), map_line(cell, 1, loss=2.0)])
    assert (len(one.trained), one.all_train, one.diverged) == (1, False, [])


def test_runs_of_other_recipes_are_in_no_cell_and_told(tmp_path):
    cell = PARTS["one_epoch"].cells[0]
    foreign = map_line(cell, 1) | {"recipe_sha256": "0" * 64}
    write_map(tmp_path, "one_epoch", [map_line(cell, 0), foreign])
    found = read_map(tmp_path / "map")
    assert [line["seed"] for one in found.one_epoch for line in one.runs] == [0]
    assert "one_epoch.jsonl: left out, 1 by other recipes than those of this part." in recorded(found)


def test_starts_are_in_the_order_of_their_deviations():
    assert inits(["torch", "normal 0.1", "normal 0.03", "fan_in", "torch"]) == [
        "normal 0.03",
        "normal 0.1",
        "fan_in",
        "torch",
    ]


def test_the_largest_deviation_ends_at_the_first_that_fails(found):
    limits = [largest_deviation(found, 0.1, "original", blocks) for blocks in (1, 2, 3, 4)]
    assert limits == [0.1, 0.07, 0.05, 0.05]
    assert largest_deviation(found, 0.1, "diffusive", 6) == 0.1
    assert largest_deviation(found, 0.1, "diffusive", 7) is None


def test_a_larger_deviation_that_trains_by_luck_does_not_count():
    def breaks(cell, seed):
        return cell.init == "normal 0.03"

    lucky = TrainabilityMap(cells(map_lines("one_epoch", breaks)), ())
    assert largest_deviation(lucky, 0.1, "original", 1) == 0.01


def test_the_answer_in_words(found):
    told = answers(found)
    assert told[0] == (
        "At rate 0.1 every number of blocks of both forms trains for one epoch, with all seeds, with: normal 0.01; "
        "normal 0.03; normal 0.05; fan_in; zero; zero, batch norm."
    )
    assert any(
        "by the number of original blocks, is 1: 0.1, 2: 0.07, 3: 0.05, 4: 0.05." in text for text in told
    )
    assert "Within ten epochs 12 of 27 runs with original stages diverged." in told
    assert "Within ten epochs 0 of 18 runs with stable stages diverged." in told
    assert answers(TrainabilityMap((), ())) == []


def test_where_nothing_trains_no_start_is_named():
    nothing = TrainabilityMap(cells(map_lines("one_epoch", lambda cell, seed: True)), ())
    assert answers(nothing)[0] == (
        "At rate 0.1 no start is known with which every number of blocks of both forms trains for one epoch, with all "
        "seeds."
    )
    assert not any("lowest loss" in text for text in answers(nothing))


def test_tables(found):
    assert lines_of(cells_table(found, 0.1))["original 3, torch"] == (
        "0 of 2",
        "2 of 2",
        "103",
        "–",
        "–",
        "50",
    )
    assert lines_of(late_table(found.ten_epochs))["original 3, torch"] == (
        "0 of 3",
        "3 of 3",
        "103, 103, 103",
        "2.5",
        "–",
        "–",
        "50",
    )
    assert lines_of(late_table(found.ten_epochs))["stable 12, torch"] == (
        "3 of 3",
        "0 of 3",
        "–",
        "–",
        "1.200",
        "40.00",
        "7",
    )
    title, lines = limits_table(found).groups[0]
    assert title == "rate 0.1"
    assert lines[3] == ("original 4", "0.05", "fan_in; zero; zero, batch norm", "torch")


def test_the_heat_map_is_readable_without_colours(found):
    figure = heat_map(found, 0.1)
    original, diffusive, *_ = figure.axes
    texts = [text.get_text() for text in original.texts]
    assert len(texts) == 36
    assert len(diffusive.texts) == 54
    assert texts.count("✕ 103") == texts.count("✕ 104") == 3
    assert texts.count("1.20\n✕ 1/2") == 1
    assert sum(bool(patch.get_hatch()) for patch in original.patches) == 1
    assert [label.get_text() for label in original.get_yticklabels()][:2] == ["normal 0.01", "normal 0.03"]


def test_logits_are_those_of_the_last_look_that_found_a_number():
    line = map_line(PARTS["ten_epochs"].cells[0], 0, diverged=400)
    line["before"] = [
        {"step": step, "loss": 1.0, "stages": [{"logit_spread": spread}]}
        for step, spread in ((380, 900.0), (390, 12_000.0), (400, None))
    ]
    (cell,) = cells([line])
    assert cell.logit_spread == 12_000.0


@pytest.mark.parametrize("loss", [2.3, 7.5])
def test_a_cell_no_better_than_guessing_is_marked(loss):
    cell = PARTS["one_epoch"].cells[0]
    found = TrainabilityMap(cells([map_line(cell, 0, loss=loss), map_line(cell, 1, loss=loss)]), ())
    assert [text.get_text() for text in heat_map(found, 0.1).axes[0].texts] == [f"{loss:.2f}\n○ 2/2"]


def test_a_cell_in_which_one_seed_does_not_learn_or_is_missing_is_marked():
    one, other = PARTS["one_epoch"].cells[:2]
    lines = [map_line(one, 0, loss=1.2), map_line(one, 1, loss=2.3), map_line(other, 0, loss=1.5)]
    shown = [text.get_text() for text in heat_map(TrainabilityMap(cells(lines), ()), 0.1).axes[0].texts]
    assert shown == ["1.75\n○ 1/2", "1.50\nn = 1"]


def test_what_is_not_recorded_whole_is_not_said_to_train_with_all_seeds(found):
    lines = [line for line in map_lines("one_epoch", lambda cell, seed: False) if line["seed"] == 0]
    told = answers(TrainabilityMap(cells(lines), ()))
    assert told[0] == (
        "At rate 0.1 no start is known with which every number of blocks of both forms trains for one epoch, with all "
        "seeds."
    )
    assert "1: none" in told[3]


def test_steps_before_the_end_are_counted_back(found):
    figure = before_divergence(found.ten_epochs)
    loss, spread, growth, amplification, eigenvalue, legend = figure.axes
    assert loss.lines[0].get_xdata().tolist() == [-30, -20]
    assert spread.lines[0].get_ydata().tolist() == [50.0, 50.0]
    assert growth.lines[0].get_ydata().tolist() == [2.5, 2.5]
    assert amplification.lines[0].get_ydata().tolist() == [3.0, 3.0]
    assert eigenvalue.lines[0].get_ydata().tolist() == [-1.5, -1.5]
    assert len(loss.lines) == 6, "of 12, all original"
    assert len(legend.get_legend().get_texts()) == 6
    assert before_divergence(found.one_epoch[:3]) is None


def test_reading_says_what_is_there(tmp_path):
    nothing = read_map(tmp_path)
    assert (nothing.one_epoch, nothing.ten_epochs, nothing.late) == ((), (), [])
    lines = map_lines("one_epoch", deep_originals)[:100]
    write_map(tmp_path, "one_epoch", lines)
    found = read_map(tmp_path / "map")
    assert sum(cell.n for cell in found.one_epoch) == 100
    assert recorded(found) == [
        f"{PARTS['one_epoch'].title}: 100 of 540 runs recorded, 10 minutes of run time.",
        f"{PARTS['ten_epochs'].title}: 0 of 81 runs recorded, 0 minutes of run time.",
        f"{PARTS['ten_epochs_scaled'].title}: 0 of 54 runs recorded, 0 minutes of run time.",
        f"{PARTS['ten_epochs_heat'].title}: 0 of 18 runs recorded, 0 minutes of run time.",
        f"{PARTS['ten_epochs_shared'].title}: 0 of 27 runs recorded, 0 minutes of run time.",
        f"{PARTS['ten_epochs_recomputed'].title}: 0 of 27 runs recorded, 0 minutes of run time.",
        f"{PARTS['ten_epochs_recomputed_scaled'].title}: 0 of 9 runs recorded, 0 minutes of run time.",
    ]


def test_a_broken_line_is_named(tmp_path):
    write_map(tmp_path, "one_epoch", [{"cell": "x"}])
    with pytest.raises(CorruptDataError, match=r"one_epoch\.jsonl, line 1"):
        read_map(tmp_path / "map")
