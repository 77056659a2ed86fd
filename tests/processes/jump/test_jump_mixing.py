"""The spectral gap and the mixing time, on chains whose eigenvalues are known."""

import math

import pytest
import torch
from chains import chain, cycle, two_states

from nonloc.ops import Affinity
from nonloc.processes import JumpProcess
from problems import affinity, relative, symmetric

METHODS = ["dense", "lanczos"]
HEAT = symmetric(positions=40)
KERNELS = [HEAT, symmetric(normalize="sinkhorn", positions=40), affinity("gaussian", positions=40)]


class TestGap:
    @pytest.mark.parametrize("method", METHODS)
    def test_two_states(self, method):
        process = JumpProcess(two_states(0.9, 0.8))
        assert float(process.spectral_gap(method=method)) == pytest.approx(1.7, abs=1e-14)
        assert float(process.spectral_gap(absolute=True, method=method)) == pytest.approx(0.3, abs=1e-14)

    @pytest.mark.parametrize("method", METHODS)
    def test_it_is_above_1_where_all_other_eigenvalues_are_below_0(self, method):
        """A walker who always moves: all positions alike have 1 and −1/(M − 1), the triangle 1, −4/9 and −5/9."""
        alike = torch.ones(600, 600).fill_diagonal_(0)
        triangle = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.8], [1.0, 0.8, 0.0]]
        for rates, exact in ((alike, 600 / 599), (triangle, 13 / 9)):
            gap = JumpProcess(chain(rates)).spectral_gap(method=method)
            assert float(gap) == pytest.approx(exact, rel=1e-7)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_walk_in_step_never_settles_in_discrete_time(self, method):
        assert float(JumpProcess(cycle(8)).spectral_gap(absolute=True, method=method)) == 0
        assert float(JumpProcess(cycle(8)).spectral_gap(method=method)) > 0.2

    @pytest.mark.parametrize("method", METHODS)
    def test_two_parts_that_never_meet_have_none(self, method):
        block = torch.full((3, 3), 1 / 3)
        assert float(JumpProcess(chain(torch.block_diag(block, block))).spectral_gap(method=method)) == 0

    @pytest.mark.parametrize("absolute", [False, True])
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_lanczos_comes_close_from_above_and_says_that_it_is_an_estimate(self, kernel, absolute):
        process = JumpProcess(kernel)
        exact = process.spectral_gap(absolute=absolute, method="dense")
        mixing = process.spectral_gap(absolute=absolute, method="lanczos")
        assert (exact.kind, mixing.kind) == ("exact", "estimate")
        assert relative(mixing.value, exact.value) < 1e-8
        assert bool((mixing.value >= exact.value - 1e-13).all())
        assert bool((mixing.residual <= 1e-5).all())

    def test_lanczos_resolves_a_small_gap_of_a_large_graph(self):
        size = 1200
        mixing = JumpProcess(cycle(size)).spectral_gap()
        assert mixing.kind == "estimate"
        assert float(mixing) == pytest.approx(1 - math.cos(2 * math.pi / size), rel=1e-6)

    @pytest.mark.parametrize("method", METHODS)
    def test_masked_positions_have_no_part_in_it(self, method):
        mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
        whole = symmetric(mask=mask)
        valid = whole.left[1:, mask[1]]
        expected = JumpProcess(Affinity(valid, valid, "heat")).spectral_gap(method=method).value
        assert relative(JumpProcess(whole).spectral_gap(method=method).value[1:], expected) < 1e-13

    def test_without_reversibility_deviations_shrink_at_least_as_fast_as_the_gap_says(self):
        process = JumpProcess(affinity("gaussian", positions=20, batch=1))
        law, gap = process.stationary_law()[0], process.spectral_gap()
        generator_ = process.transition_matrix()[0] - torch.eye(20, dtype=torch.float64)
        flow = law.sqrt().unsqueeze(-1) * (torch.matrix_exp(0.9 * generator_) - law) / law.sqrt()
        assert float(torch.linalg.matrix_norm(flow, 2)) <= math.exp(-0.9 * float(gap))
        chain_gap = process.spectral_gap(absolute=True)
        step = law.sqrt().unsqueeze(-1) * (process.transition_matrix()[0] - law) / law.sqrt()
        assert float(torch.linalg.matrix_norm(step, 2)) == pytest.approx(1 - float(chain_gap), rel=1e-12)

    def test_a_single_position_has_nothing_to_approach(self):
        assert float(JumpProcess(chain([[1.0]])).spectral_gap()) == 1

    def test_an_unknown_method_lists_the_choices(self):
        with pytest.raises(ValueError, match="choose one of auto, dense, lanczos"):
            JumpProcess(cycle(4)).spectral_gap(method="power")


@pytest.mark.parametrize("epsilon", [0, 1, True])
def test_an_epsilon_that_is_no_distance_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a number between 0 and 1"):
        JumpProcess(cycle(5)).mixing_time(epsilon)


