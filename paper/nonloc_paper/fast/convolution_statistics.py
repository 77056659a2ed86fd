"""Merge the statistics that the programs of a convolution have found, in one small launch.

Each program stores a pair of numbers for each channel of its rows: mean and sum of squared deviations, which Chan's
formula merges, or two sums. They are merged in a fixed order, so the bits are always the same. If the last program of
the convolution did it, every program would have to wait until its stores can be seen: 5 to 20 µs on an H200.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Parts and channels that a program of the merging launch holds.
PARTS, CHANNELS = 1024, 8


@triton.jit(do_not_specialize=["rows", "parts"])
def norm_merge_kernel(
    parts_ptr, found_ptr, running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, epsilon, rows, parts,
    CHANNELS: tl.constexpr, MOMENTS: tl.constexpr, PART_ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """From parts [2, parts, CHANNELS]: mean and 1/√(variance + epsilon), updating the running statistics; or sums."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < CHANNELS
    first = tl.zeros([BLOCK_C], tl.float32)
    second = tl.zeros([BLOCK_C], tl.float32)
    seen = 0.0
    for start in range(0, parts, BLOCK_P):
        numbers = start + tl.arange(0, BLOCK_P)
        there = (numbers < parts)[:, None] & exists[None, :]
        at = parts_ptr + numbers[:, None] * CHANNELS + columns[None, :]
        one = tl.load(at, there, 0.0)
        other = tl.load(at + parts * CHANNELS, there, 0.0)
        if MOMENTS:
            sizes = tl.minimum(rows - numbers * PART_ROWS, PART_ROWS)
            sizes = tl.where(numbers < parts, sizes, 0).to(tl.float32)
            size = tl.sum(sizes, 0)
            mean = tl.sum(sizes[:, None] * one, 0) / size
            apart = one - mean[None, :]
            step = mean - first
            both = seen + size
            first += step * (size / both)
            second += tl.sum(other + sizes[:, None] * apart * apart, 0) + step * step * (seen * (size / both))
            seen = both
        else:
            first += tl.sum(one, 0)
            second += tl.sum(other, 0)
    if MOMENTS:
        old_mean = tl.load(running_mean_ptr + columns, exists, 0.0)
        old_var = tl.load(running_var_ptr + columns, exists, 0.0)
        unbiased = second / (rows - 1.0)
        tl.store(running_mean_ptr + columns, (1.0 - momentum) * old_mean + momentum * first, exists)
        tl.store(running_var_ptr + columns, (1.0 - momentum) * old_var + momentum * unbiased, exists)
        if tl.program_id(0) == 0:
            tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1)
        second = 1.0 / tl.sqrt(second / rows + epsilon)
    tl.store(found_ptr + columns, first, exists)
    tl.store(found_ptr + CHANNELS + columns, second, exists)


def merge(
    parts: Tensor, rows: int, part_rows: int, running: tuple[Tensor, Tensor, Tensor, float, float] | None
) -> Tensor:
    """Return [2, C] of parts [2, parts, C] of `part_rows` rows each; with `running`, which is updated, moments."""
    _, count, channels = parts.shape
    found = parts.new_empty((2, channels))
    norm_merge_kernel[(triton.cdiv(channels, CHANNELS),)](
        parts, found, *(running or (None, None, None, 0.0, 0.0)), rows, count,
        CHANNELS=channels, MOMENTS=running is not None, PART_ROWS=part_rows,
        BLOCK_P=min(PARTS, max(16, triton.next_power_of_2(count))), BLOCK_C=CHANNELS, num_warps=8,
    )  # fmt: skip
    return found
