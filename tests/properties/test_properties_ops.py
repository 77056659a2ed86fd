"""Properties of the operator: what it conserves, what it is equivariant to, and what equals what."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import norm, problems

from nonloc.ops import (
    Affinity,
    aggregate,
    diffuse,
    dirichlet_energy,
    kernel_matrix,
    propagate,
    row_sums,
    self_adjoint_weights,
)
from problems import EXACT, relative

NOT_DELTA = ("gaussian", "heat", "dot", "concat")
NOT_ROW = ("none", "count", "symmetric", "sinkhorn")
FACTORS = st.floats(0.1, 4)


def is_valid(problem):
    """1 where a position is valid [B, M]."""
    shape = (problem.batch, problem.positions)
    return torch.ones(shape, dtype=torch.float64) if problem.mask is None else problem.mask.double()


def mass(problem):
    """What each position weighs [B, M]."""
    return is_valid(problem) if problem.measure is None else is_valid(problem) * problem.measure


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


@given(problems())
def test_energy_is_the_double_sum(problem):
    kernel, z = kernel_matrix(problem.affinity), problem.z
    squares = (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1)
    assert relative(dirichlet_energy(problem.affinity, z), 0.5 * (kernel * squares).sum((1, 2))) <= 1e-12


@given(problems(symmetric=True, positive=True))
def test_diffusion_takes_from_the_norm_what_the_balanced_energy_says(problem):
    z, kernel = problem.z, kernel_matrix(problem.affinity)
    weights = self_adjoint_weights(problem.affinity)
    squares = (z.unsqueeze(1) - z.unsqueeze(2)).square().sum(-1)
    truth = 0.5 * (weights.unsqueeze(-1) * kernel * squares).sum((1, 2))
    actual = -(weights.unsqueeze(-1) * z * diffuse(problem.affinity, z)).sum((1, 2))
    size = weights.amax() * (1 + row_sums(problem.affinity).amax())
    assert relative(actual / size, truth / size) <= 1e-12


@given(problems())
def test_positions_permuted_are_an_output_permuted(problem):
    a, order = problem.affinity, torch.argsort(problem.normal(9, problem.positions))
    left = a.left[:, order]
    moved = replace(
        a,
        left=left,
        right=left if problem.symmetric else a.right[:, order],
        mask=None if a.mask is None else a.mask[:, order],
        measure=None if a.measure is None else a.measure[order],
    )
    assert relative(diffuse(moved, problem.z[:, order]), diffuse(a, problem.z)[:, order]) <= 1e-12


@given(problems(), st.floats(-3, 3), st.floats(-3, 3))
def test_linear_in_the_signal(problem, alpha, beta):
    a, u, v = problem.affinity, problem.z, problem.signal(9)
    assert relative(diffuse(a, alpha * u + beta * v), alpha * diffuse(a, u) + beta * diffuse(a, v)) <= 1e-12


@given(problems(kinds=("heat",)), st.floats(-50, 50))
def test_heat_does_not_see_a_translation(problem, distance):
    a = problem.affinity
    left = a.left + distance
    moved = replace(a, left=left, right=left if problem.symmetric else a.right + distance)
    assert relative(kernel_matrix(moved), kernel_matrix(a)) <= 1e-10


@given(problems(kinds=("heat", "gaussian", "dot"), normalizations=("none", "count")))
def test_kernels_of_inner_products_do_not_see_a_rotation(problem):
    a = problem.affinity
    rotation = torch.linalg.qr(problem.normal(9, problem.width, problem.width)).Q
    left = a.left @ rotation
    moved = replace(a, left=left, right=left if problem.symmetric else a.right @ rotation)
    assert relative(kernel_matrix(moved), kernel_matrix(a)) <= 1e-12


@given(problems(batch=2))
def test_samples_do_not_see_one_another(problem):
    a, together = problem.affinity, aggregate(problem.affinity, problem.z)
    for n in range(2):
        one = slice(n, n + 1)
        left = a.left[one]
        right = left if problem.symmetric else a.right[one]
        alone = replace(a, left=left, right=right, mask=None if a.mask is None else a.mask[one])
        assert relative(aggregate(alone, problem.z[one]), together[one]) <= 1e-12


@given(problems(masked=True, batch=1), st.sampled_from(EXACT))
def test_a_mask_is_as_good_as_taking_positions_away(problem, backend):
    a, keep = problem.affinity, problem.mask[0]
    left = a.left[:, keep]
    right = left if problem.symmetric else a.right[:, keep]
    measure = None if a.measure is None else a.measure[keep]
    smaller = replace(a, left=left, right=right, mask=None, measure=measure)
    actual = diffuse(a, problem.z, backend=backend)
    assert relative(actual[:, keep], diffuse(smaller, problem.z[:, keep], backend=backend)) <= 1e-12
    assert not bool(actual[:, ~keep].any())


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


@given(problems(("gaussian", "dot"), ("row", "count", "none")), FACTORS)
def test_a_scale_can_be_folded_into_one_side(problem, factor):
    a = problem.affinity
    scaled = aggregate(replace(a, scale=factor), problem.z)
    assert relative(scaled, aggregate(replace(a, left=factor * a.left, scale=1.0), problem.z)) <= 1e-12


@given(problems(("dot", "concat"), ("sinkhorn",), masked=False))
def test_sinkhorn_does_not_see_a_symmetric_scaling(problem):
    """u Ω u does not change when Ω becomes D Ω D, since D u takes the place of u."""
    weights = torch.exp(0.5 * problem.normal(9, problem.positions))
    # Any Ω is a dot product of its own rows with the unit vectors.
    identity = torch.eye(problem.positions, dtype=torch.float64).expand(problem.batch, -1, -1)
    omega = kernel_matrix(replace(problem.affinity, normalize="none", measure=None))
    scaled = weights.unsqueeze(-1) * omega * weights
    first, second = (
        kernel_matrix(Affinity(x, identity, "dot", "sinkhorn", measure=problem.measure))
        for x in (omega, (scaled + scaled.mT) / 2)
    )
    assert relative(first, second) <= 1e-11


@given(problems(("heat",), ("row",), batch=1, measured=False))
def test_heat_by_rows_is_gaussian_with_a_measure(problem):
    """−s|l − r|² = 2s l·r − s|r|² − s|l|², and the last is the same along a row."""
    a = problem.affinity
    measure = torch.exp(-a.scale * a.right[0].square().sum(-1))
    gaussian = replace(a, kind="gaussian", scale=2 * a.scale, measure=measure)
    assert relative(kernel_matrix(gaussian), kernel_matrix(a)) <= 1e-12


@given(problems(("heat",), ("sinkhorn",)))
def test_sinkhorn_of_heat_is_sinkhorn_of_gaussian_with_twice_the_scale(problem):
    a = problem.affinity
    assert relative(kernel_matrix(replace(a, kind="gaussian", scale=2 * a.scale)), kernel_matrix(a)) <= 1e-11


@given(problems(normalizations=("row", "sinkhorn"), positive=True))
def test_averages_lie_between_the_extremes(problem):
    keep = is_valid(problem).bool().unsqueeze(-1)
    low = torch.where(keep, problem.z, torch.inf).amin(1, keepdim=True)
    high = torch.where(keep, problem.z, -torch.inf).amax(1, keepdim=True)
    actual = aggregate(problem.affinity, problem.z)
    inside = (actual >= low - 1e-12) & (actual <= high + 1e-12)
    assert bool((inside | ~keep).all())


@given(
    problems(symmetric=True, positive=True, measured=None, normalizations=("row", "symmetric", "sinkhorn"))
)
def test_divided_kernels_are_contractions_in_their_own_norm(problem):
    weights = self_adjoint_weights(problem.affinity)
    before, after = norm(problem.z, weights), norm(aggregate(problem.affinity, problem.z), weights)
    assert bool((after <= (1 + 1e-12) * before).all())


def weight(problem, stream, scale=0.3):
    return scale * problem.normal(stream, problem.channels, problem.channels)


@given(problems(normalizations=("row", "count", "symmetric", "sinkhorn")), st.integers(1, 3))
def test_a_pair_of_weights_stands_for_its_product(problem, rank):
    outer, inner = problem.normal(9, problem.channels, rank), problem.normal(10, rank, problem.channels)
    actual = propagate(problem.affinity, problem.z, [(outer, inner)] * 2)
    assert relative(actual, propagate(problem.affinity, problem.z, [outer @ inner] * 2)) <= 1e-12


@given(problems(), st.integers(0, 4))
def test_propagation_is_step_after_step(problem, steps):
    a, truth = problem.affinity, problem.z
    weights = [weight(problem, 10 + n) for n in range(steps)]
    for w in weights:
        truth = truth + diffuse(a, truth) @ w.mT
    assert relative(propagate(a, problem.z, weights), truth) <= 1e-11


@given(problems())
def test_propagation_commutes_with_a_change_of_channels(problem):
    """In other coordinates of the channels, z Qᵀ, the weight is Q W Q⁻¹."""
    turn = torch.linalg.qr(problem.normal(9, problem.channels, problem.channels)).Q
    w = weight(problem, 10)
    actual = propagate(problem.affinity, problem.z @ turn.mT, [turn @ w @ turn.mT])
    assert relative(actual, propagate(problem.affinity, problem.z, [w]) @ turn.mT) <= 1e-12
