"""Statistics of a convolution's result, found in the launch that computes it.

Each program stores a pair of numbers for each of its channels. The last program of a GROUP to finish merges the pairs
of the group; the last group to finish merges those of all. Who comes last differs from time to time, but not what is
merged, nor in which order, so the bits are always the same. A ticket counts who has finished, and is 0 again at the
end of the launch.

The pair is (mean, sum of squared deviations), merged by Chan's formula, or two sums.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def collect(
    first, second, columns, exists, parts_ptr, tickets_ptr, rows,
    CHANNELS: tl.constexpr, MOMENTS: tl.constexpr, PART_ROWS: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Return 1 and the pair of all rows in the last program to finish, 0 in the others.

    parts_ptr  [programs + groups, 2, CHANNELS]; tickets_ptr: zeros [programs in the second direction, groups + 1]
    """
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    group = part // GROUP
    groups = (parts + GROUP - 1) // GROUP
    tickets_ptr += tl.program_id(1) * (groups + 1)
    members = tl.minimum(parts - group * GROUP, GROUP)
    is_done = 0
    _store(parts_ptr, part, first, second, columns, exists, CHANNELS)
    if _is_last(tickets_ptr + group, members):
        first, second = _merge(
            parts_ptr, group * GROUP, group * GROUP, members, columns, exists, rows,
            CHANNELS, MOMENTS, PART_ROWS, GROUP,
        )  # fmt: skip
        _store(parts_ptr, parts + group, first, second, columns, exists, CHANNELS)
        if _is_last(tickets_ptr + groups, groups):
            first, second = _merge(
                parts_ptr,
                parts,
                0,
                groups,
                columns,
                exists,
                rows,
                CHANNELS,
                MOMENTS,
                PART_ROWS * GROUP,
                GROUPS,
            )
            is_done = 1
    return is_done, first, second


@triton.jit
def _is_last(ticket_ptr, count):
    # All threads have stored before one of them takes the ticket.
    tl.debug_barrier()
    is_last = tl.atomic_add(ticket_ptr, 1) == count - 1
    if is_last:
        tl.store(ticket_ptr, 0)
    return is_last


@triton.jit
def _store(parts_ptr, place, first, second, columns, exists, CHANNELS: tl.constexpr):
    at = parts_ptr + place * 2 * CHANNELS + columns
    tl.store(at, first, exists)
    tl.store(at + CHANNELS, second, exists)


@triton.jit
def _merge(
    parts_ptr, place, number, count, columns, exists, rows,
    CHANNELS: tl.constexpr, MOMENTS: tl.constexpr, PART_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Merge `count` pairs from `place`; the first of them is of the rows from number · PART_ROWS."""
    steps = tl.arange(0, BLOCK)
    there = (steps < count)[:, None] & exists[None, :]
    at = parts_ptr + (place + steps)[:, None] * (2 * CHANNELS) + columns[None, :]
    # Other multiprocessors wrote them: not from this one's cache.
    first = tl.load(at, there, 0.0, cache_modifier=".cg")
    second = tl.load(at + CHANNELS, there, 0.0, cache_modifier=".cg")
    if MOMENTS:
        sizes = tl.minimum(rows - (number + steps) * PART_ROWS, PART_ROWS)
        sizes = tl.where(steps < count, sizes, 0).to(tl.float32)
        mean = tl.sum(sizes[:, None] * first, 0) / tl.sum(sizes, 0)
        apart = first - mean[None, :]
        squares = tl.sum(second + sizes[:, None] * apart * apart, 0)
        return mean, squares
    return tl.sum(first, 0), tl.sum(second, 0)
