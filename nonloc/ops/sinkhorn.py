"""The symmetric scaling u with u_i Σ_j Ω_ij μ_j u_j = 1, in the log domain: x = log u.

With G(x) = x + log Ω(μ e^x) the steps are x ← x − α G(x) + β (x − the x before): gradient steps with momentum. The
Jacobian I + K of G has eigenvalues between 1 and 2 where the scaled kernel K is positive semi-definite, and α and β are
the best for those: each step leaves 0.17 of the error. The textbook alternation can need tens of thousands. What they
leave is removed by a few Newton steps on the row sums r(x) − 1 = e^G − 1: dx = −(diag(r) + K)⁻¹ (r − 1). That matrix is
singular where the graph of Ω is bipartite, with as much mass on either side, and u may grow on one while it shrinks on
the other; r − 1 has no part there, whatever x is, which G has. A kernel without total support has no scaling: its
Newton steps only halve the residual, so it is recognised after a bounded number of them.

The derivative is that of the solution, not of the iteration. With the matrix: from a converged and detached x, one
Newton step carries the exact first derivative and two carry the second, because each squares the error. Without the
matrix: G(x, θ) = 0 is differentiated implicitly, to any order, by conjugate gradients on I + K and its transpose.

Where the residual may not be read, as in a traced program, the number of steps is fixed. UNSEEN_STEPS are enough for
positive semi-definite kernels. For others, such as "concat", rows may then miss 1 by more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc._torch_compat import (
    can_read_values,
    is_exporting,
    is_fake,
    is_vmapped,
    needs_derivative,
    needs_plain_torch,
)
from nonloc.ops.arithmetic import LOG_ZERO, inverse_or_zero
from nonloc.ops.derivatives import solution

RATE = 4 / (1 + 2**0.5) ** 2  # α
MOMENTUM = ((2**0.5 - 1) / (2**0.5 + 1)) ** 2  # β
MAX_STEPS = 200
MAX_NEWTON = 20
NEAR = 1.0  # x moves no entry of K by more than e²
MAX_CG = 1000  # a ring of M positions needs several M
BATCHED_NEWTON = 4  # under vmap, where the residual cannot be read
CAPTURED_NEWTON = 1  # in a CUDA graph, where every replay repeats it
STALLED = 3  # this many steps without improvement: rounding is reached

# How many steps are taken where the residual may not be looked at (tracing, capturing, vmap, shapes alone).
UNSEEN_STEPS = 40

# x [B, M] -> log Σ_j Ω_ij μ_j e^{x_j} [B, M]; −inf or LOG_ZERO for an empty row
LogApply = Callable[[Tensor], Tensor]
Matvec = Callable[[Tensor], Tensor]
Solve = Callable[[Tensor, Tensor], Tensor]  # (x, G) [B, M] -> (diag(r) + K(x))⁻¹ (r − 1) with r = e^G


def _unseen_newton(x: Tensor) -> int:
    """The number of Newton steps after fixed steps; 0 without contents and while compiling, which unrolls each."""
    if torch.compiler.is_compiling() or is_fake(x):
        return 0
    if is_vmapped(x):
        return BATCHED_NEWTON
    return CAPTURED_NEWTON if x.is_cuda and torch.cuda.is_current_stream_capturing() else 0


def _stepped(x: Tensor, before: Tensor, g: Tensor) -> Tensor:
    """The next x after `before` and x, with g = G(x)."""
    return x - RATE * g + MOMENTUM * (x - before)


class _Nearby:
    """`log_apply` with few exponentials: near b, log Ω(μ e^x) = log(K(b) e^(x − b)) − b is a product.

    b is the last x that was asked for where no row sum of K was far from 1, so that K(b) has no overflow.
    """

    def __init__(self, log_apply: LogApply, scaled: Callable[[Tensor], Tensor], valid: Tensor) -> None:
        self.log_apply, self.scaled, self.valid = log_apply, scaled, valid
        self.near: tuple[Tensor, Tensor] | None = None  # b and K(b)

    def __call__(self, x: Tensor) -> Tensor:
        if self.near is not None:
            base, kernel = self.near
            move = x - base
            if bool((move.abs() <= NEAR).all()):
                return (kernel @ move.exp().unsqueeze(-1)).squeeze(-1).log() - base
        result = self.log_apply(x)
        if bool((torch.where(self.valid, x + result, 0).abs() <= NEAR).all()):
            self.near = x, self.scaled(x)
        return result


def log_scaling(
    log_apply: LogApply,
    solve: Solve,
    valid: Tensor,
    dtype: torch.dtype,
    largest: Tensor | None = None,
    scaled: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """x = log u [B, M], converged and without a gradient; 0 at positions that are not valid.

    largest  numbers that `log_apply` adds and subtracts again: they bound the precision of x
    scaled   x -> K(x) [B, M, M] where there is room for it, and `log_apply` takes exponentials that it saves
    """
    with torch.no_grad():
        # `detach` is for forward-mode derivatives, which no_grad does not keep from following every step.
        start = log_apply(torch.zeros(valid.shape, dtype=dtype, device=valid.device)).detach()
        x = before = -0.5 * torch.where(valid, start, 0)
        if scaled is not None and can_read_values(x):
            log_apply = _Nearby(log_apply, scaled, valid)

        def residue(x: Tensor) -> Tensor:
            return torch.where(valid, x + log_apply(x), 0).detach()

        if can_read_values(x):
            if bool((valid & (start <= LOG_ZERO / 2)).any()):
                raise ValueError(no_scaling("a position has no affinity to any other or to itself"))
            size = 0.0 if largest is None or largest.numel() == 0 else float(largest.abs().max())
            return _iterate(x, residue, solve, size)
        for _ in range(UNSEEN_STEPS):
            x, before = _stepped(x, before, residue(x)), x
        for _ in range(_unseen_newton(x)):
            x = x - solve(x, residue(x)).detach()
        return x


def _iterate(x: Tensor, residue: Callable[[Tensor], Tensor], solve: Solve, largest: float) -> Tensor:
    if x.numel() == 0:
        return x
    eps = torch.finfo(x.dtype).eps
    # A sample with NaN keeps it; the other samples are scaled.
    g = residue(x)
    known = torch.isfinite(g).all(-1)
    if not bool(known.any()):
        return x
    before, best, best_error, stalled = x, x, float("inf"), 0
    for step in range(MAX_STEPS + MAX_NEWTON):
        error = float(torch.expm1(g[known]).abs().max())
        if error != error:  # without a scaling to go to, Newton steps run out of the range of numbers
            break
        stalled = 0 if error < best_error else stalled + 1
        if error < best_error:
            best, best_error = x, error
        # Logits are rounded at eps times their size, so this is as well as a scaling can be known. x itself counts
        # little: without a scaling to go to it grows, and must not excuse the error by that.
        reachable = eps * (256 * (1 + largest) + 4 * float(best[known].abs().max()))
        if best_error <= 2 * eps or (stalled >= STALLED and best_error <= reachable):
            return best
        x, before = _stepped(x, before, g) if step < MAX_STEPS else x - solve(x, g).detach(), x
        g = residue(x)
    if best_error <= reachable:
        return best
    raise ValueError(
        no_scaling(
            f"rows sum to 1 ± {best_error:.1e} at best: no doubly stochastic matrix has these entries (no "
            "total support), or they differ too much, or their graph is a chain too long, for the solver"
        )
    )


def no_scaling(reason: str) -> str:
    return (
        f'normalize="sinkhorn" found no scaling ({reason}); use normalize="symmetric", or a kernel that is positive '
        "everywhere and varies less"
    )


def newton_dense(kernel: Tensor, valid: Tensor) -> Tensor:
    """(diag(r) + K)⁻¹ (r − 1), as (I + K / r)⁻¹ (1 − 1 / r); 0 at positions that are not valid. The ridge serves K with
    eigenvalue −1, on whose mode r − 1 is 0."""
    sums = kernel.sum(-1)
    size, eps = kernel.shape[-1], torch.finfo(kernel.dtype).eps
    identity = torch.eye(size, dtype=kernel.dtype, device=kernel.device)
    shares = inverse_or_zero(sums)
    jacobian = (1 + 16 * eps) * identity + kernel * shares.unsqueeze(-1)
    residual = torch.where(valid, (sums - 1) * shares, 0)
    if not can_read_values(kernel) or kernel.is_cuda:
        return torch.linalg.solve(jacobian, residual.unsqueeze(-1)).squeeze(-1)
    # One by one: with several threads MKL's solution of several systems at once never ends (torch's issue 142815).
    pairs = zip(jacobian.split(1), residual.unsqueeze(-1).split(1), strict=True)
    return torch.cat([torch.linalg.solve(*pair) for pair in pairs]).squeeze(-1)


def unrolled_scaling(log_apply: LogApply, valid: Tensor, dtype: torch.dtype, steps: int) -> Tensor:
    """x = log u [B, M] after this many steps, with the derivatives of these steps; nothing is looked at."""
    start = log_apply(torch.zeros(valid.shape, dtype=dtype, device=valid.device))
    x = before = -0.5 * torch.where(valid, start, 0)
    for _ in range(steps):
        x, before = _stepped(x, before, torch.where(valid, x + log_apply(x), 0)), x
    return x


def scaled_matrix(
    log_apply: LogApply,
    scaled: Callable[[Tensor], Tensor],
    valid: Tensor,
    dtype: torch.dtype,
    *,
    steps: int | None,
    saves_exponentials: bool,
) -> Tensor:
    """K [B, M, M] with its first and second derivatives; `scaled(x)` is K(x).

    steps               as in `Affinity.sinkhorn_steps`
    saves_exponentials  whether a product with K(x) costs less than `log_apply`
    """
    if steps is not None:
        return scaled(unrolled_scaling(log_apply, valid, dtype, steps))
    x = log_scaling(
        log_apply,
        lambda x, _: newton_dense(scaled(x), valid),
        valid,
        dtype,
        scaled=scaled if saves_exponentials else None,
    )
    kernel = scaled(x)
    if can_read_values(x) and not needs_derivative(kernel):
        return kernel
    for _ in range(2):
        step = newton_dense(kernel, valid)
        # Where the rounding of logits is above 1, no step improves x, and a large one would make K infinite.
        x = x - torch.where(step.abs() >= 1, 0, step)
        kernel = scaled(x)
    return kernel


def newton_by_cg(kernel: Matvec, mass: Tensor, g: Tensor) -> Tensor:
    """(diag(r) + S D)⁻¹ (r − 1) for the symmetric S that `kernel` applies, D = diag(mass) and r = e^g, the row sums of
    S D, by conjugate gradients: with R = √D, diag(r) + R S R is symmetric and nowhere negative."""
    root, sums, residual = mass.sqrt(), g.exp(), torch.expm1(g)
    inner = _conjugate_gradients(lambda t: sums * t + root * kernel(root * t), root * residual)
    return (residual - kernel(root * inner)) / sums


def solve_by_cg(kernel: Callable[[Tensor], Tensor], mass: Tensor, g: Tensor) -> Tensor:
    """(I + S D)⁻¹ g for the symmetric S that `kernel` applies and D = diag(mass), by conjugate gradients.

    With R = √D: (I + S D)⁻¹ = I − S R (I + R S R)⁻¹ R, and I + R S R is symmetric with eigenvalues in [0, 2].
    """
    root = mass.sqrt()
    return g - kernel(root * _conjugate_gradients(lambda t: t + root * kernel(root * t), root * g))


def solve_transposed_by_cg(kernel: Matvec, mass: Tensor, g: Tensor) -> Tensor:
    """(I + D S)⁻¹ g = (I − R (I + R S R)⁻¹ R S) g."""
    root = mass.sqrt()
    return g - root * _conjugate_gradients(lambda t: t + root * kernel(root * t), root * kernel(g))


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve apply(t) = target [B, M] sample by sample, to rounding; apply has eigenvalues of about 0 to 2.

    It may be singular on a mode where target is only rounding; that mode is ignored.
    """
    t = torch.zeros_like(target)
    residual = direction = target
    size = residual.square().sum(-1, keepdim=True)
    eps = torch.finfo(target.dtype).eps
    # What is left then is the rounding of target. On a singular mode it would be divided by nearly 0.
    goal = size * (16 * eps) ** 2
    looks = can_read_values(target)
    for _ in range(MAX_CG if looks else UNSEEN_STEPS):
        image = apply(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        length = size * inverse_or_zero(curvature)
        # A sample that has reached its goal waits for the others; its quotients are too small to be used.
        is_flat = curvature <= 64 * eps * direction.square().sum(-1, keepdim=True)
        length = torch.where(is_flat | (size <= goal), 0, length)
        t = t + length * direction
        residual = residual - length * image
        smaller = residual.square().sum(-1, keepdim=True)
        if looks and not bool((smaller > goal).any()):
            break
        direction = residual + smaller * inverse_or_zero(size) * direction
        size = smaller
    return t


@dataclass(frozen=True)
class Scaling:
    """G(x, θ) = x + log Ω(μ e^x) = 0, in memory linear in M; θ are the tensors that decide Ω and μ.

    log_apply  θ -> (x -> log Σ_j Ω_ij μ_j e^{x_j})
    between    (x, θ) -> (v -> S v), S_ij = e^{x_i} Ω_ij e^{x_j}, and 0 where a position is not valid; between
               two positions without mass S is not needed, and may be anything finite
    mass       θ -> μ [B, M], 0 where a position is not valid
    valid      [B, M] bool
    largest    as in `log_scaling`
    steps      as in `Affinity.sinkhorn_steps`
    """

    log_apply: Callable[..., LogApply]
    between: Callable[..., Matvec]
    mass: Callable[..., Tensor]
    valid: Tensor
    dtype: torch.dtype
    largest: Tensor | None = None
    steps: int | None = None

    def solve(self, *theta: Tensor) -> Tensor:
        mass = self.mass(*theta)
        return log_scaling(
            self.log_apply(*theta),
            lambda x, g: newton_by_cg(self.between(x, *theta), mass, g),
            self.valid,
            self.dtype,
            self.largest,
        )

    def residue(self, x: Tensor, *theta: Tensor) -> Tensor:
        return torch.where(self.valid, x + self.log_apply(*theta)(x), 0)

    def adjoint(self, v: Tensor, x: Tensor, *theta: Tensor) -> Tensor:
        return solution(_Newton(self, is_transposed=True), v, x, *theta)


@dataclass(frozen=True)
class _Newton:
    """(I + S D) w = v for w, or its transpose, D = diag(μ): the Jacobian of G at a solution, where I + K = I + S D."""

    scaling: Scaling
    is_transposed: bool

    def solve(self, v: Tensor, x: Tensor, *theta: Tensor) -> Tensor:
        solve = solve_transposed_by_cg if self.is_transposed else solve_by_cg
        return solve(self.scaling.between(x, *theta), self.scaling.mass(*theta), v)

    def residue(self, w: Tensor, v: Tensor, x: Tensor, *theta: Tensor) -> Tensor:
        kernel, mass = self.scaling.between(x, *theta), self.scaling.mass(*theta)
        return w - v + (mass * kernel(w) if self.is_transposed else kernel(mass * w))

    def adjoint(self, u: Tensor, w: Tensor, v: Tensor, x: Tensor, *theta: Tensor) -> Tensor:
        return solution(_Newton(self.scaling, not self.is_transposed), u, x, *theta)


def solve_scaling(scaling: Scaling, *theta: Tensor) -> Tensor:
    """x = log u [B, M] with its derivatives of every order; in an exported program, without them."""
    if scaling.steps is not None:
        return unrolled_scaling(scaling.log_apply(*theta), scaling.valid, scaling.dtype, scaling.steps)
    if is_exporting() or not any(needs_derivative(t) for t in theta):
        return scaling.solve(*theta)
    if needs_plain_torch():
        raise ValueError(
            'normalize="sinkhorn" without the matrix is differentiated by torch.autograd alone, not by torch.func, in '
            'forward mode or within torch.compile; use backend="reference"'
        )
    return solution(scaling, *theta)
