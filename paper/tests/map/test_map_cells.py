"""The map: which cells there are, and that each is what its name says."""

from collections import Counter

import pytest
import torch

from nonloc.nn.stage import stages
from nonloc_paper.map.cells import (
    HEAT,
    INITS,
    ONE_EPOCH,
    PARTS,
    RECOMPUTED,
    SCALED,
    SHARED,
    TEN_EPOCHS,
    MapCell,
    find_part,
)
from nonloc_paper.networks.build import build


def stage_of(cell):
    torch.manual_seed(0)
    recipe = cell.recipe(ONE_EPOCH.base, 0)
    return next(stage for _, stage in stages(build(recipe.network, 10, **recipe.stage.to_dict())))


def test_one_epoch_has_every_rate_initialisation_and_number_of_blocks():
    cells = ONE_EPOCH.cells
    assert len(cells) == len(set(cells)) == 270
    assert Counter(cell.rate for cell in cells) == {0.1: 90, 0.03: 90, 0.01: 90}
    assert set(Counter(cell.init for cell in cells).values()) == {30}
    forms = Counter((cell.form, cell.blocks) for cell in cells)
    assert set(forms) == {("original", n) for n in range(1, 5)} | {("diffusive", n) for n in range(1, 7)}
    assert len(ONE_EPOCH.runs()) == 540


def test_ten_epochs_are_at_the_rate_of_the_paper_and_have_the_stable_stages():
    assert {cell.rate for cell in TEN_EPOCHS.cells} == {0.1}
    assert {cell.init for cell in TEN_EPOCHS.cells} == {"normal 0.05", "normal 0.07", "torch"}
    assert {cell.blocks for cell in TEN_EPOCHS.cells if cell.form == "stable"} == {4, 12}
    assert len(TEN_EPOCHS.runs()) == 27 * 3


@pytest.mark.parametrize(
    ("part", "forms", "change"),
    [
        (SCALED, {"original", "diffusive", "stable"}, {"scaled": True}),
        (HEAT, {"stable"}, {"affinity": "heat"}),
        (SHARED, {"original"}, {"share_affinity": True}),
        (RECOMPUTED, {"diffusive"}, {"share_affinity": False}),
    ],
    ids=["scaled", "heat", "shared", "recomputed"],
)
def test_changes_are_tried_on_cells_of_the_ten_epochs(part, forms, change):
    assert set(part.cells) < set(TEN_EPOCHS.cells)
    assert {cell.form for cell in part.cells} == forms
    for cell in part.cells:
        same = cell.recipe(TEN_EPOCHS.base, 0).with_(stage=change)
        assert cell.recipe(part.base, 0) == same


def test_an_interruption_cuts_off_seeds():
    seeds = [seed for _, seed in ONE_EPOCH.runs()]
    assert seeds == [0] * 270 + [1] * 270


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_cell_is_a_recipe_at_a_constant_rate_and_no_two_are_the_same(part):
    recipes = [cell.recipe(part.base, seed) for cell, seed in part.runs()]
    assert len({recipe.sha256 for recipe in recipes}) == len(recipes)
    assert len({cell.name for cell in part.cells}) == len(part.cells)
    for (cell, seed), recipe in zip(part.runs(), recipes, strict=True):
        assert (recipe.schedule, recipe.learning_rate, recipe.seed) == ("constant", cell.rate, seed)
        assert recipe.epochs == (1 if part is ONE_EPOCH else 10)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("form", ["original", "diffusive"])
def test_every_initialisation_can_be_built(init, form):
    stage = stage_of(MapCell(0.1, init, form, 1))
    assert stage.form == form
    x = torch.randn(2, 64, 4, 4)
    is_identity = torch.equal(stage(x), x)
    assert is_identity == (init in ("zero", "zero, batch norm"))


def test_deviations_are_those_of_the_maps():
    for std in (0.01, 0.1):
        weight = stage_of(MapCell(0.1, f"normal {std}", "original", 1)).maps[0].w_z.weight
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.1)


def test_stable_is_diffusive_with_a_bounded_weight():
    stage = stage_of(MapCell(0.1, "torch", "stable", 12))
    assert (stage.form, stage.num_blocks) == ("diffusive", 12)
    for weight in stage.weights():
        values = torch.linalg.eigvalsh(weight.detach().double())
        assert float(values.min()) > -1e-6
        assert float(values.max()) < 1


def test_parts_are_found_by_either_spelling():
    assert find_part("ten-epochs") is find_part("ten_epochs") is TEN_EPOCHS
