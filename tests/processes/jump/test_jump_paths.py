"""Walkers: their laws are those of the master equation, by chi-square tests with a false-alarm rate of 1e-6 each."""

from dataclasses import replace

import pytest
import torch
from chains import chain, cycle, drift, surprise, two_states

from nonloc.ops import Affinity, kernel_matrix
from nonloc.processes import JumpProcess, simulate
from nonloc.processes.jump import paths
from problems import JOINING, affinity, decoration, features, generator, relative, symmetric

WALKERS = 50_000
STEPS = 3


def dense(normalize="row"):
    return symmetric("heat", normalize, 0.3, batch=1, positions=12)


def sparse():
    weights = torch.rand(12, 12, generator=generator(4), dtype=torch.float64) * (1 - torch.eye(12))
    return chain(torch.where(weights > 0.4, weights, 0))


PROBLEMS = {
    "dense": dense,
    "two embeddings": lambda: affinity("gaussian", batch=1, positions=12, scale=0.2),
    "sinkhorn": lambda: dense("sinkhorn"),
    "sparse": sparse,
}


def counts_of(positions, size):
    return torch.bincount(positions, minlength=size)


def pair_counts(before, after, size):
    return torch.bincount(before * size + after, minlength=size * size).view(size, size)


def start_at_0():
    return torch.eye(12, dtype=torch.float64)[:1].unsqueeze(-1)


@pytest.mark.parametrize("name", PROBLEMS)
def test_final_laws_in_discrete_time(name):
    process = JumpProcess(PROBLEMS[name]())
    final = process.sample_paths(WALKERS, STEPS, start=0, only_final=True, generator=generator())
    assert surprise(counts_of(final, 12), simulate(process, start_at_0(), num_steps=STEPS).final) < 1


@pytest.mark.parametrize("name", PROBLEMS)
def test_final_laws_in_continuous_time(name):
    process = JumpProcess(PROBLEMS[name]())
    final = process.sample_paths(WALKERS, until=1.5, start=0, only_final=True, generator=generator(1))
    law = simulate(process, start_at_0(), num_steps=1, step_size=1.5, stepper="exact").final
    assert surprise(counts_of(final, 12), law) < 1


def test_the_test_tells_the_kernel_from_its_transpose():
    process = JumpProcess(PROBLEMS["two embeddings"]())
    final = process.sample_paths(WALKERS, 1, start=0, only_final=True, generator=generator())
    wrong = process.transition_matrix()[0, :, 0]
    assert surprise(counts_of(final, 12), wrong / wrong.sum()) > 10


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({"step_size": 1.0}, lambda process: process.transition_matrix(1.0)[0]),
        ({"step_size": 0.4}, lambda process: process.transition_matrix(0.4)[0]),
        # Continuous time is seen at equally spaced times.
        (
            {"until": 1.4},
            lambda process: torch.matrix_exp(0.7 * (process.transition_matrix()[0] - torch.eye(4))),
        ),
    ],
)
def test_one_step_is_independent_of_the_step_before(options, step):
    process = JumpProcess(drift(4, 0.8))
    matrix = step(process)
    walk = process.sample_paths(WALKERS, 2, start=1, generator=generator(2), **options)
    assert surprise(pair_counts(walk[1], walk[2], 4), matrix[1].unsqueeze(-1) * matrix) < 1


def test_waiting_times_are_exponential_with_mean_1():
    never_back = chain([[0.0, 1.0], [0.0, 0.0]])
    walk = JumpProcess(never_back).sample_paths(WALKERS, 4, until=2.0, start=0, generator=generator(4))
    jumped_by = 1 - torch.exp(-torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64))
    law = torch.cat([jumped_by.diff(prepend=torch.zeros(1)), 1 - jumped_by[-1:]])
    first = torch.cat([walk[1:].diff(dim=0, prepend=walk[:1]), 1 - walk[-1:]]).sum(1)
    assert surprise(first, law) < 1


def test_a_start_law_is_drawn_from():
    law = torch.tensor([0.1, 0.0, 0.6, 0.3], dtype=torch.float64)
    start = JumpProcess(cycle(4)).sample_paths(WALKERS, 0, start=law, generator=generator(5))[0]
    assert surprise(counts_of(start, 4), law) < 1


def test_without_a_start_walkers_begin_at_any_valid_position():
    x = features("heat", "row", batch=2)
    mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
    process = JumpProcess(Affinity(x, x, "heat", mask=mask))
    start = process.sample_paths(WALKERS, 0, sample=1, generator=generator(6))[0]
    assert surprise(counts_of(start, 6), mask[1].double() / 5) < 1


