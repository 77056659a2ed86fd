"""Properties of processes: what a simulation conserves, what it cannot make grow, which routes agree."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nonloc.ops import Affinity, kernel_matrix, self_adjoint_weights
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, cfl_limit, simulate
from problems import relative
from strategies import deviation, norm, problems

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
    # Rounding is that of the state, also where a step leaves nothing but its mean.
    assert bool((spread[1:] <= spread[:-1] + 1e-13 * norm(problem.z, weights)).all())


@given(problems(**BALANCED, least=2, masked=False), st.floats(1.01, 3))
def test_beyond_the_limit_some_signal_grows(problem, excess):
    weights = self_adjoint_weights(problem.affinity)
    actual = cfl_limit(problem.affinity)
    assume(actual.limit < 1e6)
    roots = weights.sqrt()
    kernel = kernel_matrix(problem.affinity)
    generator = torch.diag_embed(kernel.sum(-1)) - kernel
    similar = roots.unsqueeze(-1) * generator / roots.unsqueeze(1)
    vectors = torch.linalg.eigh((similar + similar.mT) / 2).eigenvectors
    z = vectors[..., -1:] / roots.unsqueeze(-1)
    run = simulate(Diffusion(problem.affinity), z, num_steps=2, step_size=excess * actual.limit, throw=False)
    growth = norm(run.states[1], weights) / norm(z, weights)
    assert float(growth.max()) >= 1 + 1.9 * (excess - 1)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 2)


@given(problems(**BALANCED), FRACTIONS, st.sampled_from((0.0, 1e3)))
def test_up_to_the_limit_there_is_no_false_alarm(problem, fraction, offset):
    step = fraction * stable_step(problem.affinity)
    run = simulate(Diffusion(problem.affinity), problem.z + offset, num_steps=12, step_size=step)
    assert run.outcome.ending == "finished"


@given(problems(**BALANCED), st.sampled_from(("implicit", "exact", "damped")), st.floats(-3, 4))
def test_implicit_and_exact_steps_of_any_length_are_contractions(problem, way, exponent):
    weights = self_adjoint_weights(problem.affinity)
    process, stepper = Diffusion(problem.affinity, weight=total_weight(problem)), way
    step = 10**exponent if way == "implicit" else 10 ** min(exponent, 0.7)
    if way == "damped":
        assume(problem.kind in ("heat", "gaussian"))  # which are definite
        process, stepper = DampedFlow(problem.affinity), "exact"
    run = simulate(process, problem.z, num_steps=1, step_size=step, stepper=stepper)
    assert bool((norm(run.final, weights) <= NO_GROWTH * norm(problem.z, weights)).all())


@given(problems(normalizations=STOCHASTIC, positive=True), STEPPERS, FRACTIONS)
def test_a_law_stays_a_law(problem, stepper, step):
    run = simulate(JumpProcess(problem.affinity), law(problem), num_steps=2, step_size=step, stepper=stepper)
    assert float(run.states.min()) >= -1e-12
    assert relative(run.states.sum(2), torch.ones_like(run.states.sum(2))) <= 1e-12


@given(problems(normalizations=STOCHASTIC, positive=True))
def test_the_stationary_law_is_a_law_that_stays(problem):
    process = JumpProcess(problem.affinity)
    actual = process.stationary_law()
    assert float(actual.min()) >= 0
    assert relative(actual.sum(-1), torch.ones(problem.batch, dtype=torch.float64)) <= 1e-14
    assert float(process.rate(actual.unsqueeze(-1)).abs().sum((1, 2)).max()) <= 1e-12


@given(problems(normalizations=STOCHASTIC, positive=True), FRACTIONS)
def test_a_transition_matrix_is_stochastic_and_moves_laws(problem, step):
    process, p = JumpProcess(problem.affinity), law(problem)
    matrix = process.transition_matrix(step)
    assert float(matrix.min()) >= 0
    assert relative(matrix.sum(-1), torch.ones_like(matrix.sum(-1))) <= 1e-14
    assert relative(matrix.mT @ p, process.evolve(p, step)) <= 1e-13
