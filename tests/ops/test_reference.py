"""The reference against the double loop, and against finite differences twice."""

import pytest
import torch

from benchmarks import double_loop
from nonloc.ops import Affinity, aggregate, diffuse, kernel_matrix, propagate
from problems import CELLS, EXACT, FORMED_CELLS, SYMMETRIC, affinity, decoration, features, relative, signal


@pytest.mark.parametrize(("kind", "normalize", "form"), FORMED_CELLS)
def test_values_are_those_of_the_double_loop(kind, normalize, form):
    a = affinity(kind, normalize, **decoration(form))
    z = signal(a)
    weights = 0.3 * torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    assert relative(aggregate(a, z, backend="reference"), double_loop.aggregate(a, z)) <= 1e-12
    assert relative(diffuse(a, z, backend="reference"), double_loop.diffuse(a, z)) <= 1e-12
    actual = propagate(a, z, weights, backend="reference")
    truth = double_loop.propagate(a, z, weights)
    if a.mask is not None:  # the loop moves every position by 0 there; so does propagate
        assert torch.equal(actual[~a.mask], z[~a.mask])
    assert relative(actual, truth) <= 1e-12


@pytest.mark.parametrize(("kind", "normalize"), CELLS)
def test_derivatives_are_those_of_finite_differences(kind, normalize):
    left = features(kind, normalize, batch=1, positions=4, width=2).requires_grad_()
    right = features(kind, normalize, batch=1, positions=4, width=2, seed=9).requires_grad_()
    z = torch.randn(1, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def one_side(left, z):
        return diffuse(Affinity(left, left, kind, normalize), z, backend="reference")

    def two_sides(left, right, z):
        return diffuse(Affinity(left, right, kind, normalize), z, backend="reference")

    function, inputs = (one_side, (left, z)) if normalize in SYMMETRIC else (two_sides, (left, right, z))
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_dtype_of_the_kernel_matrix_follows_the_features():
    x = torch.randn(1, 4, 2, dtype=torch.bfloat16)
    assert kernel_matrix(Affinity(x, x, "gaussian")).dtype == torch.bfloat16


@pytest.mark.parametrize("backend", EXACT)
def test_padding_does_not_move_the_centre_of_features_far_from_zero(backend):
    """In float32, where |l − r|² would be lost around another centre."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 20, 2, generator=generator) + 1000
    z = torch.randn(1, 20, 1, generator=generator)
    padded, signal_ = (torch.cat([t, torch.zeros_like(t)], 1) for t in (x, z))
    mask = (torch.arange(40) < 20).unsqueeze(0)
    actual = aggregate(Affinity(padded, padded, "heat", mask=mask), signal_, backend=backend)[:, :20]
    wide = x.double()
    exact = torch.softmax(-torch.cdist(wide, wide).square(), -1) @ z.double()
    assert float((actual - exact).abs().max()) <= 1e-5
