"""The mixing time: closed forms, the first time that serves, and what never mixes."""

import math

import pytest
import torch
from chains import chain, cycle, two_states

from nonloc.ops import Affinity
from nonloc.processes import JumpProcess
from nonloc.processes.krylov import dense_exponential
from problems import affinity, features


def heat(normalize="row", positions=40):
    x = features("heat", normalize, positions=positions)
    return Affinity(x, x, "heat", normalize, 0.7)


def distance(process, law, matrix):
    return float((matrix - law).abs().sum(-1).max()) / 2


def test_two_states_in_continuous_time():
    a, b, epsilon = 0.3, 0.5, 0.01
    found = JumpProcess(two_states(a, b)).mixing_time(epsilon)
    assert float(found.exact) == pytest.approx(math.log(0.625 / epsilon) / (a + b), abs=2e-6)
    assert float(found.bound) == pytest.approx(math.log(1 / (epsilon * math.sqrt(0.375))) / (a + b))


def test_two_states_in_discrete_time():
    a, b, epsilon = 0.3, 0.5, 0.01
    found = JumpProcess(two_states(a, b)).mixing_time(epsilon, discrete=True)
    assert float(found.exact) == math.ceil(math.log(0.625 / epsilon) / -math.log(1 - a - b))


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("epsilon", [0.25, 1e-3])
@pytest.mark.parametrize("kernel", [heat(), heat("sinkhorn"), affinity("gaussian", positions=20)])
def test_it_is_the_first_time_and_never_beyond_the_bound(kernel, epsilon, discrete):
    process = JumpProcess(kernel)
    found = process.mixing_time(epsilon, discrete=discrete)
    assert found.kind == "certified"
    assert bool((found.exact <= found.bound).all())
    matrix, law, tick = process.transition_matrix(), process.stationary_law(), 1 if discrete else 2e-6
    for b in range(2):
        time = float(found.exact[b])

        def at(t, b=b):
            if discrete:
                return torch.linalg.matrix_power(matrix[b], int(t))
            return torch.matrix_exp(t * (matrix[b] - torch.eye(len(law[b]), dtype=torch.float64)))

        assert distance(process, law[b], at(time)) <= epsilon * (1 + 1e-9)
        assert distance(process, law[b], at(time - tick)) > epsilon


def test_it_grows_by_the_gap_for_a_small_epsilon():
    process = JumpProcess(cycle(9))
    one, two = (float(process.mixing_time(e).exact) for e in (1e-6, 1e-8))
    assert (two - one) * float(process.spectral_gap()) == pytest.approx(math.log(100), rel=1e-3)


def test_what_never_mixes_takes_for_ever():
    apart = JumpProcess(chain(torch.eye(3))).mixing_time()
    assert apart.bound.tolist() == apart.exact.tolist() == [math.inf]
    assert JumpProcess(cycle(8)).mixing_time(discrete=True).exact.tolist() == [math.inf]
    assert JumpProcess(cycle(8)).mixing_time().exact.isfinite()


def test_a_large_epsilon_needs_no_time():
    assert float(JumpProcess(two_states(0.5, 0.5)).mixing_time(0.6).exact) == 0


def test_an_estimated_gap_gives_an_estimate_and_no_exact_time():
    found = JumpProcess(heat()).mixing_time(method="lanczos")
    assert (found.kind, found.exact) == ("estimate", None)


@pytest.mark.parametrize("epsilon", [0, 1, -0.1, True])
def test_an_epsilon_that_is_no_distance_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a number between 0 and 1"):
        JumpProcess(cycle(5)).mixing_time(epsilon)


@pytest.mark.parametrize("rate", [0.003, 0.01, 0.02])
def test_a_slow_chain_mixes_to_the_last_digits(rate):
    """Of a small generator a wrong coefficient of exp(G) would be seen from an epsilon of 1e-9 on."""
    a, b, epsilon = 0.375 * rate, 0.625 * rate, 1e-9
    found = JumpProcess(two_states(a, b)).mixing_time(epsilon)
    assert float(found.exact) == pytest.approx(math.log(0.625 / epsilon) / rate, abs=1e-3)


@pytest.mark.parametrize("time", [2.0**-k for k in range(0, 21, 2)])
def test_the_law_of_two_states_at_any_time(time):
    """P_t = Π + e^{−(a+b)t} (I − Π), which torch.matrix_exp of one matrix misses by 1e-10."""
    a, b = 0.03, 0.05
    generator = torch.tensor([[-a, a], [b, -b]], dtype=torch.float64)
    rest = torch.tensor([[b, a], [b, a]], dtype=torch.float64) / (a + b)
    truth = rest + math.exp(-(a + b) * time) * (torch.eye(2, dtype=torch.float64) - rest)
    assert float((dense_exponential(time * generator.unsqueeze(0))[0] - truth).abs().max()) <= 1e-15


def test_a_chain_that_is_not_reversible_may_mix_without_a_gap():
    """0 → 1 → 2 → 0 or 1: some deviation survives one step in full, so no bound is known; after 4 steps it is mixed."""
    process = JumpProcess(chain([[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]]))
    found = process.mixing_time(discrete=True)
    assert (float(process.spectral_gap(absolute=True)), float(found.bound)) == (0, math.inf)
    law = process.stationary_law()[0]
    power = [torch.linalg.matrix_power(process.transition_matrix()[0], n) for n in range(5)]
    assert float(found.exact) == next(n for n in range(5) if distance(process, law, power[n]) <= 0.25) == 4


def test_an_epsilon_below_rounding_has_a_bound_and_no_time():
    found = JumpProcess(two_states(0.3, 0.5)).mixing_time(1e-300)
    assert math.isnan(float(found.exact))
    assert float(found.bound) == pytest.approx(math.log(1 / (1e-300 * math.sqrt(0.375))) / 0.8)


def test_a_position_alone_keeps_the_others_from_mixing():
    found = JumpProcess(chain([[0, 1, 0], [1, 0, 0], [0, 0, 0]])).mixing_time()
    assert found.bound.tolist() == found.exact.tolist() == [math.inf]
