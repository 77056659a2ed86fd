"""The symmetric scaling u with u_i Σ_j Ω_ij μ_j u_j = 1, in the log domain: x = log u.

The steps x ← ½ (x − log Ω(μ e^x)), that is u ← √(u / Ωμu), halve the error of every mode on which the scaled
kernel is positive semi-definite; the textbook alternation can need tens of thousands. What they leave is removed
by a few Newton steps on G(x) = x + log Ω(μ e^x), whose Jacobian is I + K. A kernel without total support has no
scaling: its Newton steps only halve the residual, so a bounded number of them tells it apart.

The derivative is that of the solution, not of the iteration: from a converged and detached x, one Newton step
carries the exact first derivative and two carry the second, because each squares the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nonloc.ops.affinity import can_check_values
from nonloc.ops.operator import inverse_or_zero

MAX_HALVINGS = 200
MAX_NEWTON = 12
MAX_CG = 200
STALLED = 3  # this many steps without improvement: rounding is reached

# How many steps are taken where the residual may not be looked at (tracing, capturing, shapes alone).
_fixed_steps: ContextVar[int] = ContextVar("fixed_steps", default=60)

LogApply = Callable[[Tensor], Tensor]  # x [B, M] -> log Σ_j Ω_ij μ_j e^{x_j} [B, M]; −inf for an empty row
Solve = Callable[[Tensor, Tensor], Tensor]  # (x, G) [B, M] -> (I + K(x))⁻¹ G


@contextmanager
def fixed_steps(steps: int) -> Iterator[None]:
    """Take this many steps where the residual may not be looked at."""
    token = _fixed_steps.set(steps)
    try:
        yield
    finally:
        _fixed_steps.reset(token)


def log_scaling(
    log_apply: LogApply, solve: Solve, valid: Tensor, dtype: torch.dtype, largest: Tensor | None = None
) -> Tensor:
    """x = log u [B, M], converged and without a gradient; 0 at positions that are not valid.

    `largest` are numbers that `log_apply` adds and takes away again: they bound what can be known of x.
    """
    with torch.no_grad():
        start = log_apply(torch.zeros(valid.shape, dtype=dtype, device=valid.device))
        x = -0.5 * torch.where(valid, start, 0)

        def residue(x: Tensor) -> Tensor:
            return torch.where(valid, x + log_apply(x), 0)

        if can_check_values(x):
            if bool((valid & (start == -torch.inf)).any()):
                raise ValueError(_no_support("a position has no affinity to any other or to itself"))
            size = 0.0 if largest is None or largest.numel() == 0 else float(largest.abs().max())
            return _iterate(x, residue, solve, size)
        for _ in range(_fixed_steps.get()):
            x = x - 0.5 * residue(x)
        return x


def _iterate(x: Tensor, residue: Callable[[Tensor], Tensor], solve: Solve, largest: float) -> Tensor:
    if x.numel() == 0:
        return x
    eps = torch.finfo(x.dtype).eps
    # NaN that came in with a sample is handed on with it, and is no reason to leave the others unscaled.
    g = residue(x)
    known = torch.isfinite(g).all(-1)
    if not bool(known.any()):
        return x
    best, best_error, stalled = x, float("inf"), 0
    for step in range(MAX_HALVINGS + MAX_NEWTON):
        error = float(torch.expm1(g[known]).abs().max())
        if error != error:  # without a scaling to go to, Newton steps run out of the range of numbers
            break
        stalled = 0 if error < best_error else stalled + 1
        if error < best_error:
            best, best_error = x, error
        # Logits are rounded at eps times their size, so this is as well as a scaling can be known.
        reachable = 256 * eps * (1 + float(best[known].abs().max()) + largest)
        if best_error <= 2 * eps or (stalled >= STALLED and best_error <= reachable):
            return best
        x = x - (0.5 * g if step < MAX_HALVINGS else solve(x, g))
        g = residue(x)
    if best_error <= reachable:
        return best
    raise ValueError(_no_support(f"rows sum to 1 ± {best_error:.1e} at best"))


def _no_support(reason: str) -> str:
    return (
        f'normalize="sinkhorn" found no scaling ({reason}): the affinity has no total support, so no '
        'doubly stochastic matrix has its entries; use normalize="symmetric", or a kernel that is positive everywhere'
    )


def newton_dense(kernel: Tensor, residual: Tensor) -> Tensor:
    """(I + K)⁻¹ G with K's rows brought to sum 1. The ridge serves K with eigenvalue −1, on whose mode G is 0."""
    sums = kernel.sum(-1, keepdim=True)
    size, eps = kernel.shape[-1], torch.finfo(kernel.dtype).eps
    identity = torch.eye(size, dtype=kernel.dtype, device=kernel.device)
    jacobian = (1 + 16 * eps) * identity + kernel * inverse_or_zero(sums)
    return torch.linalg.solve(jacobian, residual.unsqueeze(-1)).squeeze(-1)


