"""A sparse Ω against the double loop on its dense form, and what a sparse matrix may be."""

import copy
import math

import pytest
import torch

from benchmarks import double_loop
from nonloc.ops import (
    NORMALIZATIONS,
    Affinity,
    SparseAffinity,
    aggregate,
    diffuse,
    dirichlet_energy,
    kernel_matrix,
    propagate,
)
from problems import EXACT, SYMMETRIC, generator, relative

M = 9
each_normalization = pytest.mark.parametrize("normalize", NORMALIZATIONS)
each_backend = pytest.mark.parametrize("backend", EXACT)


def omega(normalize="row"):
    """[M, M] with two thirds of its entries 0, a full diagonal, symmetric where it must be."""
    full = torch.rand(M, M, dtype=torch.float64, generator=generator(0))
    full = full * (torch.rand(M, M, generator=generator(1)) > 0.66)
    return (full + full.T if normalize in SYMMETRIC else full) + 0.3 * torch.eye(M, dtype=torch.float64)


def both(normalize, measure=None):
    """The sparse affinity, and the dense one with Ω_ij = Ω_i · e_j."""
    dense = omega(normalize)
    eye = torch.eye(M, dtype=torch.float64).expand(2, -1, -1)
    truth = Affinity(dense.expand(2, -1, -1), eye, "dot", normalize, measure=measure)
    return SparseAffinity(dense.to_sparse_csr(), normalize, measure=measure), truth


def state(batch=2, channels=3):
    return torch.randn(batch, M, channels, dtype=torch.float64, generator=generator(5))


@each_backend
@each_normalization
@pytest.mark.parametrize("measured", [False, True])
def test_values_are_those_of_the_double_loop(normalize, measured, backend):
    measure = torch.linspace(0.2, 1.4, M, dtype=torch.float64) if measured else None
    sparse, dense = both(normalize, measure=measure)
    z, weights = state(), 0.3 * torch.randn(2, 3, 3, dtype=torch.float64, generator=generator(6))
    assert relative(aggregate(sparse, z, backend=backend), double_loop.aggregate(dense, z)) <= 1e-12
    assert relative(diffuse(sparse, z, backend=backend), double_loop.diffuse(dense, z)) <= 1e-12
    actual = propagate(sparse, z, weights, backend=backend)
    assert relative(actual, double_loop.propagate(dense, z, weights)) <= 1e-12
    squares = (z.unsqueeze(2) - z.unsqueeze(1)).square().sum(-1)
    energy = 0.5 * (kernel_matrix(dense) * squares).sum((1, 2))
    assert relative(dirichlet_energy(sparse, z, backend=backend), energy) <= 1e-12
    assert relative(kernel_matrix(sparse), kernel_matrix(dense)[:1]) <= 1e-14


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("batch", [1, 5])
def test_one_graph_serves_every_batch(batch, channels):
    sparse, _ = both("row")
    z = state(batch, channels)
    assert relative(diffuse(sparse, z), kernel_matrix(sparse) @ z - z) <= 1e-14


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_both_index_types_are_taken(index):
    sparse, dense = both("row")
    m = sparse.matrix
    starts, columns = m.crow_indices().to(index), m.col_indices().to(index)
    typed = torch.sparse_csr_tensor(starts, columns, m.values(), m.shape, check_invariants=True)
    assert relative(aggregate(SparseAffinity(typed), state()), double_loop.aggregate(dense, state())) <= 1e-12


@pytest.mark.parametrize("channels", [1, 3])
def test_the_gradient_of_the_state_is_that_of_the_matrix(channels):
    sparse, _ = both("row")
    z, cotangent = state(channels=channels).requires_grad_(), state(channels=channels)
    (actual,) = torch.autograd.grad(aggregate(sparse, z), z, cotangent)
    assert relative(actual, kernel_matrix(sparse).mT @ cotangent) <= 1e-14


def test_dtypes_follow_the_state():
    sparse, dense = both("row")
    truth = double_loop.aggregate(dense, state().float().double())
    assert relative(aggregate(sparse, state().float()).double(), truth) <= 1e-6
    assert aggregate(sparse, state().bfloat16()).dtype == torch.bfloat16
    narrow = SparseAffinity(omega().float().to_sparse_csr())
    assert aggregate(narrow, state()).dtype == torch.float64


def test_a_row_without_entries_is_a_row_of_zeros():
    dense = omega()
    dense[4] = 0
    change = diffuse(SparseAffinity(dense.to_sparse_csr()), state())
    assert bool((change[:, 4] == 0).all())
    assert bool((change[:, 3] != 0).all())


