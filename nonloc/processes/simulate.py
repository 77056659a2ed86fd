"""simulate: a process, a state and a number of steps; a Trajectory comes back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from math import isfinite

import torch
from torch import Tensor

from nonloc._checks import check_whole, is_number
from nonloc.outcomes import DivergedError
from nonloc.processes.ending import SimulationOutcome
from nonloc.processes.growth_watch import WIDER, GrowthWatch, RangeWatch
from nonloc.processes.process import Process
from nonloc.processes.step_limit import rounded_down, told_limit
from nonloc.processes.steppers import STEPPERS
from nonloc.processes.trajectory import Recorder, Trajectory

try:
    from tqdm import tqdm
except ImportError:  # an extra; without it there is no bar
    tqdm = None


def simulate(
    process: Process,
    z0: Tensor,
    *,
    num_steps: int,
    step_size: float = 1.0,
    save_every: int = 1,
    throw: bool = True,
    stepper: str = "euler",
    progress: bool = False,
) -> Trajectory:
    """Move z0 [B, M, C] through `num_steps` steps of length `step_size`.

    z0          float64 is the dtype to use; another floating dtype is kept, with its rounding
    save_every  save each state whose number is a multiple of it, and always the first and the last
    throw       a simulation whose values stop being finite ends there: True raises DivergedError, False returns the
                trajectory up to the last finite state, with the Outcome "diverged". Euler steps that are too large
                but stay finite are all taken and returned, with the Outcome "diverged" too, which says from which
                state on they run away, and which step_size would not; True also warns, with its sentence. That is
                known where the kernel does not follow the state: of a diffusion with Ω ≥ 0 where W is a number or a
                diagonal ≥ 0, or where Ω is symmetric and W symmetric positive semi-definite, and of a DampedFlow
                whose K is positive semi-definite
    stepper     "euler": z + h · rate(z), the paper's discrete process; "exact": the solution of dz/dt = rate(z), up
                to rounding; "implicit": backward Euler, stable for every h where the process is dissipative. The
                last two need a linear process
    progress    show a bar
    Nothing is learned here, and no gradient is kept: `propagate` is the differentiable form.
    """
    _check(process, z0, num_steps, step_size, save_every)
    step_size = float(step_size)
    if stepper not in STEPPERS:
        raise ValueError(f"stepper={stepper!r} is unknown; choose one of {', '.join(STEPPERS)}")
    with torch.no_grad(), torch.autocast(z0.device.type, enabled=False):
        z = z0.detach()
        step = STEPPERS[stepper](process, step_size)
        recorder = Recorder(process, z, 1 + -(-num_steps // save_every))
        recorder.save(0.0, z)
        watch = GrowthWatch(process) if stepper == "euler" else None
        ranges: RangeWatch | None = None
        saved, lost = 0, False
        for n in _counted(num_steps, progress):
            moved = step(z)
            if not _is_finite(process, moved):
                lost = True
                if saved != n - 1:
                    recorder.save((n - 1) * step_size, z)
                break
            if watch is not None:
                watch.look(n, z, moved)
                # Now that the kernel is ready, how large a step is safe costs nothing to ask.
                ranges = _range_watch(process, z, step_size) if n == 1 else ranges
            if ranges is not None:
                ranges.look(n, moved)
            z = moved
            if n % save_every == 0 or n == num_steps:
                recorder.save(n * step_size, z)
                saved = n
        since, why = _ran_away(process, step_size, watch, ranges)
    outcome = _outcome(n if lost else None, num_steps, step_size, since, why)
    if throw and lost:
        raise DivergedError(outcome)
    if throw and outcome.ending == "diverged":
        warnings.warn(
            f'{outcome.sentence} Use a smaller step_size, or stepper="exact" or "implicit", which have no such limit; '
            "with throw=False only the outcome tells.",
            stacklevel=2,
        )
    return recorder.finish(outcome)


def _ran_away(
    process: Process, step_size: float, watch: GrowthWatch | None, ranges: RangeWatch | None
) -> tuple[int | None, str]:
    """The first state from which on the simulation runs away, and why its process does not; None where it is none."""

    def told(since: int, what: str, limit: str) -> tuple[int, str]:
        when = f"From state {since} on, at time {since * step_size:g},"
        return (
            since,
            f"{when} {what}, which those of this process never do: step_size = {step_size:g} is {limit}.",
        )

    if watch is not None and watch.since is not None and watch.grown is not None:
        limit = f"beyond the limit of stability{told_limit(process, watch.grown)} (see cfl_limit)"
        return told(watch.since, "its changes grow", limit)
    if ranges is not None and ranges.since is not None:
        limit = f"too large; with every step_size up to {rounded_down(ranges.safe):g} values keep their range"
        return told(ranges.since, f"its values spread over more than {WIDER} times their range", limit)
    return None, ""


def _range_watch(process: Process, z0: Tensor, step_size: float) -> RangeWatch | None:
    """Where a norm of its own tells nothing of the process, and the step is larger than what surely keeps the range."""
    # One position, or none, has no range.
    if z0.shape[1] < 2 or z0.numel() == 0 or process.mean_weights() is not None:
        return None
    safe = process.range_euler_step()
    return None if safe is None or step_size <= safe else RangeWatch(process, z0, safe)


def _outcome(
    lost: int | None, num_steps: int, step_size: float, since: int | None, why: str
) -> SimulationOutcome:
    """lost: the first state that was not finite; since: the first one from which on the simulation runs away; why: in
    a sentence."""

    def ending(name: str, step: int, message: str = "") -> SimulationOutcome:
        return SimulationOutcome(name, step=step, message=message, metrics={"time": step * step_size})

    if lost is not None:
        told = (
            f"State {lost}, at time {lost * step_size:g}, has values that are not finite; a smaller "
            'step_size or stepper="exact" or "implicit" may help.'
        )
        return ending("diverged", lost, f"{told} {why}".rstrip())
    if since is not None:
        return ending("diverged", since, why)
    return ending(
        "finished", num_steps, "All steps were taken; this does not mean that a steady state was reached."
    )


def _is_finite(process: Process, z: Tensor) -> bool:
    mask = None if process.affinity is None else process.affinity.mask
    # A state of another shape is refused, in words, by the process itself.
    if mask is not None and mask.shape[1:] == z.shape[1:2] and mask.shape[0] in (1, z.shape[0]):
        z = torch.where(mask.unsqueeze(-1), z, 0)
    return bool(torch.isfinite(z).all())


def _counted(num_steps: int, progress: bool) -> Iterable[int]:
    steps = range(1, num_steps + 1)
    if not progress:
        return steps
    if tqdm is None:
        raise ValueError("progress=True needs tqdm; pip install 'nonloc[plots]', or leave progress out")
    return tqdm(steps, desc="simulate", unit="step")


def _check(process: Process, z0: Tensor, num_steps: int, step_size: float, save_every: int) -> None:
    if not isinstance(process, Process):
        raise ValueError(
            f"process must be a Process, got {type(process).__name__}; for example Diffusion(affinity)"
        )
    if not isinstance(z0, Tensor) or z0.dim() != 3:
        got = list(z0.shape) if isinstance(z0, Tensor) else type(z0).__name__
        given = "z0" if isinstance(z0, Tensor) else "torch.as_tensor(z0)"
        raise ValueError(
            f"z0 must be a tensor [B, M, C], got {got}; one signal on M positions is {given}.view(1, -1, 1)"
        )
    if not z0.dtype.is_floating_point:
        raise ValueError(f"z0 must be floating point, got {z0.dtype}; use z0.double()")
    check_whole("num_steps", num_steps, least=0)
    check_whole("save_every", save_every)
    if not is_number(step_size) or not isfinite(step_size):
        raise ValueError(f"step_size must be a finite number, got {step_size!r}; use float(step_size)")
    if step_size <= 0:
        raise ValueError(
            f"step_size must be > 0, got {step_size}; for the reversed process give backwards=True to Diffusion or "
            "DampedFlow, as in Diffusion(affinity, backwards=True)"
        )
    if not isfinite(step_size * num_steps):
        raise ValueError(
            f"{num_steps} steps of {step_size} end at no finite time; take smaller or fewer steps"
        )
    process.check_state(z0)
    if not _is_finite(process, z0):
        raise ValueError("z0 has values that are not finite; replace them, or mask their positions")
