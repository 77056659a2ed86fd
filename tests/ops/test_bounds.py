"""The weights that are known to be stable: by what the kernel is, or by its degrees, and never too large."""

import math
from fractions import Fraction

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, kernel_matrix, row_sums
from nonloc.ops.bounds import is_definite, stable_weight_limit, universal_weight_limit
from problems import JOINING, affinity, features, generator


def shared(kind, normalize, **keywords):
    x = features(kind, normalize).abs() + 0.1
    return Affinity(x, x, kind, normalize, **keywords)


def generator_of(kernel):
    return torch.diag_embed(kernel.sum(-1)) - kernel


@pytest.mark.parametrize(
    ("kind", "one_side", "expected"),
    [
        ("gaussian", True, 2.0),
        ("heat", True, 2.0),
        ("concat", True, 1.0),
        ("gaussian", False, 1.0),
        ("heat", False, 1.0),
        ("concat", False, 1.0),
        ("dot", True, None),
        ("delta", True, math.inf),
    ],
)
@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
def test_stochastic_kernels_have_a_limit_for_all_features(kind, one_side, expected, normalize):
    width = 1 if kind == "concat" else 3
    left = torch.empty(2, 4, width, device="meta")
    right = left if one_side else torch.empty(2, 4, width, device="meta")
    assert universal_weight_limit(Affinity(left, right, kind, normalize)) == expected


@pytest.mark.parametrize("kind", JOINING)
@pytest.mark.parametrize("normalize", ["none", "count", "symmetric"])
def test_other_normalizations_have_none(kind, normalize):
    assert universal_weight_limit(shared(kind, normalize)) is None


def test_a_negative_scale_is_not_definite():
    x = torch.randn(1, 5, 2, dtype=torch.float64)
    repelling = Affinity(x, x, "gaussian", scale=-1.0)
    assert not is_definite(repelling)
    assert universal_weight_limit(repelling) == 1.0


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("kind", JOINING)
@pytest.mark.parametrize("with_measure", [False, True])
def test_limit_is_never_above_two_over_the_largest_eigenvalue(kind, normalize, with_measure):
    measure = 0.2 + torch.rand(6, generator=generator(0)).double() if with_measure else None
    given = shared(kind, normalize, measure=measure)
    limits = stable_weight_limit(given)
    assert limits.shape == (2,)
    largest = torch.linalg.eigvals(generator_of(kernel_matrix(given))).real.amax(-1)
    assert bool((limits * largest <= 2 * (1 + 1e-13)).all())
    # And it says something: within the factor that degrees can lose.
    assert bool((limits * largest >= 0.5).all())


@pytest.mark.parametrize("normalize", ["row", "count", "none"])
@pytest.mark.parametrize("kind", ["gaussian", "heat", "concat"])
def test_separate_features_take_averages_up_to_the_limit(kind, normalize):
    given = affinity(kind, normalize)
    kernel = kernel_matrix(given)
    step = torch.eye(6).double() - stable_weight_limit(given).view(-1, 1, 1) * generator_of(kernel)
    assert bool((step >= -1e-15).all())
    torch.testing.assert_close(step.sum(-1), torch.ones(2, 6).double())


def test_the_diagonal_counts_for_nothing_and_rounding_cannot_hide_the_rest():
    far = torch.tensor([[[0.0], [6.5]]], dtype=torch.float64)
    joined = math.exp(-(6.5**2))
    limit = float(stable_weight_limit(Affinity(far, far, "heat", "none")))
    # λ_max = 2 · 4e-19, lost beside the 1 on the diagonal: the limit stays on the safe side of the truth.
    assert 1 < limit <= 1 / joined


def test_rounding_cannot_carry_the_limit_above_the_bound():
    """K_ij = x_i x_j has its largest row sum in exact numbers."""
    for seed in range(20):
        x = 0.5 + torch.rand(1, 5, 1, generator=generator(seed), dtype=torch.float64)
        limit = Fraction(float(stable_weight_limit(Affinity(x, x, "dot", "none"))))
        exact = [Fraction(value) for value in x.flatten().tolist()]
        largest = max(exact) * sum(exact)
        assert (1 - Fraction(1, 10**12)) * 2 <= limit * largest <= 2


def test_the_hub_of_a_star_is_bounded_by_its_degree_and_one():
    """Nine leaves: K = Ω_ij / 3, so the hub's degree is 3, and K's own eigenvalues are at least −1."""
    star = torch.zeros(10, 10, dtype=torch.float64)
    star[0, 1:] = star[1:, 0] = 1
    limit = float(stable_weight_limit(SparseAffinity(star.to_sparse_csr(), "symmetric")))
    assert limit == pytest.approx(2 / (3 + 1), rel=1e-12)


def test_signed_kernels_have_no_limit():
    x = torch.tensor([[[1.0], [-1.0]]])
    assert stable_weight_limit(Affinity(x, x, "dot", "none")) is None
    assert stable_weight_limit(Affinity(x, x, "dot", "row")) is None


def test_dot_products_of_features_that_are_nowhere_negative_have_one():
    x = torch.rand(1, 5, 2, generator=torch.Generator().manual_seed(0)).double()
    assert float(stable_weight_limit(Affinity(x, x, "dot", "row"))) == 2.0
    assert float(stable_weight_limit(Affinity(x, x.flip(1), "dot", "row"))) == 1.0
    by_degrees = float(stable_weight_limit(Affinity(x, x, "dot", "none")))
    largest = float(row_sums(Affinity(x, x, "dot", "none")).max())
    assert by_degrees >= (1 - 1e-12) * 2 / largest


def test_float32_is_looked_at_in_float64():
    x = torch.randn(1, 5, 2, generator=torch.Generator().manual_seed(0))
    narrow, exact = (stable_weight_limit(Affinity(y, y, "heat", "none")) for y in (x, x.double()))
    assert torch.equal(narrow, exact)


def test_sparse_kernels_by_their_entries():
    ring = torch.eye(5).double().roll(1, 0)
    graph = (ring + ring.T + 7 * torch.eye(5).double()).to_sparse_csr()
    assert float(stable_weight_limit(SparseAffinity(graph, "row"))) == 1.0
    # Two neighbours each; the 7 on the diagonal does not move anything.
    assert float(stable_weight_limit(SparseAffinity(graph, "none"))) == pytest.approx(0.5, rel=1e-12)
    assert stable_weight_limit(SparseAffinity((-ring).to_sparse_csr(), "none")) is None
    # Without its entries, nothing is known of a graph.
    assert universal_weight_limit(SparseAffinity(graph, "row")) is None


def test_masked_positions_do_not_count():
    x = torch.zeros(1, 6, 2, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False, False, False]])
    limit = float(stable_weight_limit(Affinity(x, x, "heat", "none", mask=mask)))
    assert limit == pytest.approx(2 / 3, rel=1e-12)
