"""The map: each cell is what its name says. Which cells there are, the records say: their pages would change."""

import pytest
import torch

from nonloc.nn.stage import stages
from nonloc_paper.map.cells import INITS, ONE_EPOCH, TEN_EPOCHS, MapCell, find_part
from nonloc_paper.networks.build import build


def stage_of(cell):
    torch.manual_seed(0)
    recipe = cell.recipe(ONE_EPOCH.base, 0)
    return next(stage for _, stage in stages(build(recipe.network, 10, **recipe.stage.to_dict())))


def test_an_interruption_cuts_off_seeds():
    seeds = [seed for _, seed in ONE_EPOCH.runs()]
    assert seeds == [0] * 270 + [1] * 270


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
