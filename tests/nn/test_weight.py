"""Batch normalisation after W_Z, and its folding into weights()."""

import pytest
import torch

from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.nn.weight import WeightMap
from nonloc.ops import aggregate, diffuse

C, M = 4, 7


@pytest.fixture
def x():
    return torch.randn(3, M, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def trained(kind, x, **keywords):
    """A stage whose running statistics, γ and β are not the ones it began with, in evaluation mode."""
    torch.manual_seed(0)
    stage = kind(C, 2, layout="positions", init="torch", batch_norm=True, **keywords).double()
    for weight in stage.maps:
        torch.nn.init.normal_(weight.norm.weight)
        torch.nn.init.normal_(weight.norm.bias)
    for _ in range(3):
        stage(x)
    return stage.eval()


@pytest.mark.parametrize("weight", ["factored", "full"])
@pytest.mark.parametrize(("kind", "operate"), [(OriginalStage, aggregate), (DiffusiveStage, diffuse)])
def test_weights_have_the_normalization_folded_in(kind, operate, weight, x):
    stage = trained(kind, x, weight=weight)
    z = x
    for w, one, affinity in zip(stage.weights(), stage.maps, stage.affinities(x), strict=True):
        norm = one.norm
        shift = norm.bias - norm.running_mean * norm.weight / (norm.running_var + norm.eps).sqrt()
        z = z + operate(affinity, z) @ w.T + shift
    torch.testing.assert_close(stage(x), z)


def test_batch_statistics_are_those_of_the_change_over_batch_and_positions(x):
    torch.manual_seed(0)
    one = WeightMap(
        C, hidden=None, weight="factored", inner_bias=False, outer_bias=False, batch_norm=True
    ).double()
    one.norm.eps = 1e-14
    change = one.outer(one.inner(x))
    torch.testing.assert_close(change.mean((0, 1)), torch.zeros(C, dtype=x.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(change.var((0, 1), unbiased=False), torch.ones(C, dtype=x.dtype))


def test_batch_statistics_leave_the_padding_out(x):
    torch.manual_seed(0)
    stage = DiffusiveStage(
        C, 1, layout="positions", init="torch", batch_norm=True, share_affinity=False
    ).double()
    mask = torch.ones(3, M, dtype=torch.bool)
    mask[:, 5:] = False
    torch.testing.assert_close(stage(x, mask)[:, :5], stage(x[:, :5]))


def test_map_is_linear_only_without_bias_and_normalization():
    def made(**keywords):
        return WeightMap(C, hidden=None, weight="factored", **keywords)

    assert made(inner_bias=False, outer_bias=False, batch_norm=False).factors() is not None
    assert made(inner_bias=False, outer_bias=True, batch_norm=False).factors() is None
    assert made(inner_bias=False, outer_bias=False, batch_norm=True).factors() is None
