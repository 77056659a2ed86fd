"""Steps beyond the limit of stability: the outcome says since when they run away, and names a step that works."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from chains import chain
from generators import path_graph

from nonloc.ops import Affinity
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, cfl_limit, simulate
from nonloc.processes.watch import estimate_euler_step
from problems import features, generator, signal, symmetric


def two_points():
    """L = [[1, −1], [−1, 1]]: λ_max = 2, the largest stable step is 1."""
    return chain([[0.0, 1.0], [1.0, 0.0]], "none")


def difference():
    return torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)


def test_the_outcome_and_the_warning_say_since_when_and_name_the_limit_and_the_fix():
    with pytest.warns(UserWarning, match="ran away") as warned:
        run = simulate(Diffusion(two_points()), difference(), num_steps=10, step_size=1.5)
    assert torch.equal(run.final, 2.0**10 * difference())
    assert len(run) == 11
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 2)
    assert run.outcome.sentence.startswith(
        "The simulation ran away at step 2 (t = 3). From state 2 on, at time 3"
    )
    assert repr(run).startswith("Trajectory(ran away at step 2 (t = 3): 11 states")
    assert (
        "step_size = 1.5 is beyond the limit of stability, which Lanczos estimates at 1"
        in run.outcome.message
    )
    (warning,) = warned
    assert str(warning.message).startswith(run.outcome.sentence)
    assert "every step_size up to 1 is certified" in str(warning.message)
    assert 'Use a smaller step_size, or stepper="exact" or "implicit"' in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(("step_size", "throw"), [(1.5, False), (1.0, True)])
def test_there_is_no_warning_where_none_is_wanted_or_nothing_runs_away(step_size, throw):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(Diffusion(two_points()), difference(), num_steps=10, step_size=step_size, throw=throw)


def first_growth(rates, amounts, h, num_steps):
    """The first state reached by a change larger than the one before, from the modes' closed form."""
    changes = [np.linalg.norm(h * rates * amounts * (1 - h * rates) ** n) for n in range(num_steps)]
    return next(n + 1 for n in range(1, num_steps) if changes[n] > changes[n - 1])


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_a_mode_that_hides_behind_others_is_found_when_it_comes_out(offset):
    size = 16
    k = np.arange(size)
    rates = 2 - 2 * np.cos(np.pi * k / size)
    modes = np.cos(np.pi * np.outer(np.arange(size) + 0.5, k) / size)
    modes /= np.linalg.norm(modes, axis=0)
    amounts = np.where(k == 1, 1.0, 0.0) + np.where(k == size - 1, 1e-4, 0.0)
    z = torch.from_numpy(modes @ amounts + offset).view(1, -1, 1)
    h = 1.05 * 2 / rates[-1]
    expected = first_growth(rates, amounts, h, 200)
    assert expected > 20
    run = simulate(Diffusion(path_graph(size)), z, num_steps=expected + 3, step_size=h, throw=False)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", expected)


@pytest.mark.parametrize(("excess", "ending"), [(1.0, "finished"), (1.001, "diverged")])
@pytest.mark.parametrize("normalize", ["row", "count", "none", "symmetric", "sinkhorn"])
def test_there_is_no_alarm_at_the_limit_and_there_is_one_above(normalize, excess, ending):
    a = symmetric(normalize=normalize, batch=1)
    step = excess * cfl_limit(a).limit
    run = simulate(Diffusion(a), signal(a) + 100, num_steps=200, step_size=step, throw=False)
    assert run.outcome.ending == ending


@pytest.mark.parametrize("step_size", [0.25, 0.475])
def test_a_simulation_that_has_come_to_rest_makes_no_alarm_of_its_rounding(step_size):
    """Up to 0.5 steps are stable here. What is left at last are single digits of a thousand in float32."""
    z = 1000 + torch.randn(1, 8, 2, generator=generator(1))
    run = simulate(Diffusion(path_graph(8)), z, num_steps=200, step_size=step_size)
    assert float(run.variance[-1].max()) < 1e-3
    assert run.outcome.ending == "finished"


