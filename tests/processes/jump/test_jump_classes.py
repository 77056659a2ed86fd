"""Graphs that fall apart: one stationary law for each closed class, and a rate of 0."""

import pytest
import torch
from chains import chain, cycle

from nonloc.ops import Affinity
from nonloc.processes import JumpProcess
from nonloc.processes.jump import stationary
from problems import affinity, features

METHODS = ["dense", "lanczos"]


def blocks(*sizes):
    """Complete graphs side by side."""
    return chain(torch.block_diag(*(torch.ones(size, size) for size in sizes)))


@pytest.mark.parametrize("method", METHODS)
def test_each_component_has_its_own_law_and_nothing_goes_between_them(method):
    process = JumpProcess(blocks(2, 3))
    assert process.stationary_laws().tolist() == [[1 / 2, 1 / 2, 0, 0, 0], [0, 0, 1 / 3, 1 / 3, 1 / 3]]
    assert float(process.spectral_gap(method=method)) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("matrix", "laws"),
    [
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0.5, 0.5, 0], [0, 0, 1]]),  # an isolated position
        ([[1, 0], [0, 0]], [[1, 0], [0, 1]]),
        ([[0, 0], [0, 0]], [[1, 0], [0, 1]]),  # no entry at all
        ([[0, 1, 1], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 1]]),  # 0 is left for good, for 1 or for 2
    ],
)
def test_positions_that_are_never_left_are_classes_of_their_own(matrix, laws, method):
    process = JumpProcess(chain(matrix))
    assert process.stationary_laws().tolist() == laws
    assert float(process.spectral_gap(method=method)) == 0
    assert float(process.spectral_gap(absolute=True, method=method)) == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_walk_with_one_end_has_one_law(method):
    process = JumpProcess(chain([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert process.stationary_laws().tolist() == [[0, 0, 1]]
    assert float(process.spectral_gap(method=method)) == 1


def test_every_law_is_stationary_and_the_one_that_is_chosen_is_a_mixture_of_them():
    matrix = torch.block_diag(torch.rand(3, 3).double(), torch.rand(4, 4).double())
    process = JumpProcess(chain(matrix))
    laws = process.stationary_laws()
    moved = process.evolve(laws.T.unsqueeze(0))[0].T
    assert float((moved - laws).abs().max()) <= 1e-15
    law = process.stationary_law()[0]
    shares = torch.stack([law[:3].sum(), law[3:].sum()])
    assert float((shares @ laws - law).abs().max()) <= 1e-14


def test_a_connected_kernel_has_one_law():
    process = JumpProcess(affinity("gaussian", batch=2))
    for sample in range(2):
        laws = process.stationary_laws(sample)
        assert laws.shape[0] == 1
        assert float((laws[0] - process.stationary_law()[sample]).abs().max()) <= 1e-15


@pytest.mark.parametrize("method", METHODS)
def test_masked_positions_are_no_classes(method):
    x = features("heat", "row")[:1].repeat(2, 1, 1)
    mask = torch.tensor([[True, True, True, False, True, True], [False] * 6])
    process = JumpProcess(Affinity(x, x, "heat", mask=mask))
    assert process.stationary_laws(0).shape[0] == 1
    assert torch.equal(process.stationary_laws(1), torch.eye(6, dtype=torch.float64))
    gap = process.spectral_gap(method=method).value
    assert float(gap[0]) > 0
    assert float(gap[1]) == 0


def test_affinities_that_underflow_fall_apart():
    x = 100 * torch.eye(3, dtype=torch.float64).unsqueeze(0)
    process = JumpProcess(Affinity(x, x, "gaussian"))
    assert torch.equal(process.stationary_laws(), torch.eye(3, dtype=torch.float64))
    assert float(process.spectral_gap()) == 0


@pytest.mark.parametrize("sample", [-1, 1, True, 0.0])
def test_a_sample_that_is_not_there_is_refused(sample):
    with pytest.raises(ValueError, match="sample must be one of 0 … 0"):
        JumpProcess(cycle(4)).stationary_laws(sample)


def test_a_graph_that_is_too_large_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(stationary, "LARGEST_CLASSES", 3)
    with pytest.raises(ValueError, match="M = 4 is more than 3 positions; .*connected_components"):
        JumpProcess(cycle(4)).stationary_laws()
