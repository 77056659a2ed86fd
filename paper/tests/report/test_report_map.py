"""The trainability map: cells, tables, and figures that show what the table holds."""

import math

import pytest
from made_records import deep_originals, map_line, map_lines, map_of, never, write_map

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.map.cells import group_cells, read_map
from nonloc_paper.report.map.figures import before_divergence, corners_figure, heat_map, logits_figure
from nonloc_paper.report.map.tables import (
    by_affinity,
    by_form,
    cells_table,
    compare,
    form_by_affinity_table,
    late_counts_table,
    logits_table,
    runs_table,
    safe_starts,
    safe_starts_table,
    spread_of,
)
from nonloc_paper.report.reproduction import write_reproduction
from nonloc_paper.report.verdicts import count_pairs


@pytest.fixture(scope="module")
def found():
    return map_of(one_epoch=deep_originals, ten_epochs=deep_originals)


def lines_of(table):
    return {line[0]: line[1:] for line in table.lines}


def test_cells_hold_all_seeds(found):
    assert len(found.one_epoch) == 270
    cell = found.cell(0.1, "normal 0.1", "original", 2)
    assert (cell.n, len(cell.diverged), len(cell.trained), cell.first_step) == (2, 1, 1, 102)
    assert (cell.loss, cell.all_train) == (1.2, False)
    assert found.rates == [0.1, 0.03, 0.01]


def test_a_run_no_better_than_guessing_does_not_train():
    cell = PARTS["one_epoch"].cells[0]
    (one,) = group_cells([map_line(cell, 0, loss=math.log(10)), map_line(cell, 1, loss=2.0)])
    assert (len(one.trained), one.all_train, one.diverged) == (1, False, [])


def test_runs_of_other_recipes_are_in_no_cell_and_told(tmp_path):
    cell = PARTS["one_epoch"].cells[0]
    foreign = map_line(cell, 1) | {"recipe_sha256": "0" * 64}
    write_map(tmp_path, "one_epoch", [map_line(cell, 0), foreign])
    found = read_map(tmp_path / "map")
    assert [line["seed"] for one in found.one_epoch for line in one.runs] == [0]
    assert runs_table(found).lines[0][1:] == ("1 of 540", "0", "1 by other recipes, left out")


def test_runs_that_were_only_computed_otherwise_are_in_their_cells(tmp_path):
    part, cell = PARTS["one_epoch"], PARTS["one_epoch"].cells[0]
    base = part.base.with_(precision="float32", channels_last=False)
    hashed = {"recipe_sha256": cell.recipe(base, 0).sha256}
    write_map(tmp_path, "one_epoch", [map_line(cell, 0) | hashed])
    found = read_map(tmp_path / "map")
    assert ([one.n for one in found.one_epoch], found.foreign["one_epoch"]) == ([1], 0)


def test_a_map_of_other_recipes_alone_says_so(tmp_path):
    write_map(tmp_path, "one_epoch", [map_line(PARTS["one_epoch"].cells[0], 0) | {"recipe_sha256": "0" * 64}])
    write_reproduction(tmp_path, tmp_path / "pages")
    text = (tmp_path / "pages" / "map.md").read_text()
    assert "No cell of the map is recorded yet. Left out: 1 by other recipes (`--set`)." in text


def test_the_answers(found):
    safe = ["normal 0.01", "normal 0.03", "normal 0.05", "fan_in", "zero", "zero, batch norm"]
    assert safe_starts(found)[0.1] == pytest.approx(dict.fromkeys(safe, 1.2))
    assert lines_of(safe_starts_table(found))["0.1"] == ("; ".join(safe), "1.200 (fan_in)")
    counts = {line[:2]: line[2] for line in late_counts_table(found).lines}
    assert counts["original, 2, 3 and 4 blocks", "nothing"] == "12 of 27"
    assert counts["stable, 4 and 12 blocks", "nothing"] == "0 of 18"


