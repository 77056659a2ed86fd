"""The kernel of a process that applies it many times: as a matrix, where that pays and fits, without detours elsewhere.

One product with the matrix of an exponential kernel reads M × M numbers; without it, it makes them anew. On a CPU that
takes 3 to 9 times as long (M from 1,500 to 5,800, C up to 64, float32 and float64), and the matrix is made in the time
of 2 to 4 such products. "sinkhorn" gains more: the steps to its scaling are products too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops import Affinity, Operator, SparseAffinity, choose_backend, exponential, normalize, prepare
from nonloc.ops.affinity import position_weights, valid_positions, without_masked
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.normalize import check_kernel_values

LARGEST_MATRIX = 2**28  # bytes, B · M · M of them: M = 5,792 in float64, 8,192 in float32
BLOCK_ENTRIES = 2**18  # of the rows that are made at one time: they stay in the cache
MOST_SCALING = 1e10  # of a position; its square must not bring back what has underflowed


def ready(affinity: Affinity | SparseAffinity, dtype: torch.dtype) -> Operator:
    """`nonloc.ops.prepare` for many products: with the matrix kept up to 256 MiB where it is the faster way.

    The same numbers within rounding. Without a gradient.
    """
    with torch.no_grad():
        if isinstance(affinity, SparseAffinity) or not keeps_matrix(affinity, dtype):
            return prepare(affinity, dtype)
        kernel = kept_matrix(affinity, dtype)
        return Operator(lambda z: kernel @ z, kernel.sum(-1, keepdim=True))


def keeps_matrix(affinity: Affinity, dtype: torch.dtype) -> bool:
    """Whether many products pay for a matrix that one would not pay for, and it fits."""
    if affinity.kind not in ("gaussian", "heat") or choose_backend(affinity) != "factored":
        return False
    size = torch.finfo(dtype).bits // 8
    return affinity.batch * affinity.positions * affinity.right.shape[1] * size <= LARGEST_MATRIX


@torch.no_grad()
def kept_matrix(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """K [B, M, M] of an exponential kernel, in the memory of K alone."""
    affinity = without_masked(affinity)
    check_kernel_values(affinity, dtype)
    query, key, row, column = exponential.logit_factors(affinity, dtype)
    weights, valid = position_weights(affinity, dtype), valid_positions(affinity)
    given = column + exponential.log_weights(weights)
    if affinity.normalize == "row":
        kernel = _by_rows(query, key, given, lambda logits, rows: torch.softmax(logits, -1))
    elif affinity.normalize == "sinkhorn":
        kernel = _scaled(affinity, query, key, row, column, given, weights)
    else:
        if affinity.normalize == "count":
            row = row + inverse_or_zero(weights.sum(-1, keepdim=True)).log()
        if affinity.normalize == "symmetric":
            half = -0.5 * (row + exponential.log_sums(query, key, given))
            row, given = row + half, given + half
        kernel = _exponentials(query, key, row, given)
    if affinity.mask is not None or affinity.measure is not None:
        # Without a giver the sums are empty and their logarithms mean nothing: such entries are 0.
        receives = valid & (weights.sum(-1, keepdim=True) != 0)
        kernel.masked_fill_(~receives.unsqueeze(-1), 0).masked_fill_((weights == 0).unsqueeze(1), 0)
    return kernel


def _scaled(
    affinity: Affinity,
    query: Tensor,
    key: Tensor,
    row: Tensor,
    column: Tensor,
    given: Tensor,
    weights: Tensor,
) -> Tensor:
    """K of "sinkhorn": its tens of steps are products with a matrix that is then scaled in its place."""
    valid = valid_positions(affinity)
    half = torch.where(valid, -0.5 * (row + exponential.log_sums(query, key, given)), 0)
    kernel = _exponentials(query, key, row + half, column + half)
    try:
        receiver, giver, _ = normalize.sides(
            lambda v: kernel @ v, weights.unsqueeze(-1), affinity, query.dtype
        )
        is_moderate = bool((torch.as_tensor(receiver) < MOST_SCALING).all())
    except ValueError:
        is_moderate = False
    if is_moderate:
        return kernel.mul_(receiver).mul_(giver.mT)
    # What underflowed in the matrix may be large once scaled: logarithms know, and so does who has no scaling.
    half = exponential.sinkhorn_scaling(query, key, row, given, column, weights, valid)
    return _exponentials(query, key, row + half, given + half)


def _exponentials(query: Tensor, key: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """exp(q_i·k_j + a_i + b_j) [B, M, M]."""
    return _by_rows(query, key, column, lambda logits, rows: logits.add_(row[:, rows].unsqueeze(-1)).exp_())


def _by_rows(query: Tensor, key: Tensor, column: Tensor, finish: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """`finish` on q_i·k_j + b_j, a few rows at a time."""
    batch, positions = query.shape[:2]
    size = max(1, BLOCK_ENTRIES // max(1, batch * key.shape[1]))
    kernel = query.new_empty(batch, positions, key.shape[1])
    keys = key.mT.contiguous()
    for start in range(0, positions, size):
        rows = slice(start, start + size)
        kernel[:, rows] = finish((query[:, rows] @ keys).add_(column.unsqueeze(1)), rows)
    return kernel
