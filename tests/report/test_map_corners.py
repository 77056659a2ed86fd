"""Form or affinity: which runs make a pair, what is counted, and what the figure shows."""

import pytest
from made_kept import map_line, map_lines

from nonloc.paper.map_cells import PARTS
from nonloc.report.map_corners import corners_figure, corners_sentence, corners_table, pairings
from nonloc.report.trainability import TrainabilityMap, cells


def made(each, one):
    """Original stages of the plan: which (cell, seed) diverge with an affinity for each block, and with one."""
    return TrainabilityMap(
        (),
        cells(map_lines("ten_epochs", lambda cell, seed: cell.form == "original" and each(cell, seed))),
        {"ten_epochs_shared": cells(map_lines("ten_epochs_shared", one))},
    )


def test_pairs_have_the_same_place_and_seed():
    found = made(lambda cell, seed: seed == 0, lambda cell, seed: seed == 0 and cell.blocks == 2)
    (pair,) = pairings(found)
    assert (pair.form, pair.n, pair.each_diverged, pair.one_diverged) == ("original", 27, 9, 3)
    assert (pair.each_alone, pair.one_alone) == (6, 0)
    assert pair.p == 2 / 2**6


def test_cells_and_seeds_of_one_part_alone_are_left_out():
    cell = PARTS["ten_epochs_recomputed"].cells[0]
    lines = [map_line(cell, seed, diverged=40) for seed in (0, 1)]
    found = TrainabilityMap(
        (),
        cells(map_lines("ten_epochs", lambda cell, seed: False)),
        {"ten_epochs_recomputed": cells(lines)},
    )
    (pair,) = pairings(found)
    assert (pair.form, pair.n, pair.each_diverged, pair.one_diverged) == ("diffusive", 2, 2, 0)
    assert pair.blocks == [cell.blocks]


def test_told():
    found = made(lambda cell, seed: cell.blocks == 4, lambda cell, seed: False)
    assert corners_sentence(found) == (
        "original: 9 of 27 with an affinity for each block, 0 of 27 with one affinity for all blocks (p = 0.0039)"
    )
    ((_, (line,)),) = corners_table(found).groups
    assert line == ("original, 2, 3, 4 blocks", "9 of 27", "0 of 27", "9", "0", "0.0039")


def test_the_figure_has_a_square_for_every_cell():
    found = made(lambda cell, seed: cell.blocks == 4 and seed < 2, lambda cell, seed: False)
    each, one = corners_figure(found).axes
    assert each.get_title(loc="left") == "original, an affinity for each block (the original stage)"
    assert one.get_title(loc="left") == "original, one affinity for all blocks"
    assert [len(axes.patches) for axes in (each, one)] == [9, 9]
    told = [text.get_text() for text in each.texts]
    assert sum(text.startswith("✕ 2 of 3") for text in told) == 3
    assert not any("✕" in text.get_text() for text in one.texts)


@pytest.mark.parametrize("show", [corners_figure, corners_sentence, pairings])
def test_nothing_without_a_pair(show):
    assert not show(TrainabilityMap((), cells(map_lines("ten_epochs", lambda cell, seed: False))))
