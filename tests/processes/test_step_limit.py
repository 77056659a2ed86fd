"""What is said of the largest stable step, against eigenvalues, and a step that is named and works."""

import re

import pytest
import torch
from generators import path_graph

from nonloc.ops import Affinity
from nonloc.processes import DampedFlow, Diffusion, cfl_limit, simulate
from nonloc.processes.watch import describe_limit, estimate_euler_step
from problems import features, signal

DEFINITE = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)  # eigenvalues 0.5 and 1.5


def heat(normalize):
    x = features("heat", "symmetric")[:1]
    return Affinity(x, x, "heat", normalize)


@pytest.mark.parametrize("normalize", ["row", "count", "none", "symmetric", "sinkhorn"])
def test_the_estimate_is_the_limit_of_a_small_kernel(normalize):
    a = heat(normalize)
    found = estimate_euler_step(Diffusion(a, weight=DEFINITE), signal(a, 2))
    assert found == pytest.approx(cfl_limit(a).limit / 1.5, rel=1e-9)


@pytest.mark.parametrize(
    ("process", "works"),
    [
        (Diffusion(heat("none"), weight=DEFINITE), "every step_size up to (\\S+) is certified"),
        (Diffusion(path_graph(6)), "every step_size up to (\\S+) is certified"),
        (DampedFlow(heat("row")), "step_size = (\\S+) works"),
    ],
)
def test_the_step_that_is_named_works(process, works):
    z = signal(process.affinity, 2)
    away = simulate(process, z, num_steps=300, step_size=5.0, throw=False)
    assert away.outcome.ending == "diverged"
    named = float(re.search(works, away.outcome.message).group(1))
    run = simulate(process, z, num_steps=300, step_size=named)
    assert run.outcome.ending == "finished"
    assert float(run.variance[-1].max()) < float(run.variance[0].max())


def test_the_step_that_is_named_keeps_a_tenth_away_from_the_estimate():
    """K has the largest eigenvalue 1, so that 2 is the limit."""
    told = describe_limit(DampedFlow(heat("row")), signal(heat("row"), 2))
    assert told == ", which Lanczos estimates at 2; step_size = 1.8 works"


def test_nothing_is_said_of_a_process_that_may_grow():
    a = heat("row")
    assert estimate_euler_step(Diffusion(a, backwards=True), signal(a, 2)) is None
    assert Diffusion(a, backwards=True).certified_euler_step() is None