@pytest.mark.parametrize(
    ("breaks", "seeds"), [(True, (0, 1)), (False, (0,))], ids=["diverged", "a seed missing"]
)
def test_a_start_is_safe_only_where_all_seeds_train(breaks, seeds):
    lines = [line for line in map_lines("one_epoch", lambda cell, seed: breaks) if line["seed"] in seeds]
    found = map_of(one_epoch=lines)
    assert safe_starts(found) == {}
    assert lines_of(safe_starts_table(found))["0.1"] == ("none is known", "–")


def test_tables(found):
    cells = {line[:6]: line[6:] for line in cells_table(found).lines}
    early, late = ("1", "nothing", "0.1"), ("10", "nothing", "0.1")
    assert cells[*early, "original", "3", "torch"] == ("2", "0", "2", "103 103", "2.5", "–", "–", "50")
    assert cells[*late, "original", "3", "torch"] == ("3", "0", "3", "103 103 103", "2.5", "–", "–", "50")
    assert cells[*late, "stable", "12", "torch"] == ("3", "3", "0", "–", "–", "1.200", "40.00", "7")


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
    (cell,) = group_cells([line])
    assert cell.logit_spread == 12_000.0


@pytest.mark.parametrize("loss", [2.3, 7.5])
def test_a_cell_no_better_than_guessing_is_marked(loss):
    cell = PARTS["one_epoch"].cells[0]
    found = map_of(one_epoch=[map_line(cell, seed, loss=loss) for seed in (0, 1)])
    assert [text.get_text() for text in heat_map(found, 0.1).axes[0].texts] == [f"{loss:.2f}\n○ 2/2"]


def test_a_cell_in_which_one_seed_does_not_learn_or_is_missing_is_marked():
    one, other = PARTS["one_epoch"].cells[:2]
    lines = [map_line(one, 0, loss=1.2), map_line(one, 1, loss=2.3), map_line(other, 0, loss=1.5)]
    shown = [text.get_text() for text in heat_map(map_of(one_epoch=lines), 0.1).axes[0].texts]
    assert shown == ["1.75\n○ 1/2", "1.50\nn = 1"]


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
    lines_of_part = map_lines("one_epoch", deep_originals)[:100]
    write_map(tmp_path, "one_epoch", lines_of_part)
    found = read_map(tmp_path / "map")
    assert sum(cell.n for cell in found.one_epoch) == 100
    lines = [line[1:] for line in runs_table(found).lines]
    assert lines[:2] == [("100 of 540", "10", "–"), ("0 of 81", "0", "–")]
    extra = [*lines_of_part, map_line(PARTS["one_epoch"].cells[0], 7)]
    assert runs_table(map_of(one_epoch=extra)).lines[0][3] == "1 beyond the plan"


CELL = next(cell for cell in PARTS["ten_epochs"].cells if cell.form == "stable")


def moment(step, *values):
    return {"step": step, "loss": 1.0, "stages": [{"logit_spread": value} for value in values]}


def test_a_run_that_ended_counts_with_the_widest_stage_at_its_end():
    line = map_line(CELL, 0) | {"after": moment(390, 7.0, 9.0, None)}
    assert spread_of(line) == 9.0


def test_a_run_that_diverged_counts_fifty_steps_before():
    before = [moment(step, 1.0 * step) for step in range(300, 401, 10)]
    assert spread_of(map_line(CELL, 0, diverged=400) | {"before": before}) == 350.0


@pytest.mark.parametrize(
    "before", [[], [moment(395, 1e9)], [moment(300, None)]], ids=["none", "late", "infinite"]
)
def test_a_run_that_was_not_seen_then_is_left_out(before):
    assert spread_of(map_line(CELL, 0, diverged=400) | {"before": before}) is None


def test_spreads_are_counted_by_ending_and_by_what_was_changed():
    lines = [
        map_line(CELL, 0) | {"after": moment(390, 32_499.0)},
        map_line(CELL, 1) | {"after": moment(390, 9.331)},
        map_line(CELL, 2, diverged=400) | {"before": [moment(350, 138.2)]},
        map_line(CELL, 3, diverged=24) | {"before": [moment(20, 2000.0)]},
    ]
    found = map_of(ten_epochs=lines, ten_epochs_scaled=[map_line(CELL, 0)])
    assert tuple(logits_table(found).lines) == (
        ("nothing", "50 steps before they diverged", "1 of 2", "138", "138 to 138", "0 of 1"),
        ("nothing", "at their end", "2 of 2", "16,300", "9.33 to 32,500", "1 of 2"),
        ("logits divided by √d", "at their end", "1 of 1", "7", "7 to 7", "1 of 1"),
    )
    assert not logits_table(map_of())


