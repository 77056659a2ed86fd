"""Properties of the modules and of the spectra of their weights."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nonloc.nn import DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.nn.insert import insert
from nonloc.nn.options import NORMALIZATIONS
from nonloc.ops import aggregate, propagate
from nonloc.spectrum import weight_spectrum
from problems import generator, relative

# The normalisations of each kernel for features of any sign, with one embedding and with two.
SHARED = {
    **dict.fromkeys(("gaussian", "embedded_gaussian", "heat", "delta"), NORMALIZATIONS),
    "dot": ("count", "none"),
    "concat": ("row", "count", "none"),
}
SEPARATE = {
    "embedded_gaussian": ("row", "count", "none"),
    "dot": ("count", "none"),
    "concat": ("row", "count"),
}
SEEDS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Case:
    """A stage and an input, made from their description."""

    form: str
    affinity: str
    normalize: str
    shared: bool
    weight: str
    share_affinity: bool
    num_blocks: int
    channels: int
    batch: int
    positions: int
    seed: int

    def stage(self, **keywords):
        torch.manual_seed(self.seed)
        made = {"original": OriginalStage, "diffusive": DiffusiveStage}[self.form]
        options = {
            "affinity": self.affinity,
            "normalize": self.normalize,
            "shared_embedding": self.shared,
            "weight": self.weight,
            "share_affinity": self.share_affinity,
            "layout": "positions",
            "init_std": 0.3,
        }
        return made(self.channels, self.num_blocks, **(options | keywords)).double()

    def normal(self, stream, *shape):
        return torch.randn(*shape, generator=generator(self.seed + stream), dtype=torch.float64)

    @property
    def x(self):
        return 0.5 * self.normal(1, self.batch, self.positions, self.channels)


@st.composite
def cases(
    draw, forms=("original", "diffusive"), affinities=tuple(SHARED), *, batch=None, share_affinity=None
):
    affinity = draw(st.sampled_from(affinities))
    shared = affinity not in SEPARATE or draw(st.booleans())
    normalize = draw(st.sampled_from((SHARED if shared else SEPARATE)[affinity]))
    share_affinity = draw(st.booleans()) if share_affinity is None else share_affinity
    # Exponentials without a division, of a state that they make grow, soon overflow:
    # see test_a_stage_that_overflows.
    is_wild = "gaussian" in affinity and normalize in ("count", "none") and not share_affinity
    return Case(
        form=draw(st.sampled_from(forms)),
        affinity=affinity,
        normalize=normalize,
        shared=shared,
        weight=draw(st.sampled_from(("factored", "full"))),
        share_affinity=share_affinity,
        num_blocks=1 if is_wild else draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 2)) if batch is None else batch,
        positions=draw(st.integers(1, 8)),
        seed=draw(SEEDS),
    )


@given(cases(("original",), ("delta",)))
def test_an_original_block_with_delta_is_local(case):
    torch.manual_seed(case.seed)
    block = OriginalBlock(
        case.channels, affinity="delta", weight=case.weight, layout="positions", init_std=0.3
    )
    block = block.double()
    assert relative(block(case.x), case.x + case.x @ block.weights()[0].mT) <= 1e-14


@given(cases(("diffusive",)))
def test_a_diffusive_stage_leaves_constants_as_they_are(case):
    constant = case.x[:, :1].expand_as(case.x)
    assert relative(case.stage()(constant), constant) <= 1e-12


@given(cases(("diffusive",), share_affinity=True))
def test_a_diffusive_stage_is_propagation(case):
    stage = case.stage()
    assert relative(stage(case.x), propagate(stage.affinity(case.x), case.x, stage.weights())) <= 1e-12


@given(cases(("original",)))
def test_an_original_stage_is_aggregation_again_and_again(case):
    stage, z = case.stage(), case.x
    for affinity, w in zip(stage.affinities(case.x), stage.weights(), strict=True):
        z = z + aggregate(affinity, z) @ w.mT
    assert relative(stage(case.x), z) <= 1e-12


@given(cases())
def test_states_are_those_that_the_output_comes_from(case):
    stage = case.stage()
    states = stage.states(case.x)
    assert len(states) == case.num_blocks + 1
    assert torch.equal(states[0], case.x)
    assert relative(states[-1], stage(case.x)) <= 1e-12


@given(cases())
def test_a_stage_of_permuted_positions_is_its_output_permuted(case):
    stage, order = case.stage(), torch.argsort(case.normal(2, case.positions))
    assert relative(stage(case.x[:, order]), stage(case.x)[:, order]) <= 1e-11


@pytest.mark.parametrize("normalize", ["count", "none"])
def test_a_stage_that_overflows_does_so_at_the_same_place_in_any_order(normalize):
    """Three blocks whose kernel exp(z·z) follows a state that it makes grow."""
    case = Case("original", "gaussian", normalize, True, "full", False, 3, 1, batch=2, positions=3, seed=2)
    stage, order = case.stage(), torch.tensor([2, 0, 1])
    x = case.normal(2, 2, 3, 1) / 2 * torch.tensor([[[2.0]], [[0.1]]], dtype=torch.float64)
    found = stage(x)
    assert not bool(torch.isfinite(found[0]).all())
    assert bool(torch.isfinite(found[1]).all())
    assert torch.allclose(stage(x[:, order]), found[:, order], rtol=1e-11, atol=0, equal_nan=True)
    image = x.transpose(1, 2).unsqueeze(-1)
    pixels = case.stage(layout="channels_first")(image).flatten(2).transpose(1, 2)
    assert torch.allclose(pixels, found, rtol=1e-11, atol=0, equal_nan=True)


@given(cases(batch=2))
def test_a_stage_takes_each_sample_by_itself(case):
    stage = case.stage()
    alone = torch.cat([stage(x) for x in case.x.split(1)])
    assert relative(alone, stage(case.x)) <= 1e-11


@given(cases(batch=1))
def test_a_masked_stage_is_one_without_those_positions(case):
    stage, chance = case.stage(), case.normal(2, 1, case.positions)
    mask = (chance < 0.3) | (chance == chance.min())
    found, keep = stage(case.x, mask), mask[0]
    assert relative(found[:, keep], stage(case.x[:, keep])) <= 1e-11
    assert torch.equal(found[:, ~keep], case.x[:, ~keep])


@given(cases(), st.integers(1, 3))
def test_an_image_is_its_pixels_as_positions(case, height):
    image = case.normal(2, case.batch, case.channels, height, case.positions) / 2
    flat = case.stage()(image.flatten(2).transpose(1, 2))
    assert relative(case.stage(layout="channels_first")(image).flatten(2).transpose(1, 2), flat) <= 1e-11


@given(cases(), st.booleans())
def test_a_stage_with_zero_init_is_the_identity(case, batch_norm):
    stage = case.stage(init="zero", batch_norm=batch_norm).eval()
    assert torch.equal(stage(case.x), case.x)


@given(cases(("diffusive",), ("gaussian", "heat"), share_affinity=True))
def test_a_doubly_stochastic_stage_keeps_the_mean_feature(case):
    found = case.stage(normalize="sinkhorn", shared_embedding=True)(case.x)
    assert relative(found.mean(1), case.x.mean(1)) <= 1e-12


@given(st.sampled_from(("original", "diffusive")), st.sampled_from(("0", "2", "3")), st.integers(1, 3), SEEDS)
def test_a_stage_that_is_inserted_keeps_shapes_and_starts_as_nothing(form, place, num_blocks, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1), nn.BatchNorm2d(2)
    ).eval()
    x = torch.randn(2, 3, 5, 4)
    before = model(x)
    done = insert(model, {place: {"form": form, "num_blocks": num_blocks, "init": "zero"}}, example=x)
    assert torch.equal(model(x), before)
    assert [(one.channels, one.num_blocks, one.positions) for one in done] == [
        (4 if place == "0" else 2, num_blocks, 6)
    ]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    assert model(x).shape == before.shape


def square(size, seed):
    return torch.randn(size, size, generator=generator(seed), dtype=torch.float64)


@given(st.integers(1, 8), SEEDS)
def test_a_spectrum_does_not_see_an_orthogonal_change_of_channels(size, seed):
    w, turn = square(size, seed), torch.linalg.qr(square(size, seed + 1)).Q
    # Sorted by value: two of one magnitude and opposite sign may change places by rounding.
    first, second = (weight_spectrum(one).eigenvalues.sort().values for one in (w, turn @ w @ turn.mT))
    assert relative(second, first) <= 1e-12


@given(st.integers(1, 8), SEEDS)
def test_a_spectrum_does_not_see_the_antisymmetric_part(size, seed):
    w, other = square(size, seed), square(size, seed + 1)
    first, second = (weight_spectrum(one).eigenvalues.sort().values for one in (w, w + other - other.mT))
    assert relative(second, first) <= 1e-12
