"""Properties of the operator: what it conserves, what it is equivariant to, and what equals what."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import double_loop
from nonloc.ops import aggregate, diffuse, dirichlet_energy, kernel_matrix, row_sums
from problems import EXACT, relative
from strategies import problems

NOT_DELTA = ("gaussian", "heat", "dot", "concat")
NOT_ROW = ("none", "count", "symmetric", "sinkhorn")


def is_valid(problem):
    """1 where a position is valid [B, M]."""
    shape = (problem.batch, problem.positions)
    return torch.ones(shape, dtype=torch.float64) if problem.mask is None else problem.mask.double()


def mass(problem):
    """What each position weighs [B, M]."""
    return is_valid(problem) if problem.measure is None else is_valid(problem) * problem.measure


@settings(max_examples=4 * settings.default.max_examples)
@given(problems(normalizations=("row", "count", "none", "symmetric")), st.sampled_from(EXACT))
def test_values_are_those_of_the_double_loop(problem, backend):
    """So they are linear in the signal, permuted with the positions, and see neither other samples nor a rotation."""
    for ours, loops in ((aggregate, double_loop.aggregate), (diffuse, double_loop.diffuse)):
        truth = loops(problem.affinity, problem.z)
        assert relative(ours(problem.affinity, problem.z, backend=backend), truth) <= 1e-12


@given(problems())
def test_constants_do_not_diffuse(problem):
    constant = problem.normal(9, problem.batch, 1, problem.channels).expand_as(problem.z)
    # The kernel's own size is what rounding is relative to.
    size = 1 + float(row_sums(problem.affinity).abs().max())
    assert float(diffuse(problem.affinity, constant).abs().max()) / size <= 1e-13


@given(problems(normalizations=("sinkhorn",)))
def test_sinkhorn_has_rows_and_columns_of_sum_1(problem):
    kernel, weights = kernel_matrix(problem.affinity), mass(problem)
    assert relative(kernel.sum(-1), is_valid(problem)) <= 1e-12
    assert relative((weights.unsqueeze(1) @ kernel).squeeze(1), weights) <= 1e-12


@given(problems(normalizations=NOT_ROW, symmetric=True, measured=False))
def test_the_plain_mean_is_conserved_but_for_row(problem):
    change = diffuse(problem.affinity, problem.z)
    assert float(change.sum(1).abs().max() / (1 + change.abs().sum(1).max())) <= 1e-12


@given(problems(normalizations=("row",), symmetric=True))
def test_the_mean_weighted_by_row_sums_is_conserved_under_row(problem):
    sums = kernel_matrix(replace(problem.affinity, normalize="none")).sum(-1)
    weights = (mass(problem) * sums).unsqueeze(-1)
    flow = weights * diffuse(problem.affinity, problem.z)
    assert float(flow.sum(1).abs().max() / (1e-300 + flow.abs().sum(1).max() + weights.max())) <= 1e-12


@given(problems(), st.sampled_from(EXACT))
def test_energy_is_the_double_sum(problem, backend):
    kernel, z = kernel_matrix(problem.affinity), problem.z
    squares = (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1)
    actual = dirichlet_energy(problem.affinity, z, backend=backend)
    assert relative(actual, 0.5 * (kernel * squares).sum((1, 2))) <= 1e-12


@given(problems(kinds=("heat",)), st.floats(-50, 50))
def test_heat_does_not_see_a_translation(problem, distance):
    a = problem.affinity
    left = a.left + distance
    moved = replace(a, left=left, right=left if problem.symmetric else a.right + distance)
    assert relative(kernel_matrix(moved), kernel_matrix(a)) <= 1e-10


@given(problems(NOT_DELTA, masked=False, measured=False), st.sampled_from(EXACT))
def test_a_whole_number_as_measure_is_as_many_copies_of_the_position(problem, backend):
    a, z = problem.affinity, problem.z
    counts = 1 + (problem.normal(9, problem.positions).abs() * 1.5).long().clamp(max=2)
    index = torch.repeat_interleave(torch.arange(problem.positions), counts)
    left = a.left[:, index]
    copied = replace(a, left=left, right=left if problem.symmetric else a.right[:, index])
    weighed = replace(a, measure=counts.double())
    actual = diffuse(weighed, z, backend=backend)[:, index]
    assert relative(actual, diffuse(copied, z[:, index], backend=backend)) <= 1e-12


@given(problems(("heat",), ("sinkhorn",)))
def test_sinkhorn_of_heat_is_sinkhorn_of_gaussian_with_twice_the_scale(problem):
    a = problem.affinity
    assert relative(kernel_matrix(replace(a, kind="gaussian", scale=2 * a.scale)), kernel_matrix(a)) <= 1e-11
