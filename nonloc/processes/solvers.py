"""(I − hA) x = z without a matrix: conjugate gradients where A is self-adjoint, GMRES where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.outcomes import NonlocError
from nonloc.processes.krylov import Apply, KrylovSpace, safe_norm

TOLERANCE = 1e-12  # of the residual, relative to |z|, sample by sample
LARGEST_RESIDUAL = 0.1  # a larger one means that rounding has hidden z
MAX_PRODUCTS = 40_000
SPACE = 50
BETWEEN_LOOKS = 10
STALLED = 4  # rounds without progress


class NotSolvedError(NonlocError):
    """No solution of an implicit step; the message names the residual and the fix.

    >>> from nonloc import Affinity, Diffusion, simulate
    >>> from nonloc.processes import NotSolvedError
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> growing = Diffusion(Affinity(same, same, "heat"), weight=-1.0)  # I − h A is singular for h = 1
    >>> try:
    ...     path = simulate(growing, z, num_steps=1, stepper="implicit")
    ... except NotSolvedError:
    ...     print("another step size")
    another step size
    """


def solve_implicit(apply: Apply, z: Tensor, step: float, weights: Tensor | None) -> Tensor:
    """x [B, N] with x − h A x = z, to a residual of 1e-12 |z| (or the rounding of x itself, where h|A| is large; never
    more than a tenth of |z|).

    weights  [B or 1, N], the inner product in which A is self-adjoint and dissipative; None where it is not
    """
    if z.numel() == 0:
        return z
    # Squares of a small state underflow long before the state itself: scale it first.
    smallest = int(math.log2(torch.finfo(z.dtype).tiny)) + 10
    exponent = torch.frexp(z.abs().amax(-1, keepdim=True)).exponent.clamp(min=smallest)
    return torch.ldexp(_solve(apply, torch.ldexp(z, -exponent), step, weights), exponent)


def _solve(apply: Apply, z: Tensor, step: float, weights: Tensor | None) -> Tensor:
    system = _System(apply, z, step)
    residual = system.residual(z)
    if not bool(torch.isfinite(residual).all()):
        return residual  # the caller sees the overflow
    x = z
    # The inner product does not see positions of weight 0. Where they must move, conjugate gradients do not apply.
    if weights is not None and not bool(((weights == 0) & (residual != 0)).any()):
        x = _in_rounds(system, x, lambda r: _conjugate_gradients(system, r, weights))
    x = _in_rounds(system, x, lambda r: _smallest_residual(system, r))
    residual = system.residual(x)
    if bool((system.size(residual, x) <= system.allowed(x)).all()):
        return x
    worst = float((system.size(residual, x) * inverse_or_zero(safe_norm(z))).max())
    raise NotSolvedError(
        f'stepper="implicit" could not solve (I − hA) z′ = z with h = {step:g}: the residual is {worst:.1e} |z| after '
        f"{system.products} products, and {TOLERANCE:g} is asked for. I − hA is (nearly) singular, or h is too large "
        'for this process; use a smaller step_size, or stepper="exact"'
    )


class _System:
    """I − hA on samples z [B, N], and the accuracy to which it can be solved."""

    def __init__(self, apply: Apply, z: Tensor, step: float) -> None:
        self.z, self.step, self.products = z, step, 0
        self._apply = apply
        self._eps = torch.finfo(z.dtype).eps
        self._size = safe_norm(z)
        self._largest = torch.zeros_like(self._size)  # of |A v| / |v|, a lower bound of |A|
        self.target = max(TOLERANCE, 8 * self._eps) * self._size

    def image(self, v: Tensor) -> Tensor:
        """A v."""
        self.products += 1
        result = self._apply(v)
        self._largest = torch.maximum(self._largest, safe_norm(result) * inverse_or_zero(safe_norm(v)))
        return result

    def residual(self, x: Tensor) -> Tensor:
        return self.z - x + self.step * self.image(x)

    def size(self, residual: Tensor, x: Tensor) -> Tensor:
        """|residual| [B], and no less than the rounding of a very large x."""
        return torch.maximum(safe_norm(residual), self._eps * safe_norm(x))

    def allowed(self, x: Tensor) -> Tensor:
        """The largest residual that counts as solved [B]: the target, or the rounding of the best x."""
        # Rounding x moves h A x by eps h |A| |x|: below that a residual says nothing about the solution.
        size = torch.minimum(safe_norm(x), self._size)
        rounding = 4 * self._eps * (1 + self.step * self._largest) * size
        return torch.maximum(self.target, torch.minimum(rounding, LARGEST_RESIDUAL * self._size))


def _in_rounds(system: _System, x: Tensor, correction: Callable[[Tensor], Tensor]) -> Tensor:
    """Correct x by its true residual, in rounds, while that helps."""
    best, stalled = float("inf"), 0
    while system.products < MAX_PRODUCTS:
        residual = system.residual(x)
        size = system.size(residual, x)
        if bool((size <= system.target).all()):
            return x
        worst = float((size * inverse_or_zero(system.target)).max())
        stalled = stalled + 1 if worst > 0.5 * best else 0
        best = min(best, worst)
        if stalled >= STALLED or (stalled and bool((size <= system.allowed(x)).all())):
            return x
        moved = x + correction(residual)
        if not bool(torch.isfinite(moved).all()):
            return x
        x = moved
    return x


def _conjugate_gradients(system: _System, residual: Tensor, weights: Tensor) -> Tensor:
    """The correction of x for a residual, sample by sample in ⟨u, v⟩ = Σ_i π_i u_i v_i."""

    def inner(u: Tensor, v: Tensor) -> Tensor:
        return (weights * u * v).sum(-1, keepdim=True)

    x, direction, size = torch.zeros_like(residual), residual, inner(residual, residual)
    while system.products < MAX_PRODUCTS // 2:
        image = direction - system.step * system.image(direction)
        length = size * inverse_or_zero(inner(direction, image))
        x = x + length * direction
        residual = residual - length * image
        if not bool((safe_norm(residual) > 0.25 * system.target).any()):
            break
        smaller = inner(residual, residual)
        direction = residual + smaller * inverse_or_zero(size) * direction
        size = smaller
    return x


def _smallest_residual(system: _System, residual: Tensor) -> Tensor:
    """GMRES: V y with y the minimiser of |β e₁ − (I − hH) y|, in a space that grows until that is small."""
    space = KrylovSpace(system.image, residual, SPACE)
    while True:
        space.extend(BETWEEN_LOOKS)
        hessenberg = space.hessenberg.double()
        identity = torch.eye(*hessenberg.shape[-2:], dtype=torch.float64, device=hessenberg.device)
        # The zero columns of an exhausted space become e_k here: full rank, and y_k = 0.
        shifted = identity - system.step * hessenberg
        start = space.length.double().view(-1, 1, 1) * identity[:, :1]
        orthogonal, triangle = torch.linalg.qr(shifted)
        shares = torch.linalg.solve_triangular(triangle, orthogonal.mT @ start, upper=True)
        left = (start - shifted @ shares).norm(dim=1).squeeze(-1)
        if space.is_full or bool((left <= 0.25 * system.target).all()):
            return (shares.mT.to(space.basis.dtype) @ space.basis[:, :-1]).squeeze(1)