@pytest.mark.parametrize(("step_size", "ending"), [(0.45, "finished"), (1.1, "diverged")])
def test_the_rounding_of_a_large_affinity_to_itself_makes_no_alarm(step_size, ending):
    """Two positions that meet, stable up to 1, and one apart: at rest 10⁸ z_i is still added and taken away."""
    large = chain([[1e8, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], "none")
    z = torch.randn(1, 3, 1, generator=generator(0), dtype=torch.float64)
    run = simulate(Diffusion(large), z, num_steps=200, step_size=step_size, throw=False)
    assert run.outcome.ending == ending


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_rounding_of_a_state_that_runs_away_does_not_hide_it(dtype):
    z = difference().to(dtype)
    run = simulate(Diffusion(two_points()), z, num_steps=10, step_size=1.5, throw=False)
    assert torch.equal(run.final, 2.0**10 * z)
    assert run.outcome.ending == "diverged"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", ["source", "fixed"])
@pytest.mark.parametrize(("step_size", "ending"), [(0.5, "finished"), (0.75, "diverged")])
def test_so_it_is_beside_a_source_and_fixed_values(given, step_size, ending, dtype):
    """Up to about 0.5 steps are stable here; the states stay finite."""
    value = {"source": torch.ones(1, 8, 1, dtype=dtype), "fixed": torch.arange(8) == 0}[given]
    z = torch.randn(1, 8, 2, generator=generator(1)).to(dtype)
    run = simulate(
        Diffusion(path_graph(8)), z, num_steps=14, step_size=step_size, throw=False, **{given: value}
    )
    assert bool(run.final.isfinite().all())
    assert run.outcome.ending == ending


def test_the_rounding_of_what_a_source_has_made_of_zeros_makes_no_alarm():
    source = torch.tensor([1.0, 0.0, 0.0, -1.0]).view(1, 4, 1)
    run = simulate(Diffusion(path_graph(4)), 0 * source, num_steps=200, step_size=0.3, source=source)
    assert run.outcome.ending == "finished"


def test_the_damped_flow_is_watched_too():
    """K = I: z − 3 z doubles z, where the flow itself fades away."""
    x = torch.zeros(1, 2, 1, dtype=torch.float64)
    flow = DampedFlow(Affinity(x, x, "delta"))
    run = simulate(flow, difference(), num_steps=5, step_size=3.0, throw=False)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 2)
    assert torch.equal(run.final, -(2.0**5) * difference())


def test_a_process_that_may_grow_is_not_called_diverged_for_it():
    reverse = simulate(Diffusion(two_points(), backwards=True), difference(), num_steps=20, step_size=0.5)
    assert float(reverse.final[0, 0, 0]) == 2.0**20
    assert reverse.outcome.ending == "finished"


def test_a_jump_process_makes_no_false_alarm():
    process = JumpProcess(chain([[0.0, 1.0, 0], [0.1, 0, 3], [0, 3, 0.0]]))
    law = torch.tensor([[[1.0], [0], [0]]], dtype=torch.float64)
    assert simulate(process, law, num_steps=50).outcome.ending == "finished"


def test_a_simulation_that_leaves_the_numbers_says_both():
    run = simulate(Diffusion(two_points()), difference(), num_steps=2000, step_size=1.5, throw=False)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 1024)
    assert "State 1024" in run.outcome.sentence
    assert "From state 2 on" in run.outcome.sentence


@pytest.mark.parametrize(("step_size", "ending"), [(3.0, "diverged"), (1.9, "finished")])
def test_a_position_that_influences_no_other_can_run_away_alone(step_size, ending):
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).view(1, -1, 1)
    measure = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    process = Diffusion(Affinity(x, x, "heat", "row", measure=measure))
    z = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64).view(1, -1, 1)
    actual = simulate(process, z, num_steps=30, step_size=step_size, throw=False)
    assert actual.outcome.ending == ending


def one_way():
    """Position 1 influences position 0 and not the other way: z_0 − z_1 ← (1 − h)(z_0 − z_1)."""
    return chain([[0.0, 1.0], [0.0, 0.0]], "none")


def test_values_that_leave_their_range_run_away_where_the_kernel_is_not_symmetric():
    with pytest.warns(UserWarning, match="ran away"):
        run = simulate(Diffusion(one_way()), difference(), num_steps=10, step_size=2.25)
    torch.testing.assert_close(run.final[0, 0] - run.final[0, 1], 2 * torch.tensor([1.25**10]).double())
    # 1.25ⁿ > 2 from n = 4 on.
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 4)
    assert "its values spread over more than 2 times their range" in run.outcome.sentence
    assert run.outcome.message.endswith("with every step_size up to 1 values keep their range.")


