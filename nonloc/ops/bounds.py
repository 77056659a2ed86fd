"""How large W may be so that no step makes a signal grow (the CFL condition), and the kernel's own norm.

A step is z − L z Wᵀ with L = diag(K1) − K. With W symmetric and its spectrum in [0, w] it is non-expansive in the
kernel's own norm ‖z‖² = Σ_i π_i |z_i|², where π is the law of detailed balance for a symmetric Ω
(`self_adjoint_weights`) and the stationary law of −L otherwise, whenever

    Ω ≥ 0                             w max_i Σ_{j≠i} K_ij ≤ 1     (I − wL is then a stochastic matrix)
    Ω ≥ 0, "row" and "sinkhorn"       w ≤ 1                        (the same, with rows that sum to 1)
    Ω ≥ 0 positive semi-definite      w max_i Σ_j K_ij ≤ 2         (L is then at most diag(K1))

A signed Ω has no such bound. Positions without measure weigh nothing in the norm: it does not see them.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import exponential, normalize, sparse
from nonloc.ops.affinity import Affinity, position_weights, without_masked
from nonloc.ops.arithmetic import LOG_ZERO, inverse_or_zero
from nonloc.ops.functional import check_kind, compute_dtype, prepare
from nonloc.ops.sparse import SparseAffinity, weights

STOCHASTIC = ("row", "sinkhorn")


def row_sums(affinity: Affinity | SparseAffinity) -> Tensor:
    """Σ_j K_ij [B, M], the degrees of the positions (B = 1 for a sparse affinity).

    >>> from nonloc.ops import SparseAffinity, row_sums
    >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to_sparse_csr()
    >>> row_sums(SparseAffinity(path, normalize="none")).tolist()
    [[1.0, 2.0, 1.0]]
    """
    with torch.no_grad():
        return prepare(affinity).sums.squeeze(-1)


def self_adjoint_weights(affinity: Affinity | SparseAffinity) -> Tensor | None:
    """π ≥ 0 [B, M] with π_i K_ij = π_j K_ji, so that ℒ is self-adjoint in ⟨u, v⟩ = Σ_i π_i u_i·v_i; or None.

    None when Ω is not symmetric by value, and when it has row sums 𝒞_i below 0 under "row", where π = μ 𝒞 is no
    weight. Masked positions weigh 0. π matters up to a factor: where 𝒞 would overflow, it is scaled to stay finite.

    >>> from nonloc.ops import SparseAffinity, self_adjoint_weights
    >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to_sparse_csr()
    >>> self_adjoint_weights(SparseAffinity(path, normalize="row")).tolist()
    [[1.0, 2.0, 1.0]]
    """
    with torch.no_grad():
        if not has_symmetric_kernel(affinity):
            return None
        dtype = compute_dtype(affinity)
        if isinstance(affinity, SparseAffinity):
            measure = weights(affinity, dtype).squeeze(-1)
        else:
            measure = position_weights(affinity, dtype)
        if affinity.normalize != "row":
            return measure.expand(affinity.batch, -1).contiguous()
        if isinstance(affinity, Affinity) and affinity.has_logits:
            query, key, row, logged = exponential.log_sides(
                replace(without_masked(affinity), normalize="none"), dtype
            )
            # Only sums of positions that weigh something need a place in the range of the dtype.
            logs = torch.where(measure > 0, row + exponential.log_sums(query, key, logged), LOG_ZERO)
            # Each sample times a constant, where its largest sum would leave the range of the dtype.
            peak, limit = logs.amax(-1, keepdim=True), 0.7 * math.log(torch.finfo(dtype).max)
            sums = (logs - (peak - peak.clamp(-limit, limit))).exp()
        else:
            sums = prepare(replace(affinity, normalize="none"), dtype).sums.squeeze(-1)
            if bool((sums < 0).any()) or (bool((sums == 0).any()) and has_negative_entries(affinity)):
                return None
        return measure * sums


def has_symmetric_kernel(affinity: Affinity | SparseAffinity) -> bool:
    """Return whether Ω_ij = Ω_ji by value, without making the matrix."""
    check_kind(affinity)
    if isinstance(affinity, SparseAffinity):
        return sparse.is_symmetric(affinity)
    if not affinity.is_square:
        return False
    if affinity.kind == "delta" or affinity.left is affinity.right:
        return True
    return normalize.is_symmetric(without_masked(affinity), compute_dtype(affinity))


def has_negative_entries(affinity: Affinity | SparseAffinity) -> bool:
    """Return whether some Ω_ij < 0, without making the matrix."""
    check_kind(affinity)
    if isinstance(affinity, SparseAffinity):
        return sparse.has_negative(affinity)
    if affinity.kind != "dot":
        return False
    return normalize.has_negative(without_masked(affinity), compute_dtype(affinity))


def universal_weight_limit(affinity: Affinity | SparseAffinity) -> float | None:
    """The w that is stable for every value of the features, from the kind of kernel alone.

    None where there is none: "none", "count" and "symmetric" have degrees without a bound. "dot" may be negative, and
    so may the entries of a sparse Ω, whose values only `stable_weight_limit` reads.
    """
    if isinstance(affinity, SparseAffinity):
        return None
    if affinity.kind == "delta":
        return float("inf")
    if affinity.kind == "dot" or affinity.normalize not in STOCHASTIC:
        return None
    return 2.0 if _is_inner_product(affinity) and affinity.left is affinity.right else 1.0


def stable_weight_limit(affinity: Affinity | SparseAffinity) -> Tensor | None:
    """The largest w [B] (float64) that is known to be non-expansive; inf where nothing moves; None for a signed Ω.

    From the kind of kernel where that decides, otherwise from its degrees, in memory linear in M. A bound from degrees
    is a little lower, so that rounding cannot break it. The limit itself is 2/λ_max(L) for a symmetric Ω.
    """
    check_kind(affinity)
    device = affinity.matrix.device if isinstance(affinity, SparseAffinity) else affinity.left.device
    known = universal_weight_limit(affinity)
    with torch.no_grad():
        if known is None and has_negative_entries(affinity):
            return None
        definite = is_definite(affinity)
        if known is None and affinity.normalize in STOCHASTIC:
            known = 2.0 if definite else 1.0
        if known is not None:
            return torch.full((affinity.batch,), known, dtype=torch.float64, device=device)
        return _by_degrees(wide(affinity), definite)


def is_definite(affinity: Affinity | SparseAffinity) -> bool:
    """Return whether Ω is positive semi-definite by its kind: inner products of one set of features, or exp of them."""
    if isinstance(affinity, SparseAffinity):
        return False
    if affinity.kind == "delta":
        return True
    if not _is_inner_product(affinity) or not affinity.is_square:
        return False
    affinity = without_masked(affinity)
    return affinity.left is affinity.right or torch.equal(affinity.left, affinity.right)


def _is_inner_product(affinity: Affinity) -> bool:
    return (affinity.has_logits or affinity.kind == "dot") and affinity.scale >= 0


def _by_degrees(affinity: Affinity | SparseAffinity, definite: bool) -> Tensor:
    degrees = row_sums(affinity)
    # What a sum of M numbers, and the logits in it, may have lost to rounding.
    slack = (affinity.positions + 64) * torch.finfo(degrees.dtype).eps
    largest = degrees.amax(-1)
    if affinity.normalize == "symmetric":
        # K is similar to D⁻¹Ω, whose eigenvalues are at least −1.
        radius = torch.minimum(2 * largest, largest + 1)
    else:
        others = degrees - _diagonal(affinity) + slack * degrees
        radius = 2 * others.amax(-1)
    if definite:
        radius = torch.minimum(radius, largest)
    return (1 - slack) * 2 / radius


def _diagonal(affinity: Affinity | SparseAffinity) -> Tensor:
    """K_ii [B, M] under "none" and "count"."""
    if isinstance(affinity, SparseAffinity):
        giver = weights(affinity, affinity.matrix.dtype).squeeze(-1)
        raw = _sparse_diagonal(affinity.matrix).unsqueeze(0)
    else:
        affinity = without_masked(affinity)
        giver = position_weights(affinity, affinity.left.dtype)
        raw = _raw_diagonal(affinity)
    share = 1.0 if affinity.normalize == "none" else inverse_or_zero(giver.sum(-1, keepdim=True))
    return raw * giver * share


def _sparse_diagonal(matrix: Tensor) -> Tensor:
    """Ω_ii [M]."""
    rows = sparse.rows(matrix)
    own = matrix.col_indices() == rows
    return matrix.values().new_zeros(matrix.shape[0]).index_add_(0, rows[own], matrix.values()[own])


def _raw_diagonal(affinity: Affinity) -> Tensor:
    """Ω_ii [B, M]."""
    if affinity.kind == "concat":
        return torch.relu(affinity.left + affinity.right).squeeze(-1)
    if affinity.kind == "heat":
        return (-affinity.scale * (affinity.left - affinity.right).square().sum(-1)).exp()
    product = affinity.scale * (affinity.left * affinity.right).sum(-1)
    return product if affinity.kind == "dot" else product.exp()


def wide(
    affinity: Affinity | SparseAffinity, dtype: torch.dtype = torch.float64
) -> Affinity | SparseAffinity:
    """The same with its numbers in `dtype`, without a gradient."""
    if isinstance(affinity, SparseAffinity):
        return replace(affinity, matrix=_numbers(affinity.matrix, dtype))
    left = _numbers(affinity.left, dtype)
    right = left if affinity.right is affinity.left else _numbers(affinity.right, dtype)
    return replace(affinity, left=left, right=right)


def _numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    x = x.detach().to(dtype)
    # What was made in inference mode can neither be differentiated by nor changed outside it.
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x