def test_nan_reaches_the_neighbours_and_nobody_else():
    dense = torch.eye(M, dtype=torch.float64)
    dense[0, 1] = dense[1, 0] = 1.0
    z = state(1)
    z[0, 1] = torch.nan
    out = aggregate(SparseAffinity(dense.to_sparse_csr()), z)
    assert out.isnan().all(-1)[0].tolist() == [True, True] + [False] * (M - 2)


@pytest.mark.parametrize("normalize", SYMMETRIC)
@pytest.mark.parametrize(
    ("entries", "value", "message"),
    [
        *(([(row, (row + 2) % M)], 1e-9, "needs a symmetric matrix.*matrix.t") for row in (0, 4, 8)),
        ([(2, 3), (3, 2)], -9.0, "nowhere negative"),
    ],
)
def test_one_wrong_entry_is_noticed(normalize, entries, value, message):
    dense = omega(normalize)
    for row, column in entries:
        dense[row, column] += value
    with pytest.raises(ValueError, match=message):
        aggregate(SparseAffinity(dense.to_sparse_csr(), normalize), state())


def test_the_matrix_of_a_one_sided_kernel_is_refused_beside_a_large_diagonal():
    """Its dense copy, with Ω as features, allows for their rounding: here of 10²⁰."""
    one_sided = torch.tensor([[1.0, 0.0], [1.0, 1e20]], dtype=torch.float64).to_sparse_csr()
    with pytest.raises(ValueError, match="needs a symmetric matrix"):
        kernel_matrix(SparseAffinity(one_sided, "symmetric"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": omega()}, r"a torch.sparse_csr tensor \[M, M\], got torch.strided; use .*to_sparse_csr"),
        ({"matrix": [[1.0]]}, "got list"),
        ({"matrix": torch.ones(2, 3).to_sparse_csr()}, r"must be square.*got \[2, 3\]"),
        ({"matrix": torch.ones(2, 2, dtype=torch.long).to_sparse_csr()}, "floating point"),
        ({"normalize": "softmax"}, "normalize='softmax' is unknown; choose one of row, count"),
        ({"measure": torch.ones(4)}, r"measure must be a tensor \[M\] = \[9\]"),
    ],
)
def test_wrong_arguments_name_the_fix(arguments, message):
    with pytest.raises(ValueError, match=message):
        SparseAffinity(**{"matrix": omega().to_sparse_csr(), **arguments})


def test_memory_is_that_of_the_entries():
    size = 200_000
    ring = torch.arange(size)
    ends = torch.stack([ring.repeat(2), torch.cat([ring + 1, ring - 1]) % size])
    ones = torch.ones(2 * size, dtype=torch.float64)
    matrix = torch.sparse_coo_tensor(ends, ones, (size, size), check_invariants=True)
    z = torch.cos(2 * math.pi * ring.double() / size).view(1, -1, 1)
    # On a ring the cosine is an eigenvector: K z = cos(2π / M) z.
    actual = aggregate(SparseAffinity(matrix.to_sparse_csr(), "sinkhorn"), z)
    assert relative(actual, math.cos(2 * math.pi / size) * z) <= 1e-13


def test_it_says_what_it_is_on_one_line():
    ring, measure = torch.eye(M).roll(1, 0).to_sparse_csr(), torch.ones(M)
    assert repr(SparseAffinity(ring)) == "SparseAffinity(row, M = 9, 9 entries)"
    weighed = SparseAffinity(ring, "count", measure=measure)
    assert repr(weighed) == "SparseAffinity(count, M = 9, 9 entries, measured)"


def test_a_deep_copy_shares_nothing_but_the_kernel():
    matrix = omega().to_sparse_csr().requires_grad_()
    sparse = SparseAffinity(matrix, "count", measure=torch.linspace(0.2, 1.4, M, dtype=torch.float64))
    first, second = copy.deepcopy([sparse, sparse])
    assert first is second
    assert (first.normalize, first.matrix.requires_grad) == ("count", True)
    truth = kernel_matrix(sparse).detach()
    assert torch.equal(kernel_matrix(first), truth)
    with torch.no_grad():
        first.matrix.values().zero_()
        first.measure.zero_()
    assert torch.equal(kernel_matrix(sparse), truth)


def test_a_computed_matrix_is_not_copied_without_its_graph():
    computed = SparseAffinity((2 * omega().requires_grad_()).to_sparse_csr())
    with pytest.raises(ValueError, match="cannot be copied with its graph; use .*detach"):
        copy.deepcopy(computed)
