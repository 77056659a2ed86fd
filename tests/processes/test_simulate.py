"""simulate: the discrete process step by step, what is saved, how it ends, and the bridge to the network's stage."""

import numpy as np
import pytest
import torch
from generators import path_graph

from nonloc.nn import DiffusiveStage
from nonloc.ops import Affinity, propagate
from nonloc.outcomes import DivergedError
from nonloc.processes import Diffusion, JumpProcess, Process, simulate
from problems import affinity, features, generator, relative, signal, symmetric


def test_euler_is_the_paper_s_discrete_process():
    a = affinity("gaussian")
    z = signal(a)
    w = 0.3 * torch.randn(4, 4, dtype=torch.float64, generator=generator(2))
    run = simulate(Diffusion(a, weight=w), z, num_steps=5, step_size=0.4)
    for n in range(6):
        assert relative(run.states[n], propagate(a, z, [0.4 * w] * n)) <= 1e-13
    assert run.times.tolist() == pytest.approx([0.4 * n for n in range(6)])


@pytest.mark.parametrize("kind", ["gaussian", "embedded_gaussian", "heat", "dot", "concat"])
@pytest.mark.parametrize("h", [0.05, 0.5])
def test_the_bridge_a_stage_with_w_equal_to_h_is_a_simulation(kind, h):
    torch.manual_seed(0)
    stage = DiffusiveStage(6, 4, affinity=kind, weight="full", layout="positions").double()
    identity = torch.eye(6, dtype=torch.float64)
    x = torch.randn(2, 10, 6, dtype=torch.float64, generator=generator(4))
    with torch.no_grad():
        for one in stage.maps:
            one.w_z.weight.copy_(h * identity)
        out, a = stage(x), stage.affinity(x)
    assert [float((w.detach() - h * identity).abs().max()) for w in stage.weights()] == [0] * 4
    run = simulate(Diffusion(a), x, num_steps=4, step_size=h)
    assert relative(run.final, out) <= 1e-13


@pytest.mark.parametrize(
    ("num_steps", "save_every", "saved"),
    [(6, 1, [0, 1, 2, 3, 4, 5, 6]), (6, 2, [0, 2, 4, 6]), (7, 3, [0, 3, 6, 7]), (3, 10, [0, 3]), (0, 1, [0])],
)
def test_first_and_last_are_always_saved(num_steps, save_every, saved):
    a = symmetric()
    z = signal(a)
    every = simulate(Diffusion(a), z, num_steps=num_steps)
    some = simulate(Diffusion(a), z, num_steps=num_steps, save_every=save_every)
    assert some.times.tolist() == saved
    assert torch.equal(some.states, every.states[saved])
    assert len(some) == len(saved)
    assert (some.outcome.ending, some.outcome.step) == ("finished", num_steps)


def test_a_state_that_is_not_finite_ends_the_simulation_there():
    # L of a path has eigenvalues up to 4: with h = 1e60 a step multiplies by up to 4e60, and 1e308 is passed in step 6.
    process, z = Diffusion(path_graph(5)), torch.eye(5, dtype=torch.float64)[:1].unsqueeze(-1)
    run = simulate(process, z, num_steps=50, step_size=1e60, save_every=4, throw=False)
    assert (run.outcome.ending, run.outcome.step) == ("diverged", 6)
    assert run.times.tolist() == [0, 4e60, 5e60]
    assert bool(torch.isfinite(run.states).all())
    truth = z
    for _ in range(5):
        truth = truth + 1e60 * process.rate(truth)
    assert relative(run.final / 1e300, truth / 1e300) <= 1e-12
    assert "State 6, at time 6e+60, has values that are not finite" in run.outcome.sentence
    with pytest.raises(DivergedError, match="State 6") as error:
        simulate(process, z, num_steps=50, step_size=1e60)
    assert error.value.outcome.step == 6