@pytest.mark.parametrize(
    ("weight", "channels", "expected"),
    [(0.5, 1, 2.0), (torch.tensor([0.25, 4.0]), 2, 0.25), (torch.eye(2), 2, None), (-1.0, 1, None)],
    ids=["number", "diagonal", "matrix", "negative"],
)
def test_the_step_that_keeps_the_range_is_that_of_the_fastest_channel(weight, channels, expected):
    process = Diffusion(one_way(), weight=weight)
    assert process.range_euler_step() == expected
    assert Diffusion(one_way(), weight=weight, backwards=True).range_euler_step() is None
    if expected is not None:
        z = torch.tensor([1.0, -1.0]).double().view(1, 2, 1).expand(1, 2, channels)
        run = simulate(process, z, num_steps=5, step_size=expected)
        assert bool((run.final[:, 0] >= -1).all() and (run.final[:, 0] <= 1).all())


@pytest.mark.parametrize("weight", [1.0, torch.ones(2), torch.eye(2)], ids=["number", "diagonal", "matrix"])
@pytest.mark.parametrize(("share", "ending"), [(0.5, "finished"), (1.01, "diverged")])
def test_rounding_of_a_long_step_is_no_growth_whatever_w_is(weight, share, ending):
    points = torch.arange(20.0).double().view(1, 20, 1)
    narrow = Affinity(
        points, points, "heat", scale=-math.log(1e-5)
    )  # neighbours weigh 1e-5, the position itself 1
    fixed = torch.zeros(20, dtype=torch.bool)
    fixed[[0, -1]] = True
    step_size = share * cfl_limit(narrow).limit
    z = (points / 19).sin().expand(1, 20, 2)
    run = simulate(
        Diffusion(narrow, weight=weight),
        z,
        num_steps=3000,
        step_size=step_size,
        fixed=fixed,
        save_every=3000,
        throw=False,
    )
    assert run.outcome.ending == ending


@pytest.mark.parametrize(("num_steps", "ending"), [(5, "diverged"), (1000, "finished")])
def test_a_range_that_is_left_for_a_while_is_no_end(num_steps, ending):
    """Each is influenced by the next: T = −0.9 I + 1.9 N, far out at first; in the end all have the last value."""
    process = Diffusion(chain(torch.diag(torch.ones(5), 1), "none"))
    start = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 0.0], dtype=torch.float64).view(1, 6, 1)
    run = simulate(process, start, num_steps=num_steps, step_size=1.9, throw=False)
    assert run.outcome.ending == ending
    if ending == "finished":
        torch.testing.assert_close(run.final, torch.zeros_like(start))


def test_what_is_masked_has_no_range():
    x, y = (features("gaussian", "row", batch=1, seed=seed) for seed in (0, 1))
    affinity = Affinity(x, y, "gaussian", mask=torch.tensor([[True] * 5 + [False]]))
    z = signal(affinity)
    z[:, 5] = torch.nan
    for step_size, ending in ((5.0, "diverged"), (0.9, "finished")):
        run = simulate(Diffusion(affinity), z, num_steps=20, step_size=step_size, throw=False)
        assert run.outcome.ending == ending


DEFINITE = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)  # eigenvalues 0.5 and 1.5


@pytest.mark.parametrize("normalize", ["row", "count", "none", "symmetric", "sinkhorn"])
def test_the_estimate_is_the_limit_of_a_small_kernel(normalize):
    a = symmetric(normalize=normalize, batch=1)
    process = Diffusion(a, weight=DEFINITE)
    actual = estimate_euler_step(process, signal(a, 2), process.rate)
    assert actual == pytest.approx(cfl_limit(a).limit / 1.5, rel=1e-9)


@pytest.mark.parametrize(
    ("process", "works"),
    [
        (
            Diffusion(symmetric(normalize="none", batch=1), weight=DEFINITE),
            "every step_size up to (\\S+) is certified",
        ),
        (Diffusion(path_graph(6)), "every step_size up to (\\S+) is certified"),
        (DampedFlow(symmetric(batch=1)), "step_size = (\\S+) works"),
    ],
)
def test_the_step_that_is_named_works(process, works):
    z = signal(process.affinity, 2)
    away = simulate(process, z, num_steps=200, step_size=5.0, throw=False)
    assert away.outcome.ending == "diverged"
    named = float(re.search(works, away.outcome.message).group(1))
    run = simulate(process, z, num_steps=200, step_size=named)
    assert run.outcome.ending == "finished"
    assert float(run.variance[-1].max()) < float(run.variance[0].max())
