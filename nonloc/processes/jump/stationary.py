"""The law that a jump process leaves as it is, and whether the process looks the same backwards in time."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import self_adjoint_weights
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.matrix_free.krylov import KrylovSpace
from nonloc.processes.matrix_free.solvers import NotSolvedError

LARGEST_DENSE = 512
TOLERANCE = 1e-12  # of |Pᵀπ − π|₁ with Σ π = 1
MAX_SQUARINGS = 60
SPACE = 40
MAX_CYCLES = 250
BALANCE_TOLERANCE = 1e-9


def stationary_law(transitions: Transitions) -> Tensor:
    """π ≥ 0 [B, M] with Pᵀπ = π and Σ π = 1.

    For a symmetric Ω it is known: μ 𝒞 under "row", μ under "sinkhorn". Otherwise it is the limit of the averaged law
    of a walker that starts anywhere with equal probability, found to a residual |Pᵀπ − π|₁ of 1e-12. Where the kernel
    falls apart, or has positions that keep their walkers, there are several such laws, and this is one of them.
    """
    valid = valid_positions(transitions)
    known = self_adjoint_weights(transitions.affinity)
    if known is not None:
        known = known.to(transitions.dtype)
        total = known.sum(-1, keepdim=True)
        # In a sample without entries nobody moves, and every law is stationary.
        law = torch.where(total > 0, known, valid)
        law = law / law.sum(-1, keepdim=True)
        # Positions that nobody may go to can have entries all the same, and then μ 𝒞 says nothing.
        if law.numel() == 0 or float(_residual(transitions, law).max()) <= TOLERANCE:
            return law
    if transitions.positions <= LARGEST_DENSE:
        matrix = transitions.matrix()
        eliminated = by_elimination(matrix)
        law = _by_squaring(matrix, valid) if eliminated is None else eliminated
    else:
        law = _by_arnoldi(transitions, valid)
    return _checked(transitions, law)


def balance_residual(transitions: Transitions, law: Tensor) -> Tensor:
    """How far π_i P_ij = π_j P_ji is from true [B]: 0 up to rounding for a reversible process, told without the matrix.

    The flow of probability diag(π) P and its transpose are applied to fixed vectors; the largest difference at a
    position, relative to the flow through it.
    """
    index = torch.arange(1, transitions.positions + 1, dtype=transitions.dtype, device=law.device)
    probes = torch.stack([torch.cos(index * k) for k in (1.2345678, 2.7182818, 0.5772156)], -1)
    probes = probes.expand(transitions.batch, -1, -1)
    weights = law.unsqueeze(-1)
    forward, backward = weights * transitions.average(probes), transitions.move(weights * probes)
    through = weights * transitions.average(probes.abs()) + transitions.move(weights * probes.abs())
    # A law is known to 1e-12 of its sum, so a difference below that is none.
    known = (forward - backward).abs() - TOLERANCE
    return torch.where(known > 0, known / through.clamp(min=TOLERANCE), 0).amax((1, 2))


def valid_positions(transitions: Transitions) -> Tensor:
    """1 where a position is valid [B, M], everywhere in a sample without any."""
    mask = transitions.affinity.mask
    if mask is None:
        return torch.ones_like(transitions.sums.squeeze(-1))
    return (mask | ~mask.any(-1, keepdim=True)).to(transitions.dtype)


def by_elimination(matrix: Tensor) -> Tensor | None:
    """π [B, M] by taking one position after the other out of the walk; None where one cannot be left.

    Nothing is subtracted on the way (Grassmann, Taksar and Heyman), so even the smallest probabilities are exact to
    their last digits, however slowly the walk mixes.
    """
    left = matrix.clone()
    for n in range(matrix.shape[-1] - 1, 0, -1):
        leaving = left[:, n, :n].sum(-1).view(-1, 1, 1)
        if not bool((leaving > 0).all()):
            return None
        left[:, :n, n : n + 1] /= leaving
        left[:, :n, :n] += left[:, :n, n : n + 1] * left[:, n : n + 1, :n]
    law = torch.zeros_like(matrix[:, :1])
    law[..., 0] = 1
    for n in range(1, matrix.shape[-1]):
        law[..., n : n + 1] = law[..., :n] @ left[:, :n, n : n + 1]
        law /= law.sum(-1, keepdim=True)
    return law.squeeze(1)


def _by_squaring(matrix: Tensor, valid: Tensor) -> Tensor:
    """The mean row of (½I + ½P)^(2^k) for growing k, until it no longer changes."""
    power = 0.5 * (torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device) + matrix)
    start = (valid / valid.sum(-1, keepdim=True)).unsqueeze(1)
    law = start @ power
    for _ in range(MAX_SQUARINGS):
        power = power @ power
        power = power / power.sum(-1, keepdim=True)
        before, law = law, start @ power
        if bool(((law - before).abs().sum(-1) < 1e-15).all()):
            break
    # What is left at a position that is left for good.
    return torch.where(law < 1e-15, 0, law).squeeze(1)


def _by_arnoldi(transitions: Transitions, valid: Tensor) -> Tensor:
    """The vector v of each Krylov space for which Pᵀv − v is smallest, again and again."""
    law = valid / valid.sum(-1, keepdim=True)

    def move(v: Tensor) -> Tensor:
        return transitions.move(v.unsqueeze(-1)).squeeze(-1)

    for _ in range(MAX_CYCLES):
        space = KrylovSpace(move, law, SPACE)
        space.extend(SPACE)
        shifted = space.hessenberg.clone()
        shifted.diagonal(dim1=-2, dim2=-1).sub_(1)
        # An exhausted space goes on with zero columns, which become −e_k here and are never the smallest.
        smallest = torch.linalg.svd(shifted)[2][:, -1:]
        law = (smallest @ space.basis[:, :-1]).squeeze(1)
        law = law / law.sum(-1, keepdim=True)
        if bool((_residual(transitions, law) <= 0.1 * TOLERANCE).all()):
            break
    return law


def _checked(transitions: Transitions, law: Tensor) -> Tensor:
    # Rounding leaves numbers just below 0 where the law vanishes.
    law = law.clamp(min=0)
    law = law / law.sum(-1, keepdim=True)
    worst = float(_residual(transitions, law).max()) if law.numel() else 0.0
    if worst <= TOLERANCE:
        return law
    raise NotSolvedError(
        f"no stationary law was found: |Pᵀπ − π| is {worst:.1e} and {TOLERANCE:g} is asked for. The process mixes too "
        "slowly, or the features have values that are not finite; use one embedding for both sides (left = right), "
        "whose law is known, or a wider kernel"
    )


def _residual(transitions: Transitions, law: Tensor) -> Tensor:
    """|Pᵀπ − π|₁ [B]."""
    return transitions.change(law.unsqueeze(-1)).abs().sum((1, 2))