def test_no_stepper_is_advised_that_a_kernel_which_follows_the_state_does_not_take():
    process = Diffusion(lambda z: Affinity(z, z, "gaussian", "none"))
    run = simulate(process, torch.tensor([[[30.0], [20.0]]]), num_steps=5, throw=False)
    assert run.outcome.message.endswith("not finite; a smaller step_size may help.")


DRIVEN = {"source": torch.ones(1, 6, 1), "fixed": torch.tensor([True, False, False, False, False, True])}


@pytest.mark.parametrize("stepper", ["euler", "exact", "implicit"])
@pytest.mark.parametrize("driven", [{}, DRIVEN], ids=["free", "driven"])
def test_padding_stays_as_it_is(stepper, driven):
    mask = torch.tensor([[True, True, False, True, True, True]] * 2)
    process = Diffusion(symmetric(mask=mask))
    z, keywords = signal(process.affinity), {"num_steps": 3, "step_size": 0.3, "stepper": stepper} | driven
    truth = simulate(process, z, **keywords)
    assert torch.equal(truth.final[~mask], z[~mask])
    z[~mask] = torch.nan
    run = simulate(process, z, **keywords)
    assert bool(run.final[~mask].isnan().all())
    assert torch.equal(run.final[mask], truth.final[mask])
    assert torch.equal(run.variance, truth.variance)


