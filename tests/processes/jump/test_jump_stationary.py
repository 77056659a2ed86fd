"""Stationary laws, closed classes and reversibility, on chains whose answers are known."""

import pytest
import torch
from chains import chain, cycle, drift

from nonloc.ops import Affinity, SparseAffinity, kernel_matrix
from nonloc.processes import JumpProcess, NotSolvedError
from nonloc.processes.jump import stationary
from problems import affinity, features, generator, relative, symmetric


@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
def test_it_is_the_measure_times_the_row_sums_under_row_and_the_measure_under_sinkhorn(normalize):
    measure = torch.rand(6, generator=generator(), dtype=torch.float64) + 0.1
    expected = measure.expand(2, -1)
    if normalize == "row":
        expected = measure * kernel_matrix(symmetric(normalize="none", measure=measure)).sum(-1)
    law = JumpProcess(symmetric(normalize=normalize, measure=measure)).stationary_law()
    assert relative(law, expected / expected.sum(-1, keepdim=True)) < 1e-15


def test_masked_positions_have_no_part_in_it():
    mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
    law = JumpProcess(symmetric(mask=mask)).stationary_law()
    assert float(law[1, 1]) == 0
    assert relative(law.sum(-1), torch.ones(2)) < 1e-15


def test_elimination_is_exact_where_the_walk_hardly_mixes():
    rare = 1e-12
    law = JumpProcess(chain([[1, rare, 0], [0, 1, 1], [3 * rare, 0, 1]])).stationary_law()
    # What leaves each position is the same: π₀ rare/(1 + rare) = π₁/2 = π₂ 3 rare/(1 + 3 rare).
    expected = torch.tensor([[(1 + rare) / rare, 2.0, (1 + 3 * rare) / (3 * rare)]], dtype=torch.float64)
    assert float((law / (expected / expected.sum()) - 1).abs().max()) < 1e-14


def test_a_birth_and_death_chain_has_its_smallest_probabilities_right():
    up, down, size = 1.0, 9.0, 30
    ones = torch.ones(size - 1, dtype=torch.float64)
    matrix = torch.diag(up * ones, 1) + torch.diag(down * ones, -1)
    matrix[0, 0], matrix[-1, -1] = down, up
    law = JumpProcess(chain(matrix)).stationary_law()
    expected = (up / down) ** torch.arange(size, dtype=torch.float64)
    assert float(law.min()) < 1e-27
    assert float((law[0] / (expected / expected.sum()) - 1).abs().max()) < 1e-13


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0.7, 0.3], [0.5, 0.5]], [0.625, 0.375]),
        # A walk that ends somewhere has its end as its law.
        ([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 0.0]], [0.0, 0.0, 1.0]),
        # Where walkers end at two places it is the law of a walker that starts anywhere.
        ([[1.0, 0, 0], [0.3, 0.0, 0.7], [0, 0, 1.0]], [1.3 / 3, 0.0, 1.7 / 3]),
    ],
    ids=["two states", "one end", "two ends"],
)
def test_known_laws(matrix, expected):
    law = JumpProcess(chain(matrix)).stationary_law()
    assert relative(law, torch.tensor([expected], dtype=torch.float64)) < 1e-14


def test_arnoldi_finds_what_elimination_finds(monkeypatch):
    kernel = affinity("gaussian", positions=60)
    expected = JumpProcess(kernel).stationary_law()
    monkeypatch.setattr(stationary, "LARGEST_DENSE", 10)
    assert relative(JumpProcess(kernel).stationary_law(), expected) < 1e-13


def test_a_large_kernel_is_solved_without_its_matrix():
    process = JumpProcess(affinity("heat", positions=1500, batch=1))
    law = process.stationary_law()
    assert float(process.rate(law.unsqueeze(-1)).abs().sum()) < 1e-12


def test_a_law_that_is_not_found_is_an_error_that_names_the_residual(monkeypatch):
    monkeypatch.setattr(stationary, "LARGEST_DENSE", 10)
    monkeypatch.setattr(stationary, "SPACE", 2)
    monkeypatch.setattr(stationary, "MAX_CYCLES", 1)
    with pytest.raises(NotSolvedError, match=r"\|Pᵀπ − π\| is .* and 1e-12 is asked for"):
        JumpProcess(affinity("gaussian", positions=60)).stationary_law()


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (symmetric(), True),
        (symmetric(normalize="sinkhorn"), True),
        (drift(7, 0.5), True),
        (drift(7, 0.5 + 1e-6), False),
        (drift(7, 0.9), False),
    ],
)
def test_symmetric_kernels_and_walks_without_drift_are_reversible(kernel, expected):
    assert JumpProcess(kernel).is_reversible() is expected


def test_a_position_that_none_may_go_to_has_no_share():
    """μ 𝒞 is 0 everywhere: who is at the second moves to the first, and from there none moves."""
    matrix = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).to_sparse_csr()
    kernel = SparseAffinity(matrix, "row", measure=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert JumpProcess(kernel).stationary_law().tolist() == [[1.0, 0.0]]


def test_an_empty_batch_has_no_laws():
    x = torch.randn(0, 6, 2, dtype=torch.float64)
    process = JumpProcess(Affinity(x, x, "heat"))
    assert process.stationary_law().shape == (0, 6)
    with pytest.raises(ValueError, match=r"the batch is empty \(B = 0\)"):
        process.stationary_laws()


METHODS = ["dense", "lanczos"]


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


def test_a_graph_that_is_too_large_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setattr(stationary, "LARGEST_CLASSES", 3)
    with pytest.raises(ValueError, match="M = 4 is more than 3 positions; .*connected_components"):
        JumpProcess(cycle(4)).stationary_laws()
