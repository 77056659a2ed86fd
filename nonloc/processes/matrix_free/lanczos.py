"""The largest eigenvalue of a self-adjoint map from products alone, in memory of a few vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_or_zero

MAX_PRODUCTS = 3000
FIRST_LOOK = 24


def largest_eigenvalue(
    apply: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """(θ, residual) [B] each of a map v [B, N] -> A v whose spectrum lies below 1: θ never exceeds the eigenvalue.

    Lanczos' three-term recurrence. Its vectors lose their orthogonality once a value has converged, which adds copies
    of that value and moves none, so they need not be kept. It ends when the residual is `tolerance` times 1 − θ.
    """
    length = start.norm(dim=-1, keepdim=True)
    before, vector = torch.zeros_like(start), start * inverse_or_zero(length)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    look, reached = FIRST_LOOK, torch.zeros_like(length)
    while True:
        image = apply(vector) - reached * before
        share = (image * vector).sum(-1, keepdim=True)
        image = image - share * vector
        size = (share.square() + reached.square()).sqrt()
        reached = image.norm(dim=-1, keepdim=True)
        # What is left of an exhausted space is rounding.
        reached = torch.where(reached <= 8 * torch.finfo(start.dtype).eps * size, 0, reached)
        diagonal.append(share.squeeze(-1))
        beside.append(reached.squeeze(-1))
        before, vector = vector, image * inverse_or_zero(reached)
        if len(diagonal) < look and bool((reached > 0).any()):
            continue
        theta, residual = _largest_ritz_value(torch.stack(diagonal, -1), torch.stack(beside, -1))
        enough = residual <= tolerance * (1 - theta).clamp(min=1e-12)
        if bool(enough.all()) or len(diagonal) >= MAX_PRODUCTS or not bool((reached > 0).any()):
            return theta, residual
        look = min(MAX_PRODUCTS, look + look // 4)


def _largest_ritz_value(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """Of the tridiagonal matrix with these entries [B, k], and how far it is from an eigenvalue at most [B]."""
    # A space that ended at step e goes on with zeros, which must not pass for an eigenvalue 0.
    ended = (beside == 0).cumsum(-1) - (beside == 0).to(torch.long) > 0
    small = torch.diag_embed(torch.where(ended, -2, diagonal))
    small = small + torch.diag_embed(beside[:, :-1], 1) + torch.diag_embed(beside[:, :-1], -1)
    values, vectors = torch.linalg.eigh(small)
    return values[:, -1], beside[:, -1] * vectors[:, -1, -1].abs()
