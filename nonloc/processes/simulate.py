"""simulate: move a state by a process through a number of steps; a Trajectory comes back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from math import isfinite

import torch
from torch import Tensor

from nonloc._checks import check_choice, check_flag, check_whole, is_finite, is_number, shown
from nonloc.ops.affinity import check_batched, zero_masked
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.functional import check_signal
from nonloc.outcomes import DivergedError
from nonloc.processes.driven import Driven
from nonloc.processes.krylov import exponential_action, safe_norm
from nonloc.processes.process import MOST_STEPS, Process, mask_of
from nonloc.processes.solvers import solve_implicit
from nonloc.processes.trajectory import Recorder, SimulationOutcome, Trajectory
from nonloc.processes.watch import Watch

try:
    from tqdm import tqdm
except ImportError:  # an extra; without it there is no bar
    tqdm = None

Step = Callable[[Tensor], Tensor]  # z [B, M, C] at time t -> z at time t + h


def simulate(
    process: Process,
    z0: Tensor,
    *,
    num_steps: int,
    step_size: float = 1.0,
    save_every: int = 1,
    throw: bool = True,
    stepper: str = "euler",
    source: Tensor | None = None,
    fixed: Tensor | None = None,
    progress: bool = False,
) -> Trajectory:
    """Move z0 [B, M, C] through `num_steps` steps of length `step_size`.

    z0          float64 is the dtype to use; another floating dtype stays as it is, with its rounding
    save_every  save each state whose number is a multiple of it, and always the first and the last
    throw       a simulation whose values stop being finite ends there: True raises DivergedError, False returns the
                trajectory up to the last finite state, with the Outcome "diverged". Euler steps that are too large but
                stay finite are all taken. Their Outcome is "diverged" too; it names the state from which on they run
                away and a step_size that works. True also warns, with its sentence. This is known where the kernel does
                not follow the state: for a diffusion with Ω ≥ 0 where Ω is symmetric and W symmetric positive
                semi-definite, or without a source where W is a number or a diagonal ≥ 0; and for a DampedFlow whose K
                is positive semi-definite
    stepper     "euler": z + h · rate(z), the paper's discrete process; "exact": the solution of dz/dt = rate(z), up
                to rounding; "implicit": backward Euler, stable for every h where the process is dissipative. Where
                something grows, a step beyond 1 / (its rate) would make it decay, so "implicit" refuses backwards=True;
                W < 0 does the same, and is not looked at. The last two need a linear process
    source      f, such as [1, M, 1]: the process is dz/dt = rate(z) + f
    fixed       bool [M] or [B, M]: positions whose values stay as in z0. The steady state of diffusion is then the
                harmonic extension of these values. With a source or fixed values no mean is conserved, and the
                trajectory has no weighted_mean
    progress    show a bar
    Nothing is learned here, and there is no gradient: `propagate` is the differentiable form.

    >>> from nonloc import Affinity, Diffusion, simulate
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> path = simulate(Diffusion(Affinity(same, same, "heat")), z, num_steps=2, step_size=0.5)
    >>> path.states.squeeze().tolist()
    [[0.0, 1.0], [0.25, 0.75], [0.375, 0.625]]
    """
    _check(process, z0, num_steps, step_size, save_every)
    check_choice("stepper", stepper, STEPPERS)
    for name, flag in (("throw", throw), ("progress", progress)):
        check_flag(name, flag)
    grows = getattr(process, "backwards", False)
    if grows and stepper == "implicit":
        raise ValueError(
            'stepper="implicit" is for processes that settle: backwards in time a long step would make decay of '
            'growth; use stepper="exact", whose steps may be of any length'
        )
    step_size = float(step_size)
    free = process
    rate: Callable[[Tensor], Tensor] = process.rate
    if source is not None or fixed is not None:
        process = driven = Driven(process, source, fixed, z0)
        rate = driven.linear_rate
    with torch.no_grad(), torch.autocast(z0.device.type, enabled=False):
        z = z0.detach()
        step = STEPPERS[stepper](process, step_size)
        recorder = Recorder(process, z, 1 + -(-num_steps // save_every))
        recorder.save(0.0, z)
        # A source and fixed values cancel in changes from state to state, but a source may widen the range.
        watch = None
        if stepper == "euler":
            watch = Watch(free, step_size, rate, keeps_range=source is None, keeps_norm=process is free)
        saved, overflow = 0, None
        for n in _steps(num_steps, progress):
            moved = step(z)
            if not _is_finite(process, moved):
                overflow = n
                if saved != n - 1:
                    recorder.save((n - 1) * step_size, z)
                break
            if watch is not None:
                watch.look(n, z, moved)
            z = moved
            if n % save_every == 0 or n == num_steps:
                recorder.save(n * step_size, z)
                saved = n
        runaway = None if watch is None else watch.verdict()
    # What is exact, or goes backwards, grows by itself. What is not linear takes no other stepper.
    kind = "exact" if grows else stepper if process.is_linear else "nonlinear"
    advice = AFTER_OVERFLOW.get(kind, "a smaller step_size")
    outcome = _outcome(overflow, runaway, num_steps, step_size, advice)
    if throw and overflow is not None:
        raise DivergedError(outcome)
    if throw and outcome.ending == "diverged":
        warnings.warn(
            f'{outcome.sentence} Use a smaller step_size, or stepper="exact" or "implicit", which have no such limit; '
            "throw=False returns the outcome without this warning.",
            stacklevel=2,
        )
    return recorder.finish(outcome)


def euler(process: Process, step_size: float) -> Step:
    """z + h · rate(z): the discrete process of the paper."""
    h = process.checked_euler_step(step_size)
    return lambda z: z + h * process.rate(z)


def exact(process: Process, step_size: float) -> Step:
    """exp(hA) z, the solution of dz/dt = Az, up to rounding and without the matrix."""
    _check_linear(process, "exact")
    if isinstance(process, Driven):
        return _on_changes(process, lambda apply, rate: _integrated_exponential(apply, rate, step_size))
    return _on_vectors(process, lambda apply, z: exponential_action(apply, z, step_size))


def implicit(process: Process, step_size: float) -> Step:
    """(I − hA)⁻¹ z, backward Euler: first order, and non-expansive for every h where A is dissipative."""
    _check_linear(process, "implicit")
    balance = process.inner_weights()

    def solve(apply: Step, z: Tensor) -> Tensor:
        weights = balance
        if weights is not None:  # one π a position, the same for each of its channels
            weights = weights.to(z).repeat_interleave(z.shape[1] // weights.shape[1], dim=1)
        return solve_implicit(apply, z, step_size, weights)

    if isinstance(process, Driven):
        return _on_changes(process, lambda apply, rate: solve(apply, step_size * rate))
    return _on_vectors(process, solve)


STEPPERS: dict[str, Callable[[Process, float], Step]] = {"euler": euler, "exact": exact, "implicit": implicit}
AFTER_OVERFLOW = {
    "euler": 'a smaller step_size or stepper="exact" or "implicit"',
    "exact": "a shorter time, by fewer or smaller steps,",
    "implicit": 'a smaller step_size or stepper="exact"',
}


def _check_linear(process: Process, name: str) -> None:
    if process.is_linear:
        return
    kind = type(process).__name__
    reason, fix = f"{kind}.is_linear is False", "set is_linear = True where rate is a linear map after all"
    if process.follows_state:
        reason, fix = "its kernel follows the state", f"give {kind} a fixed affinity"
    raise ValueError(
        f'stepper={name!r} needs a process that is linear in z, and this one is not ({reason}); use stepper="euler" '
        f"with a small step_size, or {fix}"
    )


def _on_vectors(process: Process, step: Callable[[Step, Tensor], Tensor]) -> Step:
    """A step on samples as vectors [B, M · C], at least in float32; masked positions do not change."""
    mask = mask_of(process)

    def move(z: Tensor) -> Tensor:
        def apply(v: Tensor) -> Tensor:
            return process.rate(v.view(z.shape)).reshape(v.shape)

        wide = zero_masked(z.to(torch.promote_types(z.dtype, torch.float32)), mask)
        moved = step(apply, wide.flatten(1)).view(z.shape).to(z.dtype)
        return moved if mask is None else torch.where(mask.unsqueeze(-1), moved, z)

    return move


def _on_changes(process: Driven, change: Callable[[Step, Tensor], Tensor]) -> Step:
    """z + change(A, rate(z)): a step by the linear part A alone, on samples as vectors [B, M · C]."""

    def move(z: Tensor) -> Tensor:
        def apply(v: Tensor) -> Tensor:
            return process.linear_rate(v.view(z.shape)).reshape(v.shape)

        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        return (wide + change(apply, process.rate(wide).flatten(1)).view(z.shape)).to(z.dtype)

    return move


def _integrated_exponential(apply: Step, rate: Tensor, step: float) -> Tensor:
    """∫ exp(τA) r dτ from 0 to h: the solution of dx/dt = A x + s r, ds/dt = 0 that begins at x = 0, s = 1."""
    # In units of the size of r, so that x and s are of like size.
    size = safe_norm(rate).unsqueeze(-1)
    unit = rate * inverse_or_zero(size)

    def extended(v: Tensor) -> Tensor:
        return torch.cat([apply(v[:, :-1]) + v[:, -1:] * unit, torch.zeros_like(v[:, -1:])], dim=1)

    return exponential_action(extended, torch.cat([torch.zeros_like(rate), size], dim=1), step)[:, :-1]


def _outcome(
    overflow: int | None, runaway: tuple[int, str] | None, num_steps: int, step_size: float, advice: str
) -> SimulationOutcome:
    """overflow: the first state that is not finite, and advice for it; runaway: the first that runs away, and why."""
    ending, step = "finished", num_steps
    message = "All steps were taken; this does not mean that a steady state was reached."
    if runaway is not None:
        ending, (step, message) = "diverged", runaway
    if overflow is not None:
        ending, step = "diverged", overflow
        message = (
            f"State {step}, at time {step * step_size:g}, has values that are not finite; {advice} "
            f"may help. {'' if runaway is None else message}"
        ).rstrip()
    return SimulationOutcome(ending, step=step, message=message, metrics={"time": step * step_size})


def _is_finite(process: Process, z: Tensor) -> bool:
    return bool(torch.isfinite(zero_masked(z, mask_of(process))).all())


def _steps(num_steps: int, progress: bool) -> Iterable[int]:
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
    if process.affinity is None:
        check_batched("z0", z0, "C")
    else:
        check_signal(process.affinity, z0, "z0")
    if z0.is_meta:
        raise ValueError("z0 is on the meta device and has no numbers; give a state that has")
    check_whole("num_steps", num_steps, least=0, most=MOST_STEPS)
    check_whole("save_every", save_every)
    if not is_finite(step_size):
        fix = "" if is_number(step_size) else "; use float(step_size)"
        raise ValueError(f"step_size must be a finite number > 0, got {shown(step_size)}{fix}")
    if step_size <= 0:
        raise ValueError(
            f"step_size must be > 0, got {step_size}; for the reversed process give backwards=True to Diffusion or "
            "DampedFlow, as in Diffusion(affinity, backwards=True)"
        )
    if not isfinite(float(step_size) * num_steps):
        raise ValueError(f"{num_steps} steps of {step_size} overflow in time; take smaller or fewer steps")
    process.check_state(z0)
    if not _is_finite(process, z0):
        raise ValueError("z0 has values that are not finite; replace them, or mask their positions")