@pytest.mark.parametrize("stepper", ["euler", "exact", "implicit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_floating_dtype_is_kept(dtype, stepper):
    a = symmetric()
    z = signal(a).to(dtype)
    run = simulate(Diffusion(a), z, num_steps=4, step_size=0.3, stepper=stepper)
    exact = simulate(Diffusion(a), z.double(), num_steps=4, step_size=0.3, stepper=stepper)
    assert run.states.dtype == dtype
    assert run.mean.dtype == torch.float32, "numbers of a state may be beyond half precision"
    assert relative(run.final.double(), exact.final) <= {torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]


def test_a_process_of_one_s_own():
    class Decay(Process):
        def rate(self, z):
            return -2 * z

    z = torch.ones(1, 3, 1, dtype=torch.float64)
    run = simulate(Decay(), z, num_steps=2, step_size=0.25, stepper="exact")
    assert run.final.flatten().tolist() == pytest.approx([torch.e**-1] * 3, rel=1e-14)
    assert run.weighted_mean is None
    assert run.energy is None


def test_progress_is_shown_when_asked_for(capsys):
    simulate(Diffusion(path_graph(4)), torch.ones(1, 4, 1), num_steps=3, progress=True)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"process": symmetric()}, r"process must be a Process, got Affinity; .*Diffusion\(affinity\)"),
        ({"z0": torch.ones(6)}, r"z0 must be a tensor \[B, M, C\], got \[6\]; .*z0.view\(1, -1, 1\)"),
        ({"z0": np.ones(6)}, r"got ndarray; .*torch.as_tensor\(z0\).view\(1, -1, 1\)"),
        ({"z0": torch.ones(2, 6, 1, dtype=torch.long)}, "z0 must be floating point.*z0.float()"),
        ({"z0": torch.full((2, 6, 1), torch.nan)}, "z0 has values that are not finite"),
        ({"z0": torch.ones(2, 5, 1)}, r"z0 \[2, 5, 1\] must have the affinity.s batch and .*, \[2, 6, C\]"),
        ({"num_steps": -1}, "num_steps must be a whole number ≥ 0, got -1"),
        ({"save_every": 0}, "save_every must be a whole number ≥ 1, got 0"),
        ({"step_size": float("nan")}, "step_size must be a finite number > 0, got nan$"),
        ({"step_size": -0.1}, r"step_size must be > 0.*Diffusion\(affinity, backwards=True\)"),
        ({"step_size": torch.tensor(0.5)}, r"step_size must be a finite number.*use float\(step_size\)"),
        ({"num_steps": 10**20}, "num_steps must be at most 10,000,000,000, got 1"),
        (
            {"num_steps": 10**10, "z0": torch.ones(2, 6, 10**5)},
            "states need .* GiB, which cpu does not have; use a larger save_every",
        ),
        ({"num_steps": 3, "step_size": 1e308}, "3 steps of 1e"),
        ({"step_size": 10**400}, "step_size must be a finite number > 0, got 1000"),
        ({"throw": "x"}, "throw must be True or False"),
        ({"progress": 1}, "progress must be True or False"),
        ({"z0": torch.ones(2, 6, 1, device="meta")}, "z0 is on meta, the affinity on cpu"),
        ({"z0": torch.ones(2, 6, 1).to_sparse()}, "z0 must be a dense tensor"),
        ({"z0": torch.ones(2, 6, 1, dtype=torch.complex64)}, "z0 must be floating point.*use z0.real"),
        ({"stepper": "rk4"}, "stepper='rk4' is unknown; choose one of euler, exact, implicit"),
        (
            {"process": Diffusion(symmetric(), backwards=True), "stepper": "implicit"},
            'backwards in time.*use stepper="exact"',
        ),
    ],
)
def test_wrong_arguments_name_the_fix(arguments, message):
    arguments = {"process": Diffusion(symmetric()), "z0": torch.ones(2, 6, 1), "num_steps": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        simulate(arguments.pop("process"), arguments.pop("z0"), **arguments)


@pytest.mark.parametrize("stepper", ["euler", "exact", "implicit"])
@pytest.mark.parametrize(("batch", "channels"), [(0, 2), (1, 0)])
def test_nothing_to_move_is_moved(stepper, batch, channels):
    x = features("heat", "row")[:batch]
    z = torch.zeros(batch, x.shape[1], channels, dtype=torch.float64)
    run = simulate(Diffusion(Affinity(x, x, "heat")), z, num_steps=2, stepper=stepper)
    assert run.states.shape == (3, batch, x.shape[1], channels)
    assert run.outcome.ending == "finished"


def test_a_step_of_a_jump_process_that_is_no_probability_is_refused():
    step_size, a, law = 1.5, symmetric(), torch.full((2, 6, 1), 1 / 6, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"in \(0, 1\].*several steps, or simulate with stepper=\"exact\" or \"implicit\""
    ):
        simulate(JumpProcess(a), law, num_steps=1, step_size=step_size)
    for stepper in ("exact", "implicit"):
        moved = simulate(JumpProcess(a), law, num_steps=1, step_size=step_size, stepper=stepper).final
        assert float(moved.sum(1).sub(1).abs().max()) <= 1e-12
        assert float(moved.min()) >= 0


@pytest.mark.parametrize("stepper", ["euler", "exact"])
def test_a_law_below_zero_is_refused_and_rounding_is_not(stepper):
    process, law = JumpProcess(symmetric()), torch.full((2, 6, 1), 1 / 6, dtype=torch.float64)
    law[0, 0] = -1e-3
    with pytest.raises(ValueError, match=r"a law must be ≥ 0.* is -0.001; .*clamp.*Diffusion\(affinity\)"):
        simulate(process, law, num_steps=1, stepper=stepper)
    law[0, 0] = -1e-17
    assert simulate(process, law, num_steps=1, stepper=stepper).outcome.ending == "finished"


def test_a_simulation_is_told_in_its_own_words():
    run = simulate(Diffusion(path_graph(4)), torch.ones(1, 4, 1), num_steps=3, step_size=0.1)
    assert run.outcome.sentence == (
        "The simulation finished. All steps were taken; this does not mean that a steady state was reached."
    )
    assert run.outcome.metrics["time"] == pytest.approx(0.3)
    z = torch.eye(4, dtype=torch.float64)[:1].unsqueeze(-1)
    with pytest.raises(DivergedError, match=r"^The simulation ran away at step \d+ \(t = \d.*\)\. State"):
        simulate(Diffusion(path_graph(4)), z, num_steps=50, step_size=1e60)
