"""Properties of processes: what a simulation conserves, what it cannot make grow, which routes agree."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.linalg import expm
from strategies import deviation, norm, problems

from nonloc.ops import (
    Affinity,
    SparseAffinity,
    dirichlet_energy,
    kernel_matrix,
    propagate,
    self_adjoint_weights,
)
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, simulate
from nonloc.processes.stability import cfl_limit
from problems import relative

STOCHASTIC = ("row", "sinkhorn")
BALANCED = {"symmetric": True, "positive": True}
STEPPERS = st.sampled_from(("euler", "exact", "implicit"))
FRACTIONS = st.floats(0.05, 1)
NO_GROWTH = 1 + 1e-11


def stable_step(affinity: Affinity) -> float:
    """The largest h of every sample; 1 where nothing moves."""
    return min(cfl_limit(affinity).limit, 1e3)


def law(problem, stream=9):
    """A law p [B, M, C] without mass in the padding."""
    p = problem.signal(stream).exp()
    p = p if problem.mask is None else p * problem.mask.unsqueeze(-1)
    return p / p.sum(1, keepdim=True)


def total_weight(problem):
    """W = QᵀΛQ with Λ in [0.1, 1]."""
    turn = torch.linalg.qr(problem.normal(11, problem.channels, problem.channels)).Q
    w = turn @ torch.diag(0.1 + 0.9 * problem.normal(12, problem.channels).erf().abs()) @ turn.mT
    return (w + w.mT) / 2


@given(problems(**BALANCED), STEPPERS, FRACTIONS)
def test_every_stepper_conserves_the_weighted_mean(problem, stepper, fraction):
    step = fraction * stable_step(problem.affinity)
    run = simulate(Diffusion(problem.affinity), problem.z, num_steps=2, step_size=step, stepper=stepper)
    assert float((run.weighted_mean - run.weighted_mean[0]).abs().max()) <= 1e-11


@given(problems(**BALANCED), FRACTIONS)
def test_euler_does_not_enlarge_the_variance_up_to_the_limit(problem, fraction):
    weights = self_adjoint_weights(problem.affinity)
    step = fraction * stable_step(problem.affinity)
    run = simulate(Diffusion(problem.affinity), problem.z, num_steps=2, step_size=step)
    spread = torch.stack([norm(deviation(z, weights), weights) for z in run.states])
    assert bool((spread[1:] <= NO_GROWTH * spread[:-1]).all())


@given(problems(**BALANCED, least=2, masked=False), st.floats(1.01, 3))
def test_beyond_the_limit_some_signal_grows(problem, excess):
    weights = self_adjoint_weights(problem.affinity)
    found = cfl_limit(problem.affinity)
    assume(found.limit < 1e6)
    roots = weights.sqrt()
    kernel = kernel_matrix(problem.affinity)
    generator = torch.diag_embed(kernel.sum(-1)) - kernel
    similar = roots.unsqueeze(-1) * generator / roots.unsqueeze(1)
    vectors = torch.linalg.eigh((similar + similar.mT) / 2).eigenvectors
    z = vectors[..., -1:] / roots.unsqueeze(-1)
    run = simulate(Diffusion(problem.affinity), z, num_steps=2, step_size=excess * found.limit, throw=False)
    growth = norm(run.states[1], weights) / norm(z, weights)
    assert float(growth.max()) >= 1 + 1.9 * (excess - 1)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 2)


@given(problems(**BALANCED), FRACTIONS, st.sampled_from((0.0, 1e3)))
def test_up_to_the_limit_there_is_no_false_alarm(problem, fraction, offset):
    step = fraction * stable_step(problem.affinity)
    run = simulate(Diffusion(problem.affinity), problem.z + offset, num_steps=12, step_size=step)
    assert run.outcome.ending == "finished"


@given(problems(normalizations=STOCHASTIC, positive=True), problems(normalizations=("row",), positive=True))
def test_two_kernels_side_by_side_have_two_stationary_laws_and_no_rate(one, other):
    kernels = [kernel_matrix(problem.affinity)[0] for problem in (one, other)]
    both = JumpProcess(SparseAffinity(torch.block_diag(*kernels).to_sparse_csr()))
    laws = both.stationary_laws()
    moved = both.evolve(laws.T.unsqueeze(0))[0].T
    assert len(laws) >= 2
    assert float((laws.sum(-1) - 1).abs().max()) <= 1e-14
    assert float((moved - laws).abs().max()) <= 1e-14
    assert float(both.spectral_gap()) == 0


@given(problems(), FRACTIONS)
def test_euler_is_propagation_with_a_multiple_of_the_identity(problem, step):
    identity = step * torch.eye(problem.channels, dtype=torch.float64)
    run = simulate(Diffusion(problem.affinity), problem.z, num_steps=2, step_size=step, throw=False)
    assert relative(run.final, propagate(problem.affinity, problem.z, [identity] * 2)) <= 1e-11


@given(problems(normalizations=STOCHASTIC), st.floats(0.05, 2))
def test_forwards_and_then_backwards_is_the_identity(problem, time):
    there = simulate(Diffusion(problem.affinity), problem.z, num_steps=1, step_size=time, stepper="exact")
    back = Diffusion(problem.affinity, backwards=True)
    again = simulate(back, there.final, num_steps=1, step_size=time, stepper="exact")
    assert relative(again.final, problem.z) <= 1e-10


@given(problems(normalizations=STOCHASTIC, masked=False), st.floats(0.05, 3))
def test_exact_is_the_exponential_of_the_generator(problem, time):
    kernel, w = kernel_matrix(problem.affinity), total_weight(problem)
    generator = kernel - torch.diag_embed(kernel.sum(-1))
    # scipy's, which is exact to rounding where torch's own is off by up to 1e-10.
    matrix = torch.stack([torch.from_numpy(expm(time * torch.kron(one, w).numpy())) for one in generator])
    truth = (matrix @ problem.z.flatten(1).unsqueeze(-1)).view_as(problem.z)
    process = Diffusion(problem.affinity, weight=w)
    run = simulate(process, problem.z, num_steps=1, step_size=time, stepper="exact")
    assert relative(run.final, truth) <= 1e-11


@given(problems(**BALANCED), st.floats(-3, 4))
def test_implicit_euler_enlarges_nothing_whatever_the_step(problem, exponent):
    weights = self_adjoint_weights(problem.affinity)
    process = Diffusion(problem.affinity, weight=total_weight(problem))
    run = simulate(process, problem.z, num_steps=1, step_size=10**exponent, stepper="implicit")
    assert bool((norm(run.final, weights) <= NO_GROWTH * norm(problem.z, weights)).all())


@given(problems(**BALANCED), st.floats(0.01, 5))
def test_exact_solutions_are_contractions(problem, time):
    weights = self_adjoint_weights(problem.affinity)
    process = Diffusion(problem.affinity, weight=total_weight(problem))
    run = simulate(process, problem.z, num_steps=1, step_size=time, stepper="exact")
    assert bool((norm(run.final, weights) <= NO_GROWTH * norm(problem.z, weights)).all())


@given(
    problems(normalizations=("none", "count", "symmetric", "sinkhorn"), measured=False, **BALANCED), FRACTIONS
)
def test_the_dirichlet_energy_only_falls(problem, time):
    run = simulate(Diffusion(problem.affinity), problem.z, num_steps=2, step_size=time, stepper="exact")
    slack = 1e-12 * float(kernel_matrix(problem.affinity).sum(-1).max())
    assert bool((run.energy[1:] <= run.energy[:-1] + slack).all())
    assert relative(run.energy[-1], dirichlet_energy(problem.affinity, run.final)) <= 1e-12


@given(problems(("heat", "gaussian"), **BALANCED), st.floats(0.01, 5))
def test_the_damped_flow_of_a_definite_kernel_is_a_contraction(problem, time):
    weights = self_adjoint_weights(problem.affinity)
    run = simulate(DampedFlow(problem.affinity), problem.z, num_steps=1, step_size=time, stepper="exact")
    assert bool((norm(run.final, weights) <= NO_GROWTH * norm(problem.z, weights)).all())


@given(problems(normalizations=STOCHASTIC, positive=True), STEPPERS, FRACTIONS)
def test_a_law_stays_a_law(problem, stepper, step):
    run = simulate(JumpProcess(problem.affinity), law(problem), num_steps=2, step_size=step, stepper=stepper)
    assert float(run.states.min()) >= -1e-12
    assert relative(run.states.sum(2), torch.ones_like(run.states.sum(2))) <= 1e-12


@given(problems(normalizations=STOCHASTIC, positive=True))
def test_the_stationary_law_is_a_law_that_stays(problem):
    process = JumpProcess(problem.affinity)
    found = process.stationary_law()
    assert float(found.min()) >= 0
    assert relative(found.sum(-1), torch.ones(problem.batch, dtype=torch.float64)) <= 1e-14
    assert float(process.rate(found.unsqueeze(-1)).abs().sum((1, 2)).max()) <= 1e-12


@given(problems(normalizations=STOCHASTIC, positive=True), FRACTIONS)
def test_a_transition_matrix_is_stochastic_and_moves_laws(problem, step):
    process, p = JumpProcess(problem.affinity), law(problem)
    matrix = process.transition_matrix(step)
    assert float(matrix.min()) >= 0
    assert relative(matrix.sum(-1), torch.ones_like(matrix.sum(-1))) <= 1e-14
    assert relative(matrix.mT @ p, process.evolve(p, step)) <= 1e-13
