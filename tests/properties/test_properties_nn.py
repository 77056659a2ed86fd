"""Properties of the modules."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nonloc.nn import DiffusiveStage, OriginalStage
from nonloc.nn.options import NORMALIZATIONS
from nonloc.ops import aggregate, diffuse
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
def cases(draw, *, batch=None):
    affinity, share_affinity = draw(st.sampled_from(tuple(SHARED))), draw(st.booleans())
    shared = affinity not in SEPARATE or draw(st.booleans())
    normalize = draw(st.sampled_from((SHARED if shared else SEPARATE)[affinity]))
    # Exponentials without a division, of a state that they make grow, soon overflow:
    # see test_a_stage_that_overflows.
    is_wild = "gaussian" in affinity and normalize in ("count", "none") and not share_affinity
    return Case(
        form=draw(st.sampled_from(("original", "diffusive"))),
        affinity=affinity,
        normalize=normalize,
        shared=shared,
        weight=draw(st.sampled_from(("factored", "full"))),
        share_affinity=share_affinity,
        num_blocks=1 if is_wild else draw(st.integers(1, 3)),
        channels=draw(st.integers(1, 3)),
        batch=draw(st.integers(1, 2)) if batch is None else batch,
        positions=draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 2**32)),
    )


@settings(max_examples=3 * settings.default.max_examples)
@given(cases())
def test_a_stage_is_its_operation_again_and_again(case):
    stage, truth = case.stage(), [case.x]
    operation = diffuse if case.form == "diffusive" else aggregate
    for affinity, w in zip(stage.affinities(case.x), stage.weights(), strict=True):
        truth.append(truth[-1] + operation(affinity, truth[-1]) @ w.mT)
    for actual, expected in zip([*stage.states(case.x), stage(case.x)], [*truth, truth[-1]], strict=True):
        assert relative(actual, expected) <= 1e-12


@pytest.mark.parametrize("normalize", ["count", "none"])
def test_a_stage_that_overflows_does_so_at_the_same_place_in_any_order(normalize):
    """Three blocks whose kernel exp(z·z) follows a state that it makes grow."""
    case = Case("original", "gaussian", normalize, True, "full", False, 3, 1, batch=2, positions=3, seed=2)
    stage, order = case.stage(), torch.tensor([2, 0, 1])
    x = case.normal(2, 2, 3, 1) / 2 * torch.tensor([[[2.0]], [[0.1]]], dtype=torch.float64)
    actual = stage(x)
    assert not bool(torch.isfinite(actual[0]).all())
    assert bool(torch.isfinite(actual[1]).all())
    assert torch.allclose(stage(x[:, order]), actual[:, order], rtol=1e-11, atol=0, equal_nan=True)
    image = x.transpose(1, 2).unsqueeze(-1)
    pixels = case.stage(layout="channels_first")(image).flatten(2).transpose(1, 2)
    assert torch.allclose(pixels, actual, rtol=1e-11, atol=0, equal_nan=True)


@given(cases(batch=1))
def test_a_masked_stage_is_one_without_those_positions(case):
    stage, chance = case.stage(), case.normal(2, 1, case.positions)
    mask = (chance < 0.3) | (chance == chance.min())
    actual, keep = stage(case.x, mask), mask[0]
    assert relative(actual[:, keep], stage(case.x[:, keep])) <= 1e-11
    assert torch.equal(actual[:, ~keep], case.x[:, ~keep])
