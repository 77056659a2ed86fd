"""The spectral gap, on chains whose eigenvalues are known."""

import math

import pytest
import torch
from chains import chain, cycle, drift, two_states

from nonloc.ops import Affinity, SparseAffinity
from nonloc.processes import JumpProcess
from problems import affinity, features, relative

METHODS = ["dense", "lanczos"]


def heat(normalize="row", positions=40, **keywords):
    x = features("heat", normalize, positions=positions)
    return Affinity(x, x, "heat", normalize, 0.7, **keywords)


class TestGap:
    @pytest.mark.parametrize("method", METHODS)
    def test_two_states(self, method):
        process = JumpProcess(two_states(0.9, 0.8))
        assert float(process.spectral_gap(method=method)) == pytest.approx(1.7, abs=1e-14)
        assert float(process.spectral_gap(absolute=True, method=method)) == pytest.approx(0.3, abs=1e-14)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_cycle(self, method):
        gap = JumpProcess(cycle(15)).spectral_gap(method=method)
        assert float(gap) == pytest.approx(1 - math.cos(2 * math.pi / 15), rel=1e-9)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_walk_in_step_never_settles_in_discrete_time(self, method):
        assert float(JumpProcess(cycle(8)).spectral_gap(absolute=True, method=method)) == 0
        assert float(JumpProcess(cycle(8)).spectral_gap(method=method)) > 0.2

    @pytest.mark.parametrize("method", METHODS)
    def test_two_parts_that_never_meet_have_none(self, method):
        block = torch.full((3, 3), 1 / 3)
        assert float(JumpProcess(chain(torch.block_diag(block, block))).spectral_gap(method=method)) == 0

    @pytest.mark.parametrize("method", METHODS)
    def test_all_alike_are_mixed_by_one_jump(self, method):
        for absolute in (False, True):
            gap = JumpProcess(chain(torch.ones(6, 6))).spectral_gap(absolute=absolute, method=method)
            assert float(gap) == pytest.approx(1, abs=1e-12)

    @pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
    def test_dense_is_the_second_eigenvalue(self, normalize):
        process = JumpProcess(heat(normalize))
        values = torch.linalg.eigvals(process.transition_matrix()).real.sort(-1).values
        assert relative(process.spectral_gap().value, 1 - values[:, -2]) < 1e-12

    @pytest.mark.parametrize("absolute", [False, True])
    @pytest.mark.parametrize("kernel", [heat(), heat("sinkhorn"), affinity("gaussian", positions=40)])
    def test_lanczos_comes_close_from_above_and_says_that_it_is_an_estimate(self, kernel, absolute):
        process = JumpProcess(kernel)
        exact = process.spectral_gap(absolute=absolute, method="dense")
        found = process.spectral_gap(absolute=absolute, method="lanczos")
        assert (exact.kind, found.kind) == ("exact", "estimate")
        assert relative(found.value, exact.value) < 1e-8
        assert bool((found.value >= exact.value - 1e-13).all())
        assert bool((found.residual <= 1e-5).all())

    def test_lanczos_resolves_a_small_gap_of_a_large_graph(self):
        size = 1200
        found = JumpProcess(cycle(size)).spectral_gap()
        assert found.kind == "estimate"
        assert float(found) == pytest.approx(1 - math.cos(2 * math.pi / size), rel=1e-6)

    @pytest.mark.parametrize("method", METHODS)
    def test_masked_positions_have_no_part_in_it(self, method):
        mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
        whole = heat(positions=6, mask=mask)
        kept = whole.left[1:, mask[1]]
        expected = JumpProcess(Affinity(kept, kept, "heat", "row", 0.7)).spectral_gap(method=method).value
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

    def test_a_drift_does_not_change_the_gap_of_a_circle_in_continuous_time(self):
        found = JumpProcess(drift(9, 0.9)).spectral_gap()
        assert float(found) == pytest.approx(1 - math.cos(2 * math.pi / 9), rel=1e-12)

    def test_a_single_position_has_nothing_to_approach(self):
        assert float(JumpProcess(chain([[1.0]])).spectral_gap()) == 1

    def test_an_unknown_method_lists_the_choices(self):
        with pytest.raises(ValueError, match="choose one of auto, dense, lanczos"):
            JumpProcess(cycle(4)).spectral_gap(method="power")


def test_a_graph_too_large_for_its_matrix():
    size = 20_000
    index = torch.arange(size)
    entries = torch.stack([torch.cat([index, index]), torch.cat([(index + 1) % size, (index - 1) % size])])
    graph = torch.sparse_coo_tensor(
        entries, torch.ones(2 * size, dtype=torch.float64), (size, size), check_invariants=False
    )
    process = JumpProcess(SparseAffinity(graph.to_sparse_csr()))
    assert process.is_reversible()
    assert relative(process.stationary_law(), torch.full((1, size), 1 / size, dtype=torch.float64)) < 1e-15
