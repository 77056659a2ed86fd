"""The inner product in which a kernel is self-adjoint, its row sums, and its adjoint, in memory linear in M.

Every normalised kernel is K = diag(a) Ω diag(b). So Kᵀ = diag(b) Ωᵀ diag(a), and Ωᵀ is Ω with left and right
exchanged: what applies K without a matrix applies Kᵀ without one. For a symmetric Ω ≥ 0 with a measure μ, detailed
balance π_i K_ij = π_j K_ji holds with π = μ 𝒞 under "row" and with π = μ under every other normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import checks, exponential, factored, sparse
from nonloc.ops.affinity import Affinity
from nonloc.ops.checks import check_kernel_values
from nonloc.ops.functional import aggregate, compute_dtype, prepare
from nonloc.ops.operator import (
    full_precision,
    inverse_or_zero,
    position_weights,
    valid_positions,
    without_masked,
)
from nonloc.ops.sparse import SparseAffinity

Apply = Callable[[Tensor], Tensor]


def row_sums(affinity: Affinity | SparseAffinity) -> Tensor:
    """Σ_j K_ij [B, M], the degrees of the positions (B = 1 for a sparse affinity)."""
    with torch.no_grad():
        return prepare(affinity, compute_dtype(affinity)).sums.squeeze(-1)


def self_adjoint_weights(affinity: Affinity | SparseAffinity) -> Tensor | None:
    """π ≥ 0 [B, M] with π_i K_ij = π_j K_ji, so that ℒ is self-adjoint in ⟨u, v⟩ = Σ_i π_i u_i·v_i; or None.

    None when Ω is not symmetric by value, and when it has row sums 𝒞_i below 0 under "row", where π = μ 𝒞 is no
    weight. Masked positions weigh 0. π matters up to a factor: where 𝒞 would overflow, it is scaled to stay finite.
    """
    with torch.no_grad():
        if not has_symmetric_kernel(affinity):
            return None
        dtype = compute_dtype(affinity)
        measure = _weights(affinity, dtype)
        if affinity.normalize != "row":
            return measure.squeeze(-1).expand(affinity.batch, -1).contiguous()
        if isinstance(affinity, Affinity) and affinity.kind in ("gaussian", "heat"):
            sums = _moderate_exp(_log_row_sums(without_masked(affinity), dtype))
        else:
            sums = prepare(replace(affinity, normalize="none"), dtype).sums.squeeze(-1)
            if bool((sums < 0).any()) or (bool((sums == 0).any()) and has_negative_entries(affinity)):
                return None
        return measure.squeeze(-1) * sums


def has_symmetric_kernel(affinity: Affinity | SparseAffinity) -> bool:
    """Whether Ω_ij = Ω_ji by value, told without the matrix."""
    if isinstance(affinity, SparseAffinity):
        return sparse.is_symmetric(affinity)
    if not affinity.is_square:
        return False
    if affinity.kind == "delta" or affinity.left is affinity.right:
        return True
    affinity = without_masked(affinity)
    dtype = compute_dtype(affinity)
    return checks.is_symmetric(affinity, affinity.left.detach().to(dtype), affinity.right.detach().to(dtype))


def has_negative_entries(affinity: Affinity | SparseAffinity) -> bool:
    """Whether some Ω_ij < 0, told without the matrix."""
    if isinstance(affinity, SparseAffinity):
        return sparse.has_negative(affinity)
    if affinity.kind != "dot":
        return False
    affinity = without_masked(affinity)
    dtype = compute_dtype(affinity)
    return checks.has_negative(affinity, affinity.left.detach().to(dtype), affinity.right.detach().to(dtype))


def apply_adjoint(affinity: Affinity | SparseAffinity, p: Tensor) -> Tensor:
    """Kᵀ p [B, M', C] for p [B, M, C]: how laws move when K_ij is the probability of i → j."""
    dtype = compute_dtype(affinity, p)
    if affinity.mask is not None:
        p = torch.where(affinity.mask.unsqueeze(-1), p, 0)
    with full_precision(p):
        return adjoint(affinity, dtype)(p.to(dtype)).to(p.dtype)


def adjoint(affinity: Affinity | SparseAffinity, dtype: torch.dtype | None = None) -> Apply:
    """p -> Kᵀ p made ready once, for many products; p in `dtype` (the affinity's own when left out)."""
    dtype = compute_dtype(affinity) if dtype is None else dtype
    if isinstance(affinity, SparseAffinity):
        sparse.check_values(affinity)
        forward = backward = sparse.product(affinity.matrix, dtype)
        if not sparse.is_symmetric(affinity):
            backward = sparse.product(sparse.transposed(affinity.matrix), dtype)
        receiver, giver, _ = factored.sides(forward, _weights(affinity, dtype), affinity, dtype)
        return _between_sides(backward, receiver, giver)
    affinity = without_masked(affinity)
    check_kernel_values(affinity, dtype)
    if affinity.kind == "delta":
        return lambda p: aggregate(affinity, p)
    if affinity.kind in ("gaussian", "heat"):
        return _exponential_adjoint(affinity, dtype)
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    receiver, giver, _ = factored.sides(
        factored.product(affinity, left, right), _weights(affinity, dtype), affinity, dtype
    )
    apply = _between_sides(factored.product(affinity, right, left), receiver, giver)
    if affinity.mask is None:
        return apply
    keep = affinity.mask.unsqueeze(-1)
    return lambda p: apply(keep * p)


def _between_sides(omega: Apply, receiver: Tensor | float, giver: Tensor) -> Apply:
    return lambda p: giver * omega(receiver * p)


def _weights(affinity: Affinity | SparseAffinity, dtype: torch.dtype) -> Tensor:
    """What each giver weighs [B or 1, M', 1]."""
    if isinstance(affinity, SparseAffinity):
        return sparse.weights(affinity, dtype)
    return position_weights(affinity, dtype).unsqueeze(-1)


def _log_row_sums(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """log Σ_j Ω_ij μ_j [B, M] of an exponential kernel."""
    query, key, row, column = exponential.logit_factors(affinity, dtype)
    return row + exponential.log_sums(
        query, key, column + exponential.log_weights(position_weights(affinity, dtype))
    )


def _moderate_exp(logs: Tensor) -> Tensor:
    """exp of [B, M], each sample times a constant where its largest entry would leave the range of the dtype."""
    peak = logs.amax(-1, keepdim=True)
    limit = 0.7 * math.log(torch.finfo(logs.dtype).max)
    return (logs - (peak - peak.clamp(-limit, limit))).exp()


def _exponential_adjoint(affinity: Affinity, dtype: torch.dtype) -> Apply:
    """K_ij = exp(q_i·k_j + a_i + b_j), read the other way round."""
    weights = position_weights(affinity, dtype)
    query, key, row, column = exponential.logit_factors(affinity, dtype)
    logged = column + exponential.log_weights(weights)
    valid = valid_positions(affinity)
    if affinity.normalize == "none":
        a, b = row, logged
    elif affinity.normalize == "count":
        a, b = row + inverse_or_zero(weights.sum(-1, keepdim=True)).log(), logged
    elif affinity.normalize == "row":
        a, b = -exponential.log_sums(query, key, logged), logged
    elif affinity.normalize == "symmetric":
        half = -0.5 * (row + exponential.log_sums(query, key, logged))
        a, b = row + half, logged + half
    else:
        half = exponential.sinkhorn_scaling(query, key, row, logged, column, weights, valid)
        a, b = row + half, logged + half
    # Without a giver the sums are empty and their logarithms mean nothing: such a row is 0.
    receives = (valid & (weights.sum(-1, keepdim=True) != 0)).unsqueeze(-1)
    gives = (weights != 0).unsqueeze(-1)
    apply = exponential.lean_apply(key, query, b, torch.where(receives.squeeze(-1), a, exponential.LOG_ZERO))
    return lambda p: gives * apply(receives * p)
