"""exp(t A) z without exp(t A): in the Krylov space of z, where A is a small matrix H.

A step of length τ keeps the error estimate h_{m+1,m} |e_mᵀ τφ₁(τH) e₁|, an integral over the part of the solution
that has reached the edge of the space, below its share of the tolerance; where the space is too small for the whole
time, τ is shortened and a new space begins at the state reached. All samples share τ, each has its own space.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_or_zero

Apply = Callable[[Tensor], Tensor]  # v [B, N] -> A v [B, N]

LARGEST_SPACE = 40
BASIS_ENTRIES = 2**28  # of one basis; a larger state gets a smaller space, and more of them
SMALLEST_SPACE = 8
MOST_ROUNDING = 1e-3  # of what a mode at rest may be off by: eps · time · |A|
FIRST_LOOK = 4  # vectors before the error is estimated for the first time, and between two looks


class KrylovSpace:
    """An orthonormal basis of span{z, Az, A²z, …}, sample by sample, with A V_m = V_{m+1} H (Arnoldi's relation).

    basis       [B, m + 1, N]
    hessenberg  [B, m + 1, m]
    length      [B], the norm of z
    A sample whose space is exhausted goes on with zero vectors and zero columns.
    """

    def __init__(self, apply: Apply, z: Tensor, largest: int) -> None:
        batch, width = z.shape
        affordable = max(SMALLEST_SPACE, BASIS_ENTRIES // max(1, batch * width))
        self.largest = max(1, min(largest, width, affordable))
        self.size = 0
        self.length = safe_norm(z)
        self._apply = apply
        self._basis = z.new_zeros(batch, self.largest + 1, width)
        self._basis[:, 0] = z * inverse_or_zero(self.length).unsqueeze(-1)
        self._hessenberg = z.new_zeros(batch, self.largest + 1, self.largest)

    @property
    def basis(self) -> Tensor:
        return self._basis[:, : self.size + 1]

    @property
    def hessenberg(self) -> Tensor:
        return self._hessenberg[:, : self.size + 1, : self.size]

    @property
    def is_full(self) -> bool:
        return self.size == self.largest

    def extend(self, count: int) -> None:
        """Up to `count` more vectors."""
        for _ in range(min(count, self.largest - self.size)):
            self._add()

    def _add(self) -> None:
        known = self._basis[:, : self.size + 1]
        image = self._apply(self._basis[:, self.size]).unsqueeze(-1)
        size = image.norm(dim=1)
        total = torch.zeros_like(known[..., :1])
        # Twice is enough: the second pass takes away what rounding left of the first.
        for _ in range(2):
            shares = known @ image
            image = image - known.mT @ shares
            total = total + shares
        rest = image.norm(dim=1)
        # What is left of an exhausted space is rounding, and must not be blown up to length 1.
        rest = torch.where(rest <= 8 * torch.finfo(rest.dtype).eps * size, 0, rest)
        self._hessenberg[:, : self.size + 1, self.size] = total.squeeze(-1)
        self._hessenberg[:, self.size + 1, self.size] = rest.squeeze(-1)
        self._basis[:, self.size + 1] = image.squeeze(-1) * inverse_or_zero(rest)
        self.size += 1


def exponential_action(
    apply: Apply,
    z: Tensor,
    time: float,
    *,
    tolerance: float | None = None,
    largest_space: int = LARGEST_SPACE,
) -> Tensor:
    """exp(time · A) z for z [B, N], each sample within `tolerance` of its own size (near rounding when left out).

    A is known to eps |A|, so that no method knows exp(time · A) better than eps · time · |A|; where that is more than
    a thousandth, a ValueError names a time that is short enough.
    """
    eps = torch.finfo(z.dtype).eps
    tolerance = 16 * eps if tolerance is None else tolerance
    done, step = 0.0, time
    while done < time and z.numel() > 0:
        if not bool(torch.isfinite(z).all()):
            return z
        space = KrylovSpace(apply, z, largest_space)
        rest = time - done
        step = min(step, rest)
        while True:
            space.extend(FIRST_LOOK)
            if not bool(torch.isfinite(space.hessenberg).all()):
                return torch.full_like(z, torch.nan)
            _check_time(time, space.hessenberg)
            shares, error = _small_exponential(space.hessenberg, step)
            if error <= max(tolerance * step / time, 2 * eps):
                break
            if space.is_full:
                step *= 0.5
        z = _combine(space, shares)
        done = time if step == rest else done + step
        step *= 2
        if done < time and _is_at_rest(apply, z, space.hessenberg):
            return z
    return z


def _is_at_rest(apply: Apply, z: Tensor, hessenberg: Tensor) -> bool:
    """Whether A z is no more than rounding leaves of it, in every sample.

    What is left of a mode of rate λ is then below 4 eps |A| / λ. It would be gone, or move by λ t times that: either
    way what is not done is below 4 eps t |A|, as well as exp(tA) is known.
    """
    size = hessenberg.norm(dim=(-2, -1))
    return bool((safe_norm(apply(z)) <= 4 * torch.finfo(z.dtype).eps * size * safe_norm(z)).all())


def _small_exponential(hessenberg: Tensor, step: float) -> tuple[Tensor, float]:
    """Coordinates [B, m + 1] of exp(step · A) z / |z|, and the largest error estimate of the samples.

    With H bordered by its last row, the exponential's last entry is the integral that estimates the error, and
    also the first correction: the coordinate along v_{m+1}.
    """
    size = hessenberg.shape[-1]
    bordered = torch.nn.functional.pad(hessenberg.double(), (0, 1))
    column = dense_exponential(step * bordered)[:, :, 0]
    if not bool(torch.isfinite(column).all()):
        return column, float("inf")
    # Growth is no error: a reversed process is held to the size that it has reached.
    reached = safe_norm(column).clamp(min=1)
    return column, float((column[:, size].abs() / reached).max())


def dense_exponential(matrices: Tensor) -> Tensor:
    """exp of each matrix [B, n, n], exact to rounding for every B."""
    # torch computes a single matrix of a norm between 0.002 and 0.05 with a wrong coefficient, to 1e-10 instead of
    # 1e-16 (pytorch/pytorch#196592); two matrices take another path.
    return torch.matrix_exp(torch.cat([matrices, matrices[:1]]))[: matrices.shape[0]]


def _check_time(time: float, hessenberg: Tensor) -> None:
    size = float(hessenberg.norm(dim=(-2, -1)).max())
    longest = MOST_ROUNDING / (torch.finfo(hessenberg.dtype).eps * size) if size > 0 else float("inf")
    if time > longest:
        raise ValueError(
            f"a step of {time:g} is too long for exp(tA) in {hessenberg.dtype}: rounding alone would decide what comes "
            f'of it; use step_size ≤ {longest:.1e}, when all but slow modes are at rest, or stepper="implicit"'
        )


def _combine(space: KrylovSpace, shares: Tensor) -> Tensor:
    """Σ_k |z| s_k v_k [B, N]."""
    weights = (space.length.double().unsqueeze(-1) * shares).to(space.basis.dtype)
    return (weights.unsqueeze(1) @ space.basis).squeeze(1)


def safe_norm(z: Tensor) -> Tensor:
    """|z| of each sample [B], also where the squares would overflow; 0 where it is below the smallest normal number,
    whose inverse is none."""
    if z.shape[-1] == 0:
        return z.new_zeros(z.shape[:-1])
    peak = z.abs().amax(-1, keepdim=True)
    peak = torch.where(peak < torch.finfo(z.dtype).tiny, 0, peak)
    return (peak * (z * inverse_or_zero(peak)).norm(dim=-1, keepdim=True)).squeeze(-1)