def test_the_figure_has_a_column_for_each_form_and_kernel_and_a_mark_for_each_run():
    (axes,) = logits_figure(map_of(**dict.fromkeys(PARTS, never))).axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    forms = ["original", "diffusive", "stable"]
    others = ["stable\nheat", "original\none ω", "diffusive\nown ω", "diffusive\nown ω, 1/√d"]
    assert names == [*forms, *(f"{form}\n1/√d" for form in forms), *others]
    assert len(axes.lines) == 81 + 54 + 18 + 27 + 27 + 9
    assert logits_figure(map_of()) is None


def corners(original_each=never, original_one=never, diffusive_each=never, diffusive_one=never):
    """The whole plan: which (cell, seed) diverge."""

    def base(cell, seed):
        breaks = {"original": original_each, "diffusive": diffusive_one}.get(cell.form, never)
        return breaks(cell, seed)

    return map_of(ten_epochs=base, ten_epochs_shared=original_one, ten_epochs_recomputed=diffusive_each)


def test_pairs_are_of_one_seed():
    found = corners(original_each=lambda cell, seed: seed == 0, original_one=lambda cell, seed: seed == 1)
    original, diffusive = by_affinity(found)
    assert count_pairs(original.ends) == (27, 9, 9, 9, 9)
    assert count_pairs(diffusive.ends) == (27, 0, 0, 0, 0)


def test_pairs_are_of_one_place():
    found = corners(
        original_each=lambda cell, seed: cell.blocks == 2, original_one=lambda cell, seed: cell.blocks < 4
    )
    assert count_pairs(by_affinity(found)[0].ends) == (27, 9, 18, 0, 9)


def test_a_seed_that_only_one_has_is_left_out():
    here = PARTS["ten_epochs_shared"].cells[0]
    base = [map_line(here, 0), map_line(here, 1, diverged=40)]
    shared = [map_line(here, 1), map_line(here, 2, diverged=50)]
    found = map_of(ten_epochs=base, ten_epochs_shared=shared)
    assert count_pairs(compare(found, ("original", False), ("original", True)).ends) == (1, 1, 0, 1, 0)


def test_the_table_of_form_by_affinity():
    """Forms are compared where both have cells."""
    found = corners(original_each=lambda cell, seed: cell.blocks == 4, diffusive_each=lambda cell, seed: True)
    lines = form_by_affinity_table(found).lines
    assert lines[1] == ("original, 2, 3 and 4 blocks", "9 of 27", "0 of 27", "9", "0", "p = 0.0039")
    assert lines[4] == ("own affinities, 2 and 4 blocks", "9 of 18", "18 of 18", "0", "9", "p = 0.0039")
    assert lines[5] == ("one affinity, 2 and 4 blocks", "0 of 18", "0 of 18", "0", "0", "p = 1")


def test_the_figure_has_a_square_for_every_cell():
    found = corners(
        original_each=lambda cell, seed: cell.blocks == 4 and seed < 2, diffusive_one=lambda cell, seed: True
    )
    axes = corners_figure(found).axes
    assert [one.get_title(loc="left") for one in axes] == [
        "original, own affinities (the original stage)",
        "original, one affinity",
        "diffusive, own affinities",
        "diffusive, one affinity (the paper's stage)",
    ]
    labels = [[text.get_text().split("\n")[0] for text in one.texts] for one in axes]
    assert [len(texts) for texts in labels] == [9, 9, 9, 9]
    assert [sum(text.startswith("✕") for text in texts) for texts in labels] == [3, 0, 0, 9]
    assert set(labels[3]) == {"✕ 3 of 3"}


@pytest.mark.parametrize("show", [corners_figure, by_affinity, by_form])
def test_nothing_without_a_pair(show):
    assert not show(map_of(ten_epochs=never))
