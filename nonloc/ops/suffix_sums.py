"""Σ_j relu(l_i + r_j) v_j for all i in M log M, because l and r are single numbers.

With r sorted, the active j of a row are a suffix: those with r_j > −l_i. Let k be the first of them. Then

    Σ_{j≥k} (l_i + r_j) v_j = (l_i + r_k) V_k + N_k,   V_k = Σ_{j≥k} v_j,   N_k = Σ_{j≥k} (r_j − r_k) v_j

and N_k is itself a suffix sum of (r_t − r_{t−1}) V_t. The plainer l_i V_k + Σ r_j v_j would subtract two large
numbers wherever a row is barely active; here every factor is a small difference taken exactly once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from nonloc.ops.operator import nothing_or_nan


def relu_sum(left: Tensor, right: Tensor) -> Callable[[Tensor], Tensor]:
    """v [B, M', C] -> Σ_j relu(l_i + r_j) v_j [B, M, C], for left [B, M, 1] and right [B, M', 1]."""
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
        return active + nothing_or_nan(v, 1) + nothing_or_nan(right, 1)

    return apply


def _suffix_sum(v: Tensor) -> Tensor:
    return v.flip(1).cumsum(1).flip(1)


def _take(v: Tensor, index: Tensor) -> Tensor:
    """Rows of v [B, M, C] at index [B, K]."""
    return v.gather(1, index.unsqueeze(-1).expand(-1, -1, v.shape[-1]))