def log_scaling_dense(
    log_apply: LogApply, scaled: Callable[[Tensor], Tensor], valid: Tensor, dtype: torch.dtype
) -> Tensor:
    """x = log u [B, M] with its first and second derivatives; `scaled(x)` is K(x) [B, M, M]."""
    x = log_scaling(log_apply, lambda x, g: newton_dense(scaled(x), g), valid, dtype)
    for _ in range(2):
        kernel = scaled(x)
        sums = kernel.sum(-1)
        x = x - newton_dense(kernel, torch.where(valid, torch.where(valid, sums, 1).log(), 0))
    return x


def solve_by_cg(kernel: Callable[[Tensor], Tensor], mass: Tensor, g: Tensor) -> Tensor:
    """(I + S D)⁻¹ g for the symmetric S that `kernel` applies and D = diag(mass), by conjugate gradients.

    With R = √D: (I + S D)⁻¹ = I − S R (I + R S R)⁻¹ R, and I + R S R is symmetric with eigenvalues in [0, 2].
    """
    root = mass.sqrt()
    return g - kernel(root * _conjugate_gradients(lambda t: t + root * kernel(root * t), root * g))


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve apply(t) = target [B, M] sample by sample, to rounding."""
    t = torch.zeros_like(target)
    residual = direction = target
    size = residual.square().sum(-1, keepdim=True)
    goal = size * torch.finfo(target.dtype).eps ** 2
    looks = can_check_values(target)
    for _ in range(MAX_CG if looks else _fixed_steps.get()):
        image = apply(direction)
        length = size * inverse_or_zero((direction * image).sum(-1, keepdim=True))
        t = t + length * direction
        residual = residual - length * image
        smaller = residual.square().sum(-1, keepdim=True)
        if looks and not bool((smaller > goal).any()):
            break
        direction = residual + smaller * inverse_or_zero(size) * direction
        size = smaller
    return t


class _ImplicitSolve(torch.autograd.Function):
    """(I + S D)⁻¹ g whose derivative is with respect to g alone: at a solution g = 0, so no other is needed."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, kernel: Callable[[Tensor], Tensor], mass: Tensor) -> Tensor:
        ctx.kernel, ctx.mass = kernel, mass
        return solve_by_cg(kernel, mass, g)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # The transpose: (I + D S)⁻¹ = I − R (I + R S R)⁻¹ R S.
        root = ctx.mass.sqrt()
        inner = _conjugate_gradients(lambda t: t + root * ctx.kernel(root * t), root * ctx.kernel(grad))
        return grad - root * inner, None, None


def newton_step(
    x: Tensor,
    log_apply: LogApply,
    kernel: Callable[[Tensor], Callable[[Tensor], Tensor]],
    mass: Tensor,
    valid: Tensor,
) -> Tensor:
    """x once more, now with its first derivative, in memory linear in M."""
    if not torch.is_grad_enabled():
        return x
    fixed = kernel(x)

    def apply(v: Tensor) -> Tensor:
        with torch.no_grad():
            return fixed(v)

    g = torch.where(valid, x + log_apply(x), 0)
    return x - _ImplicitSolve.apply(g, apply, mass) if g.requires_grad else x


def log_positive(sums: Tensor, empty: float = -torch.inf) -> Tensor:
    """log of [B, M, 1] as [B, M], and `empty`, without a gradient, where it is not positive; NaN stays NaN."""
    is_empty = sums <= 0
    return torch.where(is_empty, empty, torch.where(is_empty, 1, sums).log()).squeeze(-1)
