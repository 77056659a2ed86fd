"""Which backend "auto" takes on a GPU: by measurements, never by timing at the call, so that a run repeats itself."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc._torch_compat import is_exporting
from nonloc.ops.affinity import Affinity
from nonloc.ops.fused import lacks, takes_widths
from nonloc.ops.fused.stored import LARGEST_KERNEL

HALF = (torch.float16, torch.bfloat16)


def choose(affinity: Affinity, z: Tensor | None, hidden: int, blocks: int) -> str | None:
    """The backend for a stage with so many hidden channels and sub-blocks; None where no measurement says.

    By `python -m benchmarks stage` on an H200, forward and backward.
    """
    if not _is_measured(affinity):
        return None
    batch, positions, depth = affinity.left.shape
    if affinity.left.dtype == torch.float32:
        return "reference" if _suits_the_matrix(affinity, max(depth, hidden)) else None
    ordered = order(batch, positions, depth, hidden, blocks, affinity.left.dtype)
    channels = hidden if z is None else z.shape[-1]
    # An exported program should not need this library where it runs.
    for backend in ("attention",) if is_exporting() else ordered:
        if takes_widths(channels, hidden, backend) and lacks(affinity, z, backend) is None:
            return backend
    return None


def _is_measured(affinity: Affinity) -> bool:
    return affinity.left.is_cuda and affinity.left.dtype in (torch.float32, *HALF)


def _suits_the_matrix(affinity: Affinity, width: int) -> bool:
    """Return whether wide features in float32 are faster with the matrix, which has all derivatives, too."""
    is_exponential = affinity.has_logits and affinity.normalize == "row"
    # An exported program may serve other sizes.
    if is_exporting() or width <= 128 or not is_exponential:
        return False
    return 4 * affinity.batch * affinity.positions * affinity.right.shape[1] <= LARGEST_KERNEL


def order(
    batch: int, positions: int, depth: int, hidden: int, blocks: int, dtype: torch.dtype
) -> tuple[str, ...]:
    """What to try, fastest first, for features [batch, positions, depth]."""
    width = max(depth, hidden)
    if width <= 64:
        return "fused", "attention"
    if width <= 128:
        is_small = batch * positions * positions * dtype.itemsize <= LARGEST_KERNEL
        stores = is_small and blocks >= 3
        return ("stored", "attention", "fused") if stores else ("attention", "fused", "stored")
    return "stored", "attention"
