"""Stationary laws: the laws that a jump process does not change, one for each closed class, and detailed balance."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import self_adjoint_weights
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.krylov import KrylovSpace
from nonloc.processes.solvers import NotSolvedError

LARGEST_DENSE = 512
LARGEST_CLASSES = 2048  # positions up to which classes are found from a matrix
TOLERANCE = 1e-12  # of |Pᵀπ − π|₁ with Σ π = 1
MAX_SQUARINGS = 60
SPACE = 40
MAX_CYCLES = 250
BALANCE_TOLERANCE = 1e-9


def stationary_law(transitions: Transitions) -> Tensor:
    """π ≥ 0 [B, M] with Pᵀπ = π and Σ π = 1.

    For a symmetric Ω it is known: μ 𝒞 under "row", μ under "sinkhorn". Otherwise it is the limit of the averaged law
    of a walker that starts anywhere with equal probability, to a residual |Pᵀπ − π|₁ of 1e-12. Where there are several
    closed classes there are several such laws, and this is one of them.
    """
    valid = valid_positions(transitions)
    known = self_adjoint_weights(transitions.affinity)
    if known is not None:
        known = known.to(transitions.dtype)
        # In a sample without entries no walker moves, and every law is stationary.
        law = torch.where(known.sum(-1, keepdim=True) > 0, known, valid)
        law = law / law.sum(-1, keepdim=True)
        # Positions that no walker may enter can have entries all the same; then μ 𝒞 is not stationary.
        if law.numel() == 0 or float(_residual(transitions, law).max()) <= TOLERANCE:
            return law
    if transitions.positions <= LARGEST_DENSE:
        matrix = transitions.matrix()
        eliminated = eliminate(matrix)
        law = _by_squaring(matrix, valid) if eliminated is None else eliminated
    else:
        law = _by_arnoldi(transitions, valid)
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


def class_laws(transitions: Transitions, sample: int) -> Tensor:
    """One law for each closed class of a sample [K, M], in float64."""
    transitions.check_sample(sample)
    if transitions.positions > LARGEST_CLASSES:
        raise ValueError(
            f"classes are found from the matrix, and M = {transitions.positions} is more than {LARGEST_CLASSES} "
            "positions; stationary_law() gives one law, and scipy.sparse.csgraph.connected_components the parts of a "
            "graph"
        )
    matrix = transitions.matrix()[sample]
    return _laws(matrix, closed_classes(matrix, valid_positions(transitions)[sample] > 0))


def stationary_weights(rates: Tensor) -> Tensor | None:
    """π > 0 [M] with Σ_i π_i (rate i → j) = π_j Σ_k (rate j → k), for rates ≥ 0 [M, M]; the diagonal is ignored.

    Each closed class has a π of its own, at most 1. None where a position can be left for ever, for every such law
    vanishes there, and where π leaves the range of its dtype.
    """
    numbers = closed_classes(rates, torch.ones_like(rates[0], dtype=torch.bool))
    if bool((numbers < 0).any()):
        return None
    laws = _laws(rates, numbers)
    weights = (laws / laws.amax(1, keepdim=True)).sum(0)
    # Below the smallest normal number a law has lost its digits.
    return weights if bool((weights >= torch.finfo(weights.dtype).tiny).all()) else None


def balance_residual(transitions: Transitions, law: Tensor) -> Tensor:
    """How far π_i P_ij = π_j P_ji is from true [B], without the matrix: 0 up to rounding for a reversible process.

    The flow of probability diag(π) P and its transpose are applied to fixed vectors. The residual is the largest
    difference at a position, relative to the flow through it.
    """
    index = torch.arange(1, transitions.positions + 1, dtype=transitions.dtype, device=law.device)
    probes = torch.stack([torch.cos(index * k) for k in (1.2345678, 2.7182818, 0.5772156)], -1)
    probes = probes.expand(transitions.batch, -1, -1)
    weights = law.unsqueeze(-1)
    forward, backward = weights * transitions.average(probes), transitions.move(weights * probes)
    through = weights * transitions.average(probes.abs()) + transitions.move(weights * probes.abs())
    # A law is accurate to 1e-12 of its sum, so a smaller difference is none.
    difference = (forward - backward).abs() - TOLERANCE
    return torch.where(difference > 0, difference / through.clamp(min=TOLERANCE), 0).amax((1, 2))


def valid_positions(transitions: Transitions) -> Tensor:
    """1 where a position is valid [B, M], everywhere in a sample without any."""
    mask = transitions.affinity.mask
    if mask is None:
        return torch.ones_like(transitions.sums.squeeze(-1))
    return (mask | ~mask.any(-1, keepdim=True)).to(transitions.dtype)


def reachable_positions(rates: Tensor) -> Tensor:
    """Which positions a walker can reach from which [M, M], in any number of jumps along rates > 0."""
    reach = (rates > 0) | torch.eye(len(rates), dtype=torch.bool, device=rates.device)
    while True:
        counts = reach.float()
        further = counts @ counts > 0
        if torch.equal(further, reach):
            return reach
        reach = further


def closed_classes(matrix: Tensor, valid: Tensor) -> Tensor:
    """The number 0, 1, … of each position's closed class [M], for P [M, M].

    −1 where a walker leaves for ever, and at positions that are not valid [M].
    """
    reach = reachable_positions(matrix)
    # Closed: every position that can be reached leads back.
    closed = (reach <= reach.T).all(1) & valid
    first = (reach & reach.T).int().argmax(1)
    numbers = torch.unique(first[closed], return_inverse=True)[1]
    return torch.full_like(first, -1).masked_scatter(closed, numbers)


def eliminate(rates: Tensor) -> Tensor | None:
    """The stationary law [B, M] of rates [B, M, M], by Grassmann, Taksar and Heyman; the diagonal is ignored.

    It takes one position after the other out of the walk, and subtracts nothing: even the smallest probabilities are
    exact to their last digits, however slowly the walk mixes. None where one of these positions cannot be left.
    """
    rest = rates.clone()
    for n in range(rates.shape[-1] - 1, 0, -1):
        leaving = rest[:, n, :n].sum(-1).view(-1, 1, 1)
        if not bool((leaving > 0).all()):
            return None
        rest[:, :n, n : n + 1] /= leaving
        rest[:, :n, :n] += rest[:, :n, n : n + 1] * rest[:, n : n + 1, :n]
    law = torch.zeros_like(rates[:, :1])
    law[..., 0] = 1
    for n in range(1, rates.shape[-1]):
        law[..., n : n + 1] = law[..., :n] @ rest[:, :n, n : n + 1]
        law /= law.sum(-1, keepdim=True)
    return law.squeeze(1)


def _laws(rates: Tensor, numbers: Tensor) -> Tensor:
    """The law of each closed class [K, M], by the class numbers [M]."""
    laws = torch.zeros(int(numbers.max()) + 1, len(numbers), dtype=rates.dtype, device=rates.device)
    for number, law in enumerate(laws):
        members = (numbers == number).nonzero().squeeze(1)
        eliminated = eliminate(rates[members][:, members].unsqueeze(0))
        # In a closed class every position can be left for every other, unless the rates underflow.
        law[members] = torch.nan if eliminated is None else eliminated[0]
    return laws


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
    # The rest at a position that is left for ever.
    return torch.where(law < 1e-15, 0, law).squeeze(1)


def _by_arnoldi(transitions: Transitions, valid: Tensor) -> Tensor:
    """The vector v of each Krylov space for which Pᵀv − v is smallest, in many cycles."""
    law = valid / valid.sum(-1, keepdim=True)

    def move(v: Tensor) -> Tensor:
        return transitions.move(v.unsqueeze(-1)).squeeze(-1)

    for _ in range(MAX_CYCLES):
        space = KrylovSpace(move, law, SPACE)
        space.extend(SPACE)
        shifted = space.hessenberg.clone()
        shifted.diagonal(dim1=-2, dim2=-1).sub_(1)
        # An exhausted space continues with zero columns, which become −e_k here and are never the smallest.
        smallest = torch.linalg.svd(shifted)[2][:, -1:]
        law = (smallest @ space.basis[:, :-1]).squeeze(1)
        law = law / law.sum(-1, keepdim=True)
        if bool((_residual(transitions, law) <= 0.1 * TOLERANCE).all()):
            break
    return law


def _residual(transitions: Transitions, law: Tensor) -> Tensor:
    """|Pᵀπ − π|₁ [B]."""
    return transitions.change(law.unsqueeze(-1)).abs().sum((1, 2))