def test_a_sample_of_the_batch_walks_on_its_own_kernel():
    process = JumpProcess(affinity("heat", batch=2, scale=0.3))
    final = process.sample_paths(WALKERS, 1, start=2, sample=1, only_final=True, generator=generator(7))
    matrix = process.transition_matrix()
    assert surprise(counts_of(final, 6), matrix[1, 2]) < 1
    assert surprise(counts_of(final, 6), matrix[0, 2]) > 10


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_uniform_numbers_stay_within_the_support(uniform):
    process = JumpProcess(
        chain([[0.0, 1e-300, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    )
    jump = paths._jump(process._wide, 0)
    arrived = jump(torch.tensor([1, 2, 3]), torch.full((3,), uniform, dtype=torch.float64))
    assert arrived.tolist() == [2, 0, 1]


def test_walkers_stay_at_masked_and_empty_positions():
    x = features("heat", "row", batch=1)
    mask = torch.tensor([[True, True, False, True, True, True]])
    masked = JumpProcess(Affinity(x, x, "heat", mask=mask))
    assert bool((masked.sample_paths(100, 5, start=2, generator=generator()) == 2).all())
    assert not bool((masked.sample_paths(100, 5, start=0, generator=generator()) == 2).any())
    empty = JumpProcess(chain([[0.0, 1.0], [0.0, 0.0]]))
    assert bool((empty.sample_paths(100, until=5.0, start=1, generator=generator()) == 1).all())


class TestBlocksOfRows:
    def test_they_give_the_walk_of_the_whole_table(self, monkeypatch):
        process = JumpProcess(affinity("gaussian", positions=40, batch=1))
        whole = process.sample_paths(3000, 5, generator=generator(1))
        monkeypatch.setattr(paths, "BLOCK_ENTRIES", 150)
        assert torch.equal(process.sample_paths(3000, 5, generator=generator(1)), whole)

    def test_only_occupied_rows_are_made_and_few_at_a_time(self, monkeypatch):
        asked = []

        def watched(affinity, rows):
            asked.append(rows)
            return kernel_rows(affinity, rows)

        kernel_rows = paths.kernel_rows
        monkeypatch.setattr(paths, "kernel_rows", watched)
        monkeypatch.setattr(paths, "BLOCK_ENTRIES", 4000)
        process = JumpProcess(affinity("heat", positions=400, batch=1))
        walk = process.sample_paths(500, 2, start=7, generator=generator(1))
        assert asked[0].tolist() == [7]
        assert all(len(rows) <= 10 for rows in asked)
        assert torch.equal(torch.cat(asked[1:]), walk[1].unique())


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "give num_steps for discrete time, or until"),
        ({"until": -1.0}, "until must be a finite time ≥ 0"),
        ({"until": 1.0, "step_size": 0.5}, "step_size belongs to discrete time"),
        ({"until": 1.0, "num_steps": 0}, "num_steps must be ≥ 1 with until"),
        ({"num_steps": 1, "sample": 1}, "sample must be one of 0 … 0"),
        ({"num_steps": 1, "start": 2}, "start has positions outside 0 … 1"),
        ({"num_steps": 1, "start": -(10**20)}, "start has positions outside 0 … 1"),
        ({"num_steps": 1, "start": 10**20}, "start has positions outside 0 … 1"),
        ({"num_steps": 1, "start": torch.tensor([0, 1])}, "one position for each of the 3 walkers"),
        ({"num_steps": 1, "start": torch.tensor([1.0, -1.0])}, "start as a law must be ≥ 0"),
        ({"num_steps": 1, "start": torch.ones(3)}, r"start as a law must be \[M\] = \[2\]"),
        ({"num_steps": 1, "start": "here"}, "start must be a position, a tensor or None"),
    ],
)
def test_what_is_asked_for_wrongly(keywords, message):
    with pytest.raises(ValueError, match=message):
        JumpProcess(two_states(0.3, 0.5)).sample_paths(3, **keywords)


ROWS = torch.tensor([4, 0, 3])


@pytest.mark.parametrize("form", ["plain", "both"])
@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
@pytest.mark.parametrize("kind", JOINING)
def test_rows_are_those_of_the_matrix(kind, normalize, form):
    whole = symmetric(kind, normalize, **decoration(form))
    actual = paths.kernel_rows(paths.row_normalized(whole.sample(1)), ROWS)
    assert relative(actual, kernel_matrix(whole)[1, ROWS]) < 1e-13


def test_a_scaling_far_outside_the_range_of_numbers():
    x = torch.linspace(0, 60, 6, dtype=torch.float64).view(1, 6, 1)
    whole = Affinity(x, x, "gaussian", "sinkhorn")
    actual = paths.kernel_rows(paths.row_normalized(whole), ROWS)
    assert relative(actual, kernel_matrix(whole)[0, ROWS]) < 1e-10


@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
def test_walkers_on_a_graph_with_a_measure_go_by_the_rows_of_the_matrix(normalize):
    omega = torch.rand(5, 5, generator=generator(), dtype=torch.float64)
    measure = torch.rand(5, generator=generator(2), dtype=torch.float64) + 0.1
    whole = replace(chain(omega + omega.T, normalize), measure=measure)
    jump, uniform = paths._jump(JumpProcess(whole)._wide, 0), torch.linspace(0, 0.999, 50).double()
    for position, row in enumerate(kernel_matrix(whole)[0]):
        expected = torch.searchsorted(row.cumsum(0), uniform, right=True)
        assert torch.equal(jump(torch.full((50,), position), uniform), expected)
