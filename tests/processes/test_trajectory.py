"""The numbers of a trajectory against their definitions; and a process from outside the package."""

import inspect
import textwrap

import pytest
import torch

from nonloc.ops import Affinity, SparseAffinity, diffuse, dirichlet_energy, prepare, self_adjoint_weights
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, Process, simulate
from problems import FORMS, affinity, decoration, relative, signal, symmetric


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_their_definitions(form):
    a = symmetric(**decoration(form))
    run = simulate(Diffusion(a), signal(a), num_steps=3, step_size=0.3)
    plain = torch.ones(2, 6, dtype=torch.float64)
    plain = plain * (1 if a.mask is None else a.mask) * (1 if a.measure is None else a.measure)
    balance = self_adjoint_weights(a)
    for n in range(4):
        z = run.states[n]

        def average(values, weights):
            return torch.einsum("bm,bmc->bc", weights, values) / weights.sum(-1, keepdim=True)

        mean = average(z, plain)
        assert relative(run.mean[n], mean) <= 1e-14
        assert relative(run.variance[n], average((z - mean.unsqueeze(1)).square(), plain)) <= 1e-14
        assert relative(run.weighted_mean[n], average(z, balance)) <= 1e-14
        assert relative(run.energy[n], dirichlet_energy(a, z)) <= 1e-14


def test_no_balance_no_weighted_mean():
    a = affinity("gaussian")
    run = simulate(Diffusion(a), signal(a), num_steps=1)
    assert run.weighted_mean is None
    assert run.energy.shape == (2, 2)


class Rest(Process):
    """A process of one's own in which nothing moves."""

    def __init__(self, affinity):
        self.affinity = affinity

    def rate(self, z):
        return torch.zeros_like(z)


@pytest.mark.parametrize("make", [Diffusion, DampedFlow, JumpProcess, Rest])
def test_numbers_of_a_state_in_half_precision_are_float32(make):
    """The energy of 4 and 0 on two points that are alike is 16/2, and of both channels, 700 times as large, 7e6."""
    same = torch.zeros(1, 2, 1)
    z = torch.tensor([[[4.0, 2800.0], [0.0, 0.0]]], dtype=torch.float16)
    run = simulate(make(Affinity(same, same, "heat")), z, num_steps=0)
    assert {run.mean.dtype, run.variance.dtype, run.energy.dtype} == {torch.float32}
    # That of a law is of its density p/π, π = 1/2, in the norm of π: twice as large.
    expected = (4**2 + 2800**2) / 2 * (2 if make is JumpProcess else 1)
    assert run.energy.item() == pytest.approx(expected, rel=1e-6)


def test_shapes_and_what_it_says():
    a = affinity("heat", "sinkhorn")
    run = simulate(Diffusion(a), signal(a), num_steps=5, step_size=0.2, save_every=2)
    assert run.states.shape == (4, 2, 6, 4)
    assert run.mean.shape == run.weighted_mean.shape == run.variance.shape == (4, 2, 4)
    assert run.energy.shape == (4, 2)
    assert run.times.dtype == torch.float64
    assert torch.equal(run.final, run.states[-1])
    text = repr(run)
    assert text.startswith("Trajectory(finished: 4 states of [2, 6, 4], t = 0 … 1, variance 1.")
    assert "energy" in text
    with pytest.raises(AttributeError):
        run.states = None


def test_without_edges_all_count_alike():
    graph = SparseAffinity(torch.zeros(3, 3, dtype=torch.float64).to_sparse_csr(), "row")
    z = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64).view(1, -1, 1)
    assert simulate(Diffusion(graph), z, num_steps=1).weighted_mean.flatten().tolist() == [3.0, 3.0]


def example():
    """The class that Process's docstring shows."""
    text = inspect.getdoc(Process)
    code = textwrap.dedent(text[text.index("    class Reaction") : text.index(">>>")])
    names = {"Process": Process, "diffuse": diffuse, "prepare": prepare, "torch": torch}
    exec(code, names)
    return names["Reaction"]


def test_the_example_moves_by_its_equation():
    a = symmetric("heat", "sinkhorn")
    z = signal(a)
    process = example()(a)
    assert relative(process.rate(z), diffuse(a, z) + z - z**3) <= 1e-13
    run = simulate(process, z, num_steps=2, step_size=0.1)
    assert relative(run.energy[0], dirichlet_energy(a, z)) <= 1e-13
    assert relative(process.rate(z.float()), process.rate(z)) <= 1e-5


def test_an_affinity_that_is_exchanged_is_seen():
    class Following(Process):
        is_linear = False

        def rate(self, z):
            self.affinity = Affinity(z, z, "heat")
            return diffuse(self.affinity, z)

    z = signal(symmetric("heat", "sinkhorn"))
    process = Following()
    for state in (z, 2 * z):
        process.rate(state)
        expected = dirichlet_energy(Affinity(state, state, "heat"), state)
        assert relative(process.energy(state), expected) <= 1e-14
