"""Exact shortcuts with memory linear in M, forward and backward, without new GPU code.

dot       Ω v = scale · L (Rᵀ v): linear in time too
concat    Ω v by suffix sums over the sorted right side: M log M
delta     a diagonal
gaussian, heat   "row" through scaled_dot_product_attention, the rest by blocks of rows   (exponential.py)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from nonloc._torch_compat import can_read_values
from nonloc.ops import exponential
from nonloc.ops.affinity import Affinity, position_weights, valid_positions
from nonloc.ops.arithmetic import inverse_or_zero, zero_or_nan
from nonloc.ops.normalize import Omega, Operator, normalized
from nonloc.ops.sinkhorn import Matvec, no_scaling


def prepare(affinity: Affinity, dtype: torch.dtype) -> Operator:
    """The affinity as a way to apply it; no M × M matrix at any time."""
    if affinity.has_logits:
        return exponential.prepare(affinity, dtype)
    weights = position_weights(affinity, dtype).unsqueeze(-1)
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    if affinity.kind == "delta":
        operator = _diagonal(weights, affinity)
    else:
        operator = normalized(product(affinity, left, right), weights, affinity)
    if affinity.mask is None:
        return operator
    keep = affinity.mask.unsqueeze(-1)
    return Operator(lambda z: operator.apply(z) * keep, operator.sums * keep)


def product(affinity: Affinity, left: Tensor, right: Tensor) -> Omega:
    """v -> Ω v of "dot", scale · L (Rᵀ v), and of "concat", Σ_j relu(l_i + r_j) v_j, with these features."""
    if affinity.kind == "concat":
        return Omega(relu_sum, left, right)
    scale = affinity.scale
    return Omega(lambda left, right: lambda v: scale * (left @ (right.transpose(-2, -1) @ v)), left, right)


def _diagonal(weights: Tensor, affinity: Affinity) -> Operator:
    diagonal = weights.expand(affinity.batch, -1, -1)
    if affinity.normalize == "sinkhorn" and can_read_values(diagonal):
        valid = valid_positions(affinity).unsqueeze(-1)
        if bool((valid & (diagonal == 0)).any()):
            raise ValueError(no_scaling("a position that weighs 0 has no affinity to any other"))
    if affinity.normalize == "count":
        diagonal = diagonal * inverse_or_zero(diagonal.sum(1, keepdim=True))
    elif affinity.normalize != "none":
        diagonal = (diagonal != 0).to(diagonal.dtype)
    return Operator(lambda z: diagonal * z, diagonal)


def relu_sum(left: Tensor, right: Tensor) -> Matvec:
    """v [B, M', C] -> Σ_j relu(l_i + r_j) v_j [B, M, C] in M log M, for left [B, M, 1] and right [B, M', 1].

    With r sorted, the active j of a row are a suffix: those with r_j > −l_i. Let k be the first of them. Then

        Σ_{j≥k} (l_i + r_j) v_j = (l_i + r_k) V_k + N_k,   V_k = Σ_{j≥k} v_j,   N_k = Σ_{j≥k} (r_j − r_k) v_j

    and N_k is a suffix sum of (r_t − r_{t−1}) V_t. The simpler l_i V_k + Σ r_j v_j would subtract two large numbers
    where a row is barely active.
    """
    ordered, order = torch.sort(right.squeeze(-1), dim=1)
    with torch.no_grad():
        first = torch.searchsorted(ordered.contiguous(), -left.squeeze(-1).contiguous(), right=True)
    gaps = pad(ordered.diff(dim=1), (1, 0)).unsqueeze(-1)
    # One more entry for rows without an active j: there V and N are 0.
    rise = left + pad(ordered, (0, 1)).gather(1, first).unsqueeze(-1)

    def apply(v: Tensor) -> Tensor:
        sums = _suffix_sum(_take(v, order))
        moments = _suffix_sum(gaps * sums) - gaps * sums
        active = rise * _take(pad(sums, (0, 0, 0, 1)), first) + _take(pad(moments, (0, 0, 0, 1)), first)
        return active + zero_or_nan(v, 1) + zero_or_nan(right, 1)

    return apply


def _suffix_sum(v: Tensor) -> Tensor:
    return v.flip(1).cumsum(1).flip(1)


def _take(v: Tensor, index: Tensor) -> Tensor:
    """Rows of v [B, M, C] at index [B, K]."""
    return v.gather(1, index.unsqueeze(-1).expand(-1, -1, v.shape[-1]))
