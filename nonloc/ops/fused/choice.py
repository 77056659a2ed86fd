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

    By `python -m benchmarks stage` on an H200, in half precision, forward and backward.
    """
    if not _is_measured(affinity):
        return None
    # An exported program should not need this library where it runs.
    batch, positions, depth = affinity.left.shape
    ordered = order(batch, positions, depth, hidden, blocks, affinity.left.dtype)
    channels = hidden if z is None else z.shape[-1]
    for backend in ("attention",) if is_exporting() else ordered:
        if takes_widths(channels, hidden, backend) and lacks(affinity, z, backend) is None:
            return backend
    return None


def _is_measured(affinity: Affinity) -> bool:
    return affinity.left.is_cuda and affinity.left.dtype in HALF


def order(
    batch: int, positions: int, depth: int, hidden: int, blocks: int, dtype: torch.dtype
) -> tuple[str, ...]:
    """What to try, fastest first, for features [batch, positions, depth]."""
    width = max(depth, hidden)
    if width <= 64:
        return "fused", "attention"
    is_small = batch * positions * positions * dtype.itemsize <= LARGEST_KERNEL
    if width <= 128:
        return (
            ("stored", "attention", "fused") if is_small and blocks >= 3 else ("attention", "fused", "stored")
        )
    return "stored", "attention"
