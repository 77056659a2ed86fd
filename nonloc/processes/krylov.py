"""Krylov methods: exp(t A) z, and the extreme eigenvalues of A, from products with A alone.

exp(t A) z is computed in the Krylov space of z, where A is a small matrix H. A step of length τ keeps the error
estimate h_{m+1,m} |e_mᵀ τφ₁(τH) e₁| below its share of the tolerance. It is an integral over the part of the solution
that has reached the edge of the space. Where the space is too small for the whole time, τ is shortened and a new space
begins at the new state. All samples share τ, each has its own space.
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
BETWEEN_ESTIMATES = 4  # vectors between two estimates of the error
FIRST_RITZ = 24  # products before Lanczos computes eigenvalues for the first time


class KrylovSpace:
    """An orthonormal basis of span{z, Az, A²z, …}, sample by sample, with A V_m = V_{m+1} H (Arnoldi's relation).

    basis       [B, m + 1, N]
    hessenberg  [B, m + 1, m]
    length      [B], the norm of z
    A sample whose space is exhausted continues with zero vectors and zero columns.
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
        """Add up to `count` vectors."""
        for _ in range(min(count, self.largest - self.size)):
            self._add()

    def _add(self) -> None:
        known = self._basis[:, : self.size + 1]
        image = self._apply(self._basis[:, self.size]).unsqueeze(-1)
        size = image.norm(dim=1)
        total = torch.zeros_like(known[..., :1])
        # The second pass removes what rounding left after the first; a third is not needed.
        for _ in range(2):
            shares = known @ image
            image = image - known.mT @ shares
            total = total + shares
        rest = image.norm(dim=1)
        # The rest of an exhausted space is rounding, and must not be scaled to length 1.
        rest = torch.where(rest <= 8 * torch.finfo(rest.dtype).eps * size, 0, rest)
        self._hessenberg[:, : self.size + 1, self.size] = total.squeeze(-1)
        self._hessenberg[:, self.size + 1, self.size] = rest.squeeze(-1)
        self._basis[:, self.size + 1] = image.squeeze(-1) * inverse_or_zero(rest)
        self.size += 1


def exponential_action(apply: Apply, z: Tensor, time: float) -> Tensor:
    """exp(time · A) z for z [B, N], each sample near rounding of its own size.

    A has a rounding error of eps |A|, so exp(time · A) has one of eps · time · |A| by any method. Where that is more
    than a thousandth, a ValueError names a time that is short enough.
    """
    eps = torch.finfo(z.dtype).eps
    done, step = 0.0, time
    while done < time and z.numel() > 0:
        if not bool(torch.isfinite(z).all()):
            return z
        space = KrylovSpace(apply, z, LARGEST_SPACE)
        rest = time - done
        step = min(step, rest)
        while True:
            space.extend(BETWEEN_ESTIMATES)
            if not bool(torch.isfinite(space.hessenberg).all()):
                return torch.full_like(z, torch.nan)
            _check_time(time, space.hessenberg)
            shares, error = _small_exponential(space.hessenberg, step)
            if error <= max(16 * eps * step / time, 2 * eps):
                break
            if space.is_full:
                step *= 0.5
        # Σ_k |z| s_k v_k
        weights = (space.length.double().unsqueeze(-1) * shares).to(z.dtype)
        z = (weights.unsqueeze(1) @ space.basis).squeeze(1)
        done = time if step == rest else done + step
        step *= 2
        if done < time and _is_at_rest(apply, z, space.hessenberg):
            return z
    return z


def _is_at_rest(apply: Apply, z: Tensor, hessenberg: Tensor) -> bool:
    """Whether A z is rounding alone, in every sample.

    A mode of rate λ is then below 4 eps |A| / λ. Further steps would change it by at most 4 eps t |A|, which is the
    accuracy of exp(tA) itself.
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
    # Growth is no error: the error of a reversed process is relative to its final size.
    reached = safe_norm(column).clamp(min=1)
    return column, float((column[:, size].abs() / reached).max())


def dense_exponential(matrices: Tensor) -> Tensor:
    """exp of each matrix [B, n, n], exact to rounding for every B."""
    # torch computes a single matrix of a norm between 0.002 and 0.05 with a wrong coefficient, to 1e-10 instead of
    # 1e-16 (pytorch/pytorch#196592); two matrices take another path.
    return torch.matrix_exp(torch.cat([matrices, matrices[:1]]))[: matrices.shape[0]]


def lanczos(
    apply: Apply, start: Tensor, most: int, is_enough: Callable[[Tensor, Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Estimate the extreme eigenvalues of a self-adjoint map v [B, N] -> A v.

    Returns (low, high, residual) [B] each: low and high never lie outside the spectrum, and `residual` says how far
    high is from an eigenvalue at most. All are NaN where a product is not finite.

    most       products at most
    is_enough  (high, residual) -> bool [B]; stop when all are True. Such a run may be long, so it stores no vectors.
               They lose their orthogonality once a value has converged, which adds copies of it and moves none.
               Without is_enough all products are made, and new vectors are made orthogonal to the stored ones
    """
    length = start.norm(dim=-1, keepdim=True)
    before, vector = torch.zeros_like(start), start * inverse_or_zero(length)
    diagonals: list[Tensor] = []
    couplings: list[Tensor] = []
    coupling = torch.zeros_like(length)
    stores = is_enough is None and most * start.numel() <= BASIS_ENTRIES
    most = min(most, max(1, start.shape[-1])) if stores else most
    basis = start.new_zeros(start.shape[0], most if stores else 0, start.shape[-1])
    next_estimate = most if is_enough is None else FIRST_RITZ
    while True:
        image = apply(vector) - coupling * before
        share = (image * vector).sum(-1, keepdim=True)
        image = image - share * vector
        if stores:
            basis[:, len(diagonals)] = vector
            image = image - (basis.mT @ (basis @ image.unsqueeze(-1))).squeeze(-1)
        size = (share.square() + coupling.square()).sqrt()
        coupling = image.norm(dim=-1, keepdim=True)
        # The rest of an exhausted space is rounding.
        coupling = torch.where(coupling <= 8 * torch.finfo(start.dtype).eps * size, 0, coupling)
        diagonals.append(share.squeeze(-1))
        couplings.append(coupling.squeeze(-1))
        before, vector = vector, image * inverse_or_zero(coupling)
        is_exhausted = not bool((coupling > 0).any())
        if len(diagonals) < next_estimate and not is_exhausted:
            continue
        low, high, residual = _ritz_values(torch.stack(diagonals, -1), torch.stack(couplings, -1))
        if is_exhausted or len(diagonals) >= most:
            return low, high, residual
        if is_enough is not None and bool(is_enough(high, residual).all()):
            return low, high, residual
        next_estimate = min(most, next_estimate + next_estimate // 4)


def _ritz_values(diagonal: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The extreme eigenvalues of the tridiagonal matrix with these entries [B, k], and the residual of the largest."""
    if not bool((diagonal.isfinite() & coupling.isfinite()).all()):
        nothing = torch.full_like(diagonal[:, 0], torch.nan)
        return nothing, nothing, nothing
    # A space that ended continues with zeros, which are no eigenvalues; the first entry lies between the extremes.
    ended = (coupling == 0).cumsum(-1) - (coupling == 0).to(torch.long) > 0
    small = torch.diag_embed(torch.where(ended, diagonal[:, :1], diagonal))
    small = small + torch.diag_embed(coupling[:, :-1], 1) + torch.diag_embed(coupling[:, :-1], -1)
    values, vectors = torch.linalg.eigh(small)
    return values[:, 0], values[:, -1], coupling[:, -1] * vectors[:, -1, -1].abs()


def _check_time(time: float, hessenberg: Tensor) -> None:
    size = float(hessenberg.norm(dim=(-2, -1)).max())
    longest = MOST_ROUNDING / (torch.finfo(hessenberg.dtype).eps * size) if size > 0 else float("inf")
    if time > longest:
        raise ValueError(
            f"a step of {time:g} is too long for exp(tA) in {hessenberg.dtype}: rounding alone would decide what comes "
            f'of it; use step_size ≤ {longest:.1e}, when all but slow modes are at rest, or stepper="implicit"'
        )


def safe_norm(z: Tensor) -> Tensor:
    """|z| of each sample [B], also where the squares would overflow; 0 where it is below the smallest normal number,
    whose inverse is none."""
    if z.shape[-1] == 0:
        return z.new_zeros(z.shape[:-1])
    peak = z.abs().amax(-1, keepdim=True)
    peak = torch.where(peak < torch.finfo(z.dtype).tiny, 0, peak)
    return (peak * (z * inverse_or_zero(peak)).norm(dim=-1, keepdim=True)).squeeze(-1)
