"""The adjoint against the transposed matrix, the balance that makes a kernel self-adjoint, and the degrees."""

import pytest
import torch

from nonloc.ops import (
    NORMALIZATIONS,
    Affinity,
    SparseAffinity,
    apply_adjoint,
    kernel_matrix,
    row_sums,
    self_adjoint_weights,
)
from problems import (
    FORMED_CELLS,
    JOINING,
    SYMMETRIC,
    affinity,
    decoration,
    features,
    generator,
    relative,
    signal,
    symmetric,
)

each_formed_cell = pytest.mark.parametrize(("kind", "normalize", "form"), FORMED_CELLS)


def sparse(normalize, symmetric, measure):
    dense = torch.rand(6, 6, dtype=torch.float64, generator=generator(3))
    dense = dense * (torch.rand(6, 6, generator=generator(4)) > 0.5) + 0.2 * torch.eye(6, dtype=torch.float64)
    dense = dense + dense.T if symmetric else dense
    return SparseAffinity(dense.to_sparse_csr(), normalize, measure=measure)


@each_formed_cell
def test_adjoint_and_row_sums_are_those_of_the_matrix(kind, normalize, form):
    a = affinity(kind, normalize, **decoration(form))
    p = signal(a)
    assert relative(apply_adjoint(a, p), kernel_matrix(a).mT @ p) <= 1e-12
    assert relative(row_sums(a), kernel_matrix(a).sum(-1)) <= 1e-13


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize(
    ("normalize", "symmetric"),
    [*((n, True) for n in NORMALIZATIONS), *((n, False) for n in NORMALIZATIONS if n not in SYMMETRIC)],
)
def test_the_adjoint_and_the_balance_of_a_sparse_kernel(normalize, symmetric, measured):
    a = sparse(normalize, symmetric, decoration("measured")["measure"] if measured else None)
    p = torch.randn(3, 6, 2, dtype=torch.float64, generator=generator(1))
    assert relative(apply_adjoint(a, p), kernel_matrix(a).mT @ p) <= 1e-12
    weights = self_adjoint_weights(a)
    assert (weights is not None) == symmetric, "a directed graph has none"
    if symmetric:
        flow = weights.unsqueeze(-1) * kernel_matrix(a)
        assert float((flow - flow.mT).abs().max()) <= 1e-14
        assert bool((weights > 0).all())


@pytest.mark.parametrize("normalize", ["row", "count", "none"])
@pytest.mark.parametrize("kind", JOINING)
def test_the_adjoint_of_sub_sampled_givers(kind, normalize):
    left, right = features(kind, normalize), features(kind, normalize, positions=4, seed=9)
    a = Affinity(left, right, kind, normalize)
    p = signal(a)
    assert relative(apply_adjoint(a, p), kernel_matrix(a).mT @ p) <= 1e-12


def test_padding_reaches_nobody_in_the_adjoint():
    a = affinity("gaussian", "row", **decoration("masked"))
    p = signal(a)
    truth = apply_adjoint(a, p)
    p[~a.mask] = torch.nan
    assert torch.equal(apply_adjoint(a, p), truth)


@pytest.mark.parametrize("kind", JOINING)
def test_no_giver_at_all_gives_nothing(kind):
    x = features(kind, "row")
    a = Affinity(x, x, kind, "row", measure=torch.zeros(6, dtype=torch.float64))
    assert bool((apply_adjoint(a, signal(a)) == 0).all())


def test_the_adjoint_asks_for_symmetry_where_the_kernel_does():
    x, y = features("heat", "row"), features("heat", "row", seed=5)
    with pytest.raises(ValueError, match="needs a symmetric affinity"):
        apply_adjoint(Affinity(x, y, "heat", "symmetric"), x)


@each_formed_cell
def test_the_weights_put_the_kernel_in_detailed_balance(kind, normalize, form):
    a = symmetric(kind, normalize, **decoration(form))
    weights = self_adjoint_weights(a)
    assert weights.shape == (2, 6)
    flow = weights.unsqueeze(-1) * kernel_matrix(a)
    assert float((flow - flow.mT).abs().max()) <= 1e-14 * float(flow.abs().max())
    valid = torch.ones(2, 6, dtype=torch.bool) if a.mask is None else a.mask
    assert torch.equal(weights > 0, valid)


def test_negative_row_sums_are_no_weights():
    x = torch.tensor([[[1.0], [-1.0], [0.5]]], dtype=torch.float64)  # 𝒞 = 0.5 x: one of them is below 0
    assert self_adjoint_weights(Affinity(x, x, "dot", "row")) is None
    assert self_adjoint_weights(Affinity(x, x, "dot", "none")) is not None


def test_a_signed_row_that_sums_to_nothing_has_no_weight():
    """Nobody is heard at position 0, whose 𝒞 is 0, and yet the others hear it."""
    rows = torch.tensor([[0.0, 1.0, -1.0], [1.0, 1.0, 0.0], [-1.0, 0.0, 3.0]], dtype=torch.float64)
    a = SparseAffinity(rows.to_sparse_csr(), "row")
    assert kernel_matrix(a)[0, :, 0].tolist() == [0.0, 0.5, -0.5]
    assert self_adjoint_weights(a) is None


def test_weights_stay_finite_where_the_row_sums_overflow():
    x = torch.tensor([[[100.0], [99.9], [-100.0]]], dtype=torch.float64)
    a = Affinity(x, x, "gaussian", "row")  # logits up to 1e4
    weights = self_adjoint_weights(a)
    flow = weights.unsqueeze(-1) * kernel_matrix(a)
    assert bool(torch.isfinite(weights).all())
    assert float((flow - flow.mT).abs().max()) <= 1e-11 * float(flow.max())


@pytest.mark.parametrize(
    "nothing", [{"mask": torch.tensor([[True, True, False]])}, {"measure": torch.tensor([1.0, 1.0, 0.0])}]
)
def test_a_position_that_weighs_nothing_does_not_hide_what_others_weigh(nothing):
    """Logits are −1e4 between the first two positions, and 0 at the third."""
    x = torch.tensor([[[100.0], [100.0], [0.0]]], dtype=torch.float64)
    first, second, third = self_adjoint_weights(Affinity(x, x, "gaussian", scale=-1.0, **nothing))[0]
    assert first == second > 0 == third


def test_a_walk_that_nearly_always_stays_keeps_its_direction():
    """One in a million goes on; next to the diagonal its asymmetry is as small as rounding of float32."""
    cycle = torch.eye(3) + 1e-6 * torch.eye(3).roll(1, 1)
    moved = apply_adjoint(
        SparseAffinity(cycle.to_sparse_csr(), "none"), torch.tensor([[[1.0], [0.0], [0.0]]])
    )
    assert torch.equal(moved.flatten(), cycle[0])
