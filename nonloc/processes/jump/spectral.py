"""The spectral gap of a jump process: how fast its laws approach the stationary one.

In L²(π), P is similar to S = diag(√π) P diag(1/√π), which has √π as its eigenvector for 1 and is symmetric where the
process is reversible. On what is orthogonal to √π,

    continuous time   d/dt |f|² ≤ −2 (1 − λ) |f|²   with λ the largest eigenvalue of (S + Sᵀ)/2
    discrete time     |P f| ≤ σ |f|                 with σ the largest singular value of S

for every process, and for a reversible one λ and σ are the second eigenvalue and the second largest |eigenvalue| of P.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_root_or_zero
from nonloc.ops.bounds import has_symmetric_kernel
from nonloc.processes.jump.classes import LARGEST, closed_classes
from nonloc.processes.jump.stationary import LARGEST_DENSE, valid_positions
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.matrix_free.lanczos import largest_eigenvalue

METHODS = ("auto", "dense", "lanczos")
# An eigenvalue this close to 1, times M, is 1 up to rounding: the positions fall apart.
ROUNDING = 16 * torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class SpectralGap:
    """The gap, and how much it can be relied on.

    value     [B]   1 − λ₂ (absolute: 1 − max |λ|) for a reversible process; otherwise the rate at which deviations
                    from π are known to shrink in L²(π). 0: the positions fall apart, so that there are several
                    stationary laws (absolute: or they walk in step, or a step of a process that is not reversible
                    shrinks nothing)
    kind      "exact": from all eigenvalues; "estimate": by Lanczos, from above, for its λ₂ is never too large
    absolute  whether it is that of discrete time with h = 1
    residual  [B]   of Lanczos: an eigenvalue lies this close to the one found; None for "exact"
    """

    value: Tensor
    kind: str
    absolute: bool
    residual: Tensor | None = None

    def __float__(self) -> float:
        """The value, for a batch of one."""
        return float(self.value)


def spectral_gap(transitions: Transitions, law: Tensor, absolute: bool, method: str) -> SpectralGap:
    """The gap over the positions with π > 0; positions that no walker visits in the long run have no part in it."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown; choose one of {', '.join(METHODS)}")
    with torch.no_grad():
        if method == "dense" or (method == "auto" and transitions.positions <= LARGEST_DENSE):
            second, residual = _second_dense(transitions, law, absolute), None
        else:
            symmetric = has_symmetric_kernel(transitions.affinity)
            if not symmetric:
                # A law that was found by iteration is noise where it is very small: leave out a billionth of it.
                law = torch.where(law > 1e-9 / transitions.positions, law, 0)
                law = law / law.sum(-1, keepdim=True)
            second, residual = _second_lanczos(transitions, law, absolute, symmetric)
    gap = 1 - second
    gap = torch.where(gap <= ROUNDING * transitions.positions, 0, gap)
    # A single position has nothing left to approach; a walker in another closed class never approaches this law.
    gap = torch.where((law > 0).sum(-1) > 1, gap, 1)
    gap = torch.where(falls_apart(transitions, law, by_matrix=residual is None), 0, gap)
    return SpectralGap(gap, "exact" if residual is None else "estimate", absolute, residual)


def falls_apart(transitions: Transitions, law: Tensor, by_matrix: bool) -> Tensor:
    """[B]: whether there is more than one closed class; without the matrix, seen by positions that are never left."""
    valid = valid_positions(transitions) > 0
    if by_matrix and transitions.positions <= LARGEST:
        numbers = [closed_classes(*one) for one in zip(transitions.matrix(), valid, strict=True)]
        return torch.tensor([int(one.max()) > 0 for one in numbers], dtype=torch.bool, device=law.device)
    alone = transitions.stays & valid
    return alone.sum(-1) + ((law > 0) & ~alone).any(-1).long() > 1


def _second_dense(transitions: Transitions, law: Tensor, absolute: bool) -> Tensor:
    """λ or σ [B] from the matrix."""
    root, inverse = law.sqrt(), inverse_root_or_zero(law)
    similar = root.unsqueeze(-1) * transitions.matrix() * inverse.unsqueeze(-2)
    top = root.unsqueeze(-1) * root.unsqueeze(-2)
    if absolute:
        return torch.linalg.matrix_norm(similar - top, 2)
    # √π, and positions outside, are sent below every eigenvalue, which are ≥ −1.
    below = 3 * top + torch.diag_embed(2 * (law == 0).to(law.dtype))
    return torch.linalg.eigvalsh(0.5 * (similar + similar.mT) - below)[:, -1]


def _second_lanczos(
    transitions: Transitions, law: Tensor, absolute: bool, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """λ or σ [B] from products alone, from below, and the residual."""
    root, inverse = law.sqrt(), inverse_root_or_zero(law)

    def without_top(v: Tensor) -> Tensor:
        return v - root * (root * v).sum(-1, keepdim=True)

    def forward(v: Tensor) -> Tensor:
        return root * transitions.average((inverse * v).unsqueeze(-1)).squeeze(-1)

    def backward(v: Tensor) -> Tensor:
        return inverse * transitions.move((root * v).unsqueeze(-1)).squeeze(-1)

    def apply(v: Tensor) -> Tensor:
        v = without_top(v)
        if absolute:
            image = forward(forward(v)) if symmetric else backward(forward(v))
        else:
            image = forward(v) if symmetric else 0.5 * (forward(v) + backward(v))
        return without_top(image)

    start = torch.rand(law.shape, generator=torch.Generator().manual_seed(0), dtype=law.dtype)
    value, residual = largest_eigenvalue(apply, without_top((law > 0) * (start.to(law.device) - 0.5)))
    return (value.clamp(min=0).sqrt(), residual) if absolute else (value, residual)
