"""Form or affinity: which runs make a pair, what is counted, and what the figure shows."""

import pytest
from made_kept import map_line, map_lines

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.map_corners import (
    EACH,
    ONE,
    by_affinity,
    by_form,
    compare,
    corners_figure,
    corners_sentence,
    corners_table,
)
from nonloc_paper.report.trainability import TrainabilityMap, cells


def never(cell, seed):
    return False


def made(original_each=never, original_one=never, diffusive_each=never, diffusive_one=never):
    """The whole plan: which (cell, seed) diverge."""

    def base(cell, seed):
        breaks = {"original": original_each, "diffusive": diffusive_one}.get(cell.form, never)
        return breaks(cell, seed)

    return TrainabilityMap(
        (),
        cells(map_lines("ten_epochs", base)),
        {
            "ten_epochs_shared": cells(map_lines("ten_epochs_shared", original_one)),
            "ten_epochs_recomputed": cells(map_lines("ten_epochs_recomputed", diffusive_each)),
        },
    )


def counts(one):
    return one.n, one.first_gone, one.second_gone, one.only_first, one.only_second


def test_pairs_are_of_one_seed():
    found = made(original_each=lambda cell, seed: seed == 0, original_one=lambda cell, seed: seed == 1)
    original, diffusive = by_affinity(found)
    assert counts(original) == (27, 9, 9, 9, 9)
    assert counts(diffusive) == (27, 0, 0, 0, 0)


def test_pairs_are_of_one_place():
    found = made(
        original_each=lambda cell, seed: cell.blocks == 2, original_one=lambda cell, seed: cell.blocks < 4
    )
    assert counts(by_affinity(found)[0]) == (27, 9, 18, 0, 9)


def test_a_seed_that_only_one_has_is_left_out():
    here = PARTS["ten_epochs_shared"].cells[0]
    base = [map_line(here, 0), map_line(here, 1, diverged=40)]
    shared = [map_line(here, 1), map_line(here, 2, diverged=50)]
    found = TrainabilityMap((), cells(base), {"ten_epochs_shared": cells(shared)})
    assert counts(compare(found, ("original", EACH), ("original", ONE))) == (1, 1, 0, 1, 0)


def test_forms_are_compared_where_both_have_cells():
    each, one = by_form(made(diffusive_each=lambda cell, seed: seed == 2))
    assert (each.first, each.second, each.blocks) == (("original", EACH), ("diffusive", EACH), [2, 4])
    assert counts(each) == (18, 0, 6, 0, 6)
    assert (one.first[1], counts(one)) == (ONE, (18, 0, 0, 0, 0))


def test_told():
    found = made(original_each=lambda cell, seed: cell.blocks == 4, diffusive_each=lambda cell, seed: True)
    assert corners_sentence(found) == (
        "original stages, 2, 3 and 4 blocks: 9 of 27 with an affinity for each block, 0 of 27 with one affinity for "
        "all blocks (p = 0.0039); diffusive stages, 2, 4 and 6 blocks: 27 of 27 with an affinity for each block, 0 of "
        "27 with one affinity for all blocks (p < 0.001)"
    )
    (_, affinities), (_, forms) = corners_table(found).groups
    assert affinities[0] == ("original, 2, 3 and 4 blocks", "9 of 27", "0 of 27", "9", "0", "0.0039")
    assert forms[0] == (
        "an affinity for each block, 2 and 4 blocks",
        "9 of 18",
        "18 of 18",
        "0",
        "9",
        "0.0039",
    )


def test_the_figure_has_a_square_for_every_cell():
    found = made(
        original_each=lambda cell, seed: cell.blocks == 4 and seed < 2, diffusive_one=lambda cell, seed: True
    )
    axes = corners_figure(found).axes
    assert [one.get_title(loc="left") for one in axes] == [
        "original, an affinity for each block (the original stage)",
        "original, one affinity for all blocks",
        "diffusive, an affinity for each block",
        "diffusive, one affinity for all blocks (the paper's stage)",
    ]
    told = [[text.get_text().split("\n")[0] for text in one.texts] for one in axes]
    assert [len(texts) for texts in told] == [9, 9, 9, 9]
    assert [sum(text.startswith("✕") for text in texts) for texts in told] == [3, 0, 0, 9]
    assert set(told[3]) == {"✕ 3 of 3"}


@pytest.mark.parametrize("show", [corners_figure, corners_sentence, by_affinity, by_form])
def test_nothing_without_a_pair(show):
    assert not show(TrainabilityMap((), cells(map_lines("ten_epochs", never))))
