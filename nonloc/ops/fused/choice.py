"""Which backend "auto" takes on a GPU: by measurements, never by timing at the call, so that a run repeats itself."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops.affinity import Affinity
from nonloc.ops.fused import lacks
from nonloc.ops.fused.stored import LARGEST_KERNEL

HALF = (torch.float16, torch.bfloat16)


def choose(affinity: Affinity, z: Tensor | None, hidden: int, blocks: int) -> str | None:
    """The backend for a stage with so many hidden channels and sub-blocks; None where no measurement says.

    By `python -m benchmarks stage` on an H200, in half precision, forward and backward.
    """
    if not affinity.left.is_cuda or affinity.left.dtype not in HALF:
        return None
    # An exported program should not need this library where it runs.
    orders = ("factored",) if torch.compiler.is_exporting() else _order(affinity, hidden, blocks)
    for backend in orders:
        if backend == "factored":
            is_masked = affinity.mask is not None or affinity.kind == "heat"
            if affinity.normalize == "row" and not is_masked:
                return backend
        elif lacks(affinity, z, backend) is None:
            return backend
    return None


def _order(affinity: Affinity, hidden: int, blocks: int) -> tuple[str, ...]:
    """What to try, fastest first. "factored" is the vendor's attention here."""
    batch, positions, depth = affinity.left.shape
    width = max(depth, hidden)
    if width <= 32:
        return "fused", "factored"
    if width <= 64:
        return ("fused", "factored") if positions >= 512 else ("factored", "fused")
    is_small = batch * positions * positions * affinity.left.element_size() <= LARGEST_KERNEL
    if width <= 128:
        return (
            ("stored", "factored", "fused") if is_small and blocks >= 3 else ("factored", "fused", "stored")
        )
    return "stored", "factored"