def distance(law, matrix):
    return float((matrix - law).abs().sum(-1).max()) / 2


@pytest.mark.parametrize("discrete", [False, True])
def test_two_states(discrete):
    a, b, epsilon = 0.3, 0.5, 0.01
    time = JumpProcess(two_states(a, b)).mixing_time(epsilon, discrete=discrete)
    if discrete:
        assert float(time.exact) == math.ceil(math.log(0.625 / epsilon) / -math.log(1 - a - b))
    else:
        assert float(time.exact) == pytest.approx(math.log(0.625 / epsilon) / (a + b), abs=2e-6)
        assert float(time.bound) == pytest.approx(math.log(1 / (epsilon * math.sqrt(0.375))) / (a + b))


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("epsilon", [0.25, 1e-3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_the_first_time_and_never_beyond_the_bound(kernel, epsilon, discrete):
    process = JumpProcess(kernel)
    mixing = process.mixing_time(epsilon, discrete=discrete)
    assert mixing.kind == "certified"
    assert bool((mixing.exact <= mixing.bound).all())
    matrix, law, tick = process.transition_matrix(), process.stationary_law(), 1 if discrete else 2e-6
    for b in range(2):
        time = float(mixing.exact[b])

        def at(t, b=b):
            if discrete:
                return torch.linalg.matrix_power(matrix[b], int(t))
            return torch.matrix_exp(t * (matrix[b] - torch.eye(len(law[b]), dtype=torch.float64)))

        assert distance(law[b], at(time)) <= epsilon * (1 + 1e-9)
        assert distance(law[b], at(time - tick)) > epsilon


def test_what_never_mixes_takes_for_ever():
    apart = JumpProcess(chain(torch.eye(3))).mixing_time()
    assert apart.bound.tolist() == apart.exact.tolist() == [math.inf]
    assert JumpProcess(cycle(8)).mixing_time(discrete=True).exact.tolist() == [math.inf]
    assert JumpProcess(cycle(8)).mixing_time().exact.isfinite()


def test_an_estimated_gap_gives_an_estimate_and_no_exact_time():
    mixing = JumpProcess(HEAT).mixing_time(method="lanczos")
    assert (mixing.kind, mixing.exact) == ("estimate", None)


@pytest.mark.parametrize("rate", [0.003, 0.02])
def test_a_slow_chain_mixes_to_the_last_digits(rate):
    """Of a small generator a wrong coefficient of exp(G) would be seen from an epsilon of 1e-9 on."""
    a, b, epsilon = 0.375 * rate, 0.625 * rate, 1e-9
    mixing = JumpProcess(two_states(a, b)).mixing_time(epsilon)
    assert float(mixing.exact) == pytest.approx(math.log(0.625 / epsilon) / rate, abs=1e-3)


def test_a_chain_that_is_not_reversible_may_mix_without_a_gap():
    """0 → 1 → 2 → 0 or 1: some deviation survives one step in full, so no bound is known; after 4 steps it is mixed."""
    process = JumpProcess(chain([[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]]))
    mixing = process.mixing_time(discrete=True)
    assert (float(process.spectral_gap(absolute=True)), float(mixing.bound)) == (0, math.inf)
    law = process.stationary_law()[0]
    power = [torch.linalg.matrix_power(process.transition_matrix()[0], n) for n in range(5)]
    assert float(mixing.exact) == next(n for n in range(5) if distance(law, power[n]) <= 0.25) == 4


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("rate", [2e-13, 2e-14])
def test_a_gap_near_rounding_has_a_bound_that_is_not_too_small(rate, discrete):
    a, b, epsilon = 0.375 * rate, 0.625 * rate, 0.01
    mixing = JumpProcess(two_states(a, b)).mixing_time(epsilon, discrete=discrete)
    assert float(mixing.exact) == pytest.approx(math.log(0.625 / epsilon) / rate, rel=1e-12)
    assert float(mixing.bound) >= math.log(1 / (epsilon * math.sqrt(0.375))) / rate


@pytest.mark.parametrize("discrete", [False, True])
def test_what_mixes_too_late_to_be_followed_is_not_said_to_mix_never(discrete):
    """After 5 · 10¹⁵ jumps, and 2⁵⁰ are 10¹⁵. The gap is within rounding of 0, as it is where a walk never mixes."""
    mixing = JumpProcess(two_states(3e-16, 5e-16)).mixing_time(0.01, discrete=discrete)
    assert math.isnan(float(mixing.exact))
    assert float(mixing.bound) == math.inf


def test_an_epsilon_below_rounding_has_a_bound_and_no_time():
    mixing = JumpProcess(two_states(0.3, 0.5)).mixing_time(1e-300)
    assert math.isnan(float(mixing.exact))
    assert float(mixing.bound) == pytest.approx(math.log(1 / (1e-300 * math.sqrt(0.375))) / 0.8)
