"""Steppers: how a process is carried from one time to the next. A flat table; one entry is all it takes to join."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.processes.matrix_free.krylov import exponential_action
from nonloc.processes.matrix_free.solvers import solve_implicit
from nonloc.processes.process import Process

Step = Callable[[Tensor], Tensor]  # z [B, M, C] at time t -> z at time t + h


def euler(process: Process, step_size: float) -> Step:
    """z + h · rate(z): the discrete process of the paper."""
    h = process.checked_euler_step(step_size)
    return lambda z: z + h * process.rate(z)


def exact(process: Process, step_size: float) -> Step:
    """exp(hA) z, the solution of dz/dt = Az, up to rounding and without the matrix."""
    _check_linear(process, "exact")
    return _on_vectors(process, lambda apply, z: exponential_action(apply, z, step_size))


def implicit(process: Process, step_size: float) -> Step:
    """(I − hA)⁻¹ z, backward Euler: first order, and non-expansive for every h where A is dissipative."""
    _check_linear(process, "implicit")
    balance = process.inner_weights()

    def solve(apply: Step, z: Tensor) -> Tensor:
        if balance is None:
            return solve_implicit(apply, z, step_size, None)
        # One π a position, the same for each of its channels.
        weights = balance.to(z).repeat_interleave(z.shape[1] // balance.shape[1], dim=1)
        return solve_implicit(apply, z, step_size, weights)

    return _on_vectors(process, solve)


STEPPERS: dict[str, Callable[[Process, float], Step]] = {"euler": euler, "exact": exact, "implicit": implicit}


def _check_linear(process: Process, name: str) -> None:
    if process.is_linear:
        return
    kind = type(process).__name__
    reason, fix = (
        ("its kernel follows the state", f"give {kind} a fixed affinity")
        if process.follows_state
        else (f"{kind}.is_linear is False", "set is_linear = True where rate is a linear map after all")
    )
    raise ValueError(
        f'stepper={name!r} needs a process that is linear in z, and this one is not ({reason}); use stepper="euler" '
        f"with a small step_size, or {fix}"
    )


def _on_vectors(process: Process, step: Callable[[Step, Tensor], Tensor]) -> Step:
    """A step on samples as vectors [B, M · C]; masked positions are left as they are, half precision is widened."""
    mask = None if process.affinity is None else process.affinity.mask

    def move(z: Tensor) -> Tensor:
        def apply(v: Tensor) -> Tensor:
            return process.rate(v.view(z.shape)).reshape(v.shape)

        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        if mask is not None:
            wide = torch.where(mask.unsqueeze(-1), wide, 0)
        moved = step(apply, wide.flatten(1)).view(z.shape).to(z.dtype)
        return moved if mask is None else torch.where(mask.unsqueeze(-1), moved, z)

    return move
