"""A process of one's own: its docstring's example, and a kernel that is normalised once."""

import inspect
import textwrap

import torch

from nonloc.ops import Affinity, diffuse, dirichlet_energy, prepare
from nonloc.processes import Process, kernel, simulate
from problems import features, relative, signal


def example():
    """The class that Process's docstring shows."""
    text = inspect.getdoc(Process)
    code = textwrap.dedent(text[text.index("    class Reaction") :])
    names = {"Process": Process, "prepare": prepare, "torch": torch}
    exec(code, names)
    return names["Reaction"]


def doubly_stochastic():
    x = features("heat", "symmetric")
    return Affinity(x, x, "heat", "sinkhorn")


def test_the_example_moves_by_its_equation():
    a = doubly_stochastic()
    z = signal(a)
    process = example()(a)
    assert relative(process.rate(z), diffuse(a, z) + z - z**3) <= 1e-13
    run = simulate(process, z, num_steps=2, step_size=0.1)
    assert relative(run.energy[0], dirichlet_energy(a, z)) <= 1e-13


def test_the_energy_of_every_state_is_taken_with_a_kernel_that_is_made_ready_once(monkeypatch):
    calls = []
    real = kernel.prepare
    monkeypatch.setattr(kernel, "prepare", lambda *args: calls.append(args) or real(*args))
    a = doubly_stochastic()
    simulate(example()(a), signal(a), num_steps=5, step_size=0.1)
    assert len(calls) == 1


def test_an_affinity_that_is_exchanged_is_seen():
    class Following(Process):
        is_linear = False

        def rate(self, z):
            self.affinity = Affinity(z, z, "heat")
            return diffuse(self.affinity, z)

    z = signal(doubly_stochastic())
    process = Following()
    for state in (z, 2 * z):
        process.rate(state)
        assert (
            relative(process.energy(state), dirichlet_energy(Affinity(state, state, "heat"), state)) <= 1e-14
        )
