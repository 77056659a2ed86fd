"""The doubly stochastic normalisation: what it promises, what it refuses, and a free identity."""

import subprocess
import sys

import pytest
import torch

from nonloc.ops import Affinity, SparseAffinity, aggregate, diffuse, reference
from problems import EXACT, features


def dense(a, backend):
    """K as the backend applies it."""
    return aggregate(a, torch.eye(a.positions, dtype=torch.float64).expand(a.batch, -1, -1), backend=backend)


NOTHING = torch.zeros(3, dtype=torch.float64)


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize(
    ("kind", "features", "measure", "message"),
    [
        # Ω = [[0, a], [a, 2a]] has a scaling only if the first position weighs less; here it weighs 0.05 % more, and
        # the iteration ends with rows that miss 1 by about as much.
        ("concat", [0.0, 5e-4], torch.tensor([0.50025, 0.5]), "found no scaling"),
        ("dot", [1.0, 0.0], None, "no affinity to any other"),
        ("gaussian", [1.0, 2.0, 3.0], NOTHING, "no affinity to any other"),
        ("heat", [1.0, 2.0, 3.0], NOTHING, "no affinity to any other"),
    ],
)
def test_a_kernel_without_a_scaling_is_refused(kind, features, measure, message, backend):
    x = torch.tensor(features, dtype=torch.float64 if measure is None else measure.dtype).view(1, -1, 1)
    with pytest.raises(ValueError, match=message):
        aggregate(Affinity(x, x, kind, "sinkhorn", measure=measure), x, backend=backend)


@pytest.mark.parametrize("backend", EXACT)
def test_a_star_has_no_total_support(backend):
    """Every leaf must give all of its 1 to the centre, whose row then sums to 3: its Newton steps leave all bounds."""
    star = torch.zeros(4, 4, dtype=torch.float64)
    star[0, 1:] = star[1:, 0] = 1
    with pytest.raises(ValueError, match="no total support"):
        dense(SparseAffinity(star.to_sparse_csr(), "sinkhorn"), backend)


@pytest.mark.parametrize("backend", EXACT)
def test_a_sample_with_nan_does_not_leave_the_others_unscaled(backend):
    x = features("heat", "sinkhorn")[:1].repeat(2, 1, 1)
    x[1, 0] = torch.nan
    sums = dense(Affinity(x, x, "heat", "sinkhorn"), backend).sum(-1)
    assert float((sums[0] - 1).abs().max()) <= 1e-13
    assert bool(sums[1].isnan().any())


@pytest.mark.parametrize("backend", EXACT)
def test_float32_converges_to_its_own_rounding(backend):
    x = features("heat", "sinkhorn", positions=64).float()
    k = aggregate(Affinity(x, x, "heat", "sinkhorn"), torch.eye(64).expand(2, -1, -1), backend=backend)
    assert float((k.sum(-1) - 1).abs().max()) <= 1e-5


def test_the_matrix_takes_few_exponentials(monkeypatch):
    """All but the first steps are products."""
    passes = []
    log_sum = reference.log_sum
    monkeypatch.setattr(reference, "log_sum", lambda *inputs: passes.append(1) or log_sum(*inputs))
    x = features("heat", "sinkhorn", positions=64)
    k = dense(Affinity(x, x, "heat", "sinkhorn"), "reference")
    assert float((k.sum(-1) - 1).abs().max()) <= 1e-13
    assert len(passes) <= 3


def ring(weights):
    """Each position joined to the next, in a circle: bipartite where there is an even number of them."""
    count = len(weights)
    here = torch.arange(count)
    forward = torch.zeros(count, count, dtype=torch.float64).index_put((here, (here + 1) % count), weights)
    return forward + forward.T


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_rings_are_scaled_of_which_steps_leave_much(count, backend):
    for seed in range(5):
        weights = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
        k = dense(SparseAffinity(ring(weights).to_sparse_csr(), "sinkhorn"), backend)
        assert float((k.sum(-1) - 1).abs().max()) <= 1e-12
        assert float((k - k.mT).abs().max()) <= 1e-12


@pytest.mark.parametrize("seed", [1, 2])
def test_a_ring_of_random_weights_is_scaled(seed):
    """Along it u grows and falls by many powers of ten, and conjugate gradients need more steps than positions."""
    weights = torch.rand(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ones = torch.ones(1, 200, 1, dtype=torch.float64)
    sums = aggregate(SparseAffinity(ring(weights).to_sparse_csr(), "sinkhorn"), ones)
    assert float((sums - 1).abs().max()) <= 1e-12


@pytest.mark.parametrize("backend", EXACT)
def test_a_bipartite_kernel_has_both_derivatives(backend):
    z = torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64).view(1, -1, 1)

    def function(weights):
        return aggregate(SparseAffinity(ring(weights).to_sparse_csr(), "sinkhorn"), z, backend=backend)

    weights = torch.tensor([1.0, 0.7, 1.3, 0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (weights,))
    for seed in range(5):  # of the direction in which the second derivative is looked at
        torch.manual_seed(seed)
        assert torch.autograd.gradgradcheck(function, (weights,))


@pytest.mark.parametrize("backend", EXACT)
def test_a_delta_with_a_position_that_weighs_nothing_has_no_scaling(backend):
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    weighs = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="found no scaling"):
        aggregate(Affinity(x, x, "delta", "sinkhorn", measure=weighs), x, backend=backend)
    masked = Affinity(x, x, "delta", "sinkhorn", measure=weighs, mask=torch.tensor([[True, False, True]]))
    assert bool(aggregate(masked, x, backend=backend).isfinite().all())


@pytest.mark.parametrize("backend", EXACT)
def test_a_position_without_weight_far_from_the_others_has_gradients(backend):
    """Its scaling is e^400, and nothing bounds the square of that."""
    x = torch.tensor([[[0.0], [20.0], [0.1]]], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[[1.0], [2.0], [0.5]]], dtype=torch.float64)
    measure = torch.tensor([1.0, 0.0, 0.7], dtype=torch.float64)

    def function(x):
        return diffuse(Affinity(x, x, "heat", "sinkhorn", measure=measure), z, backend=backend)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("backend", EXACT)
def test_logits_whose_rounding_is_above_1_leave_it_finite(backend):
    """Logits of 1e9 in float32, and a position that weighs next to nothing."""
    x = torch.tensor([[[1.4e4], [1.6e4], [3.2e4]]])
    measure = torch.tensor([2.8e8, 5.3e-8, 1.9e-9])
    k = aggregate(
        Affinity(x, x, "gaussian", "sinkhorn", measure=measure), torch.eye(3)[None], backend=backend
    )
    assert bool(k.isfinite().all())


def test_several_samples_are_scaled_by_several_threads():
    """MKL's solution of several systems at once never ends there, and cannot be interrupted."""
    code = (
        "import torch; from nonloc import Affinity, aggregate; torch.set_num_threads(2);"
        "x = torch.rand(2, 256, 2, requires_grad=True);"
        "aggregate(Affinity(x, x, 'heat', 'sinkhorn'), x, backend='reference').sum().backward();"
        "assert x.grad.isfinite().all()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0
