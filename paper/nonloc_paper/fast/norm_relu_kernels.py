"""Batch normalisation followed by ReLU in Triton, forward: two launches, no atomics.

The features are a matrix [rows, channels] with contiguous channels, which is what channels-last images are. A
launch divides it into parts of TILES × BLOCK_R consecutive rows; every part leaves its own sums, and every program
of the launch that follows adds up all parts' sums by itself, in the same order, so that nothing waits and nothing
depends on who comes first.

Statistics are kept as (mean, sum of squared deviations), counted from the first row and merged by Chan's formula
in float32: a mean that is large beside the deviation costs no digits of the variance.

With a STRIDE, only every STRIDE-th pixel of every STRIDE-th line of images of HEIGHT × WIDTH is activated, for a
convolution that would step over the others; the statistics are those of all pixels.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_moments_kernel(
    x_ptr,
    added_ptr,
    sum_ptr,
    means_ptr,
    squares_ptr,
    rows,
    channels,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Mean and squared deviations of each part: Welford's update in every place of the tile, merged at the end.

    Where there is something to add, the sum is stored, and it is the sum as stored that is looked at.
    """
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, rows)
    base = tl.load(x_ptr + columns, exists, 0.0)
    if added_ptr is not None:
        base = add(base, tl.load(added_ptr + columns, exists, 0.0))
    base = base.to(tl.float32)[None, :]
    mean = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    seen = 0.0
    places, inside = tile_at(first, last, columns, channels, BLOCK_R)
    following = tl.load(x_ptr + places, inside, 0.0)
    if added_ptr is not None:
        following_added = tl.load(added_ptr + places, inside, 0.0)
    for tile in range(TILES):
        x = following
        if added_ptr is not None:
            x = add(x, following_added)
            tl.store(sum_ptr + places, x, inside)
        x = x.to(tl.float32) - base
        now = inside
        places, inside = tile_at(first + (tile + 1) * BLOCK_R, last, columns, channels, BLOCK_R)
        following = tl.load(x_ptr + places, inside, 0.0)
        if added_ptr is not None:
            following_added = tl.load(added_ptr + places, inside, 0.0)
        seen += 1.0
        difference = tl.where(now, x - mean, 0.0)
        mean += difference * (1.0 / seen)
        squares += difference * (x - mean)

    # How many rows each row of the tile has seen: one more for those that the last, shorter tile reached.
    extra = last - first - tl.arange(0, BLOCK_R) + BLOCK_R - 1
    counts = tl.maximum(extra // BLOCK_R, 0).to(tl.float32)[:, None]
    total = (last - first).to(tl.float32)
    part_mean = tl.sum(counts * mean, 0) / total
    apart = mean - part_mean[None, :]
    part_squares = tl.sum(squares + counts * apart * apart, 0)
    at = part * channels + columns
    tl.store(means_ptr + at, part_mean, exists)
    tl.store(squares_ptr + at, part_squares, exists)


@triton.jit
def norm_relu_kernel(
    x_ptr,
    out_ptr,
    weight_ptr,
    bias_ptr,
    means_ptr,
    squares_ptr,
    mean_ptr,
    inverse_ptr,
    running_mean_ptr,
    running_var_ptr,
    num_batches_ptr,
    momentum,
    epsilon,
    rows,
    out_rows,
    channels,
    parts,
    PART_ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The activation, with the statistics of all `parts` of PART_ROWS rows; the first program keeps them."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, out_rows)
    # The first tile is on its way while the statistics are put together.
    places, inside = tile_at(first, last, columns, channels, BLOCK_R)
    sources = source_at(first, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
    following = tl.load(x_ptr + sources, inside, 0.0)
    weight = tl.load(weight_ptr + columns, exists, 0.0)
    bias = tl.load(bias_ptr + columns, exists, 0.0)

    mean = tl.zeros([BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_C], tl.float32)
    seen = 0.0
    for chunk in range(CHUNKS):
        numbers = chunk * BLOCK_P + tl.arange(0, BLOCK_P)
        counts = tl.minimum(rows - numbers * PART_ROWS, PART_ROWS)
        counts = tl.where(numbers < parts, counts, 0).to(tl.float32)
        total = tl.sum(counts, 0)
        at = numbers[:, None] * channels + columns[None, :]
        there = (numbers < parts)[:, None] & exists[None, :]
        means = tl.load(means_ptr + at, there, 0.0)
        more_squares = tl.load(squares_ptr + at, there, 0.0)
        chunk_mean = tl.sum(counts[:, None] * means, 0) / total
        apart = means - chunk_mean[None, :]
        chunk_squares = tl.sum(more_squares + counts[:, None] * apart * apart, 0)
        step = chunk_mean - mean
        both = seen + total
        mean += step * (total / both)
        squares += chunk_squares + step * step * (seen * (total / both))
        seen = both
    mean += tl.load(x_ptr + columns, exists, 0.0).to(tl.float32)
    count = rows.to(tl.float32)
    inverse = 1.0 / tl.sqrt(squares / count + epsilon)

    if part == 0:
        tl.store(mean_ptr + columns, mean, exists)
        tl.store(inverse_ptr + columns, inverse, exists)
        old_mean = tl.load(running_mean_ptr + columns, exists, 0.0)
        old_var = tl.load(running_var_ptr + columns, exists, 0.0)
        unbiased = squares / (count - 1.0)
        tl.store(running_mean_ptr + columns, (1.0 - momentum) * old_mean + momentum * mean, exists)
        tl.store(running_var_ptr + columns, (1.0 - momentum) * old_var + momentum * unbiased, exists)
        if (num_batches_ptr is not None) and (tl.program_id(1) == 0):
            tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1)

    scale = inverse * weight
    for tile in range(TILES):
        x = following.to(tl.float32)
        here, now = places, inside
        start = first + (tile + 1) * BLOCK_R
        places, inside = tile_at(start, last, columns, channels, BLOCK_R)
        sources = source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        following = tl.load(x_ptr + sources, inside, 0.0)
        out = relu(affine(x, mean, scale, bias))
        tl.store(out_ptr + here, out.to(out_ptr.dtype.element_ty), now)


@triton.jit
def norm_affine_kernel(
    x_ptr,
    out_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    variance_ptr,
    epsilon,
    out_rows,
    channels,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The activation, with statistics that are known."""
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = tl.program_id(0) * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, out_rows)
    mean = tl.load(mean_ptr + columns, exists, 0.0)
    bias = tl.load(bias_ptr + columns, exists, 0.0)
    variance = tl.load(variance_ptr + columns, exists, 1.0)
    scale = tl.load(weight_ptr + columns, exists, 0.0) / tl.sqrt(variance + epsilon)
    for tile in range(TILES):
        start = first + tile * BLOCK_R
        places, inside = tile_at(start, last, columns, channels, BLOCK_R)
        sources = source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        x = tl.load(x_ptr + sources, inside, 0.0).to(tl.float32)
        out = relu(affine(x, mean, scale, bias))
        tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def tile_at(start, last, columns, channels, BLOCK_R: tl.constexpr):
    """Where the tile of rows from `start` lies, and which of it is inside."""
    rows = start + tl.arange(0, BLOCK_R)
    places = rows[:, None] * channels + columns[None, :]
    return places, (rows < last)[:, None] & (columns < channels)[None, :]


@triton.jit
def source_at(
    start,
    columns,
    channels,
    BLOCK_R: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Where the features lie of which the tile of activated rows from `start` is made."""
    rows = start + tl.arange(0, BLOCK_R)
    if STRIDE != 1:
        lines = rows // ((WIDTH + STRIDE - 1) // STRIDE)
        x = rows % ((WIDTH + STRIDE - 1) // STRIDE) * STRIDE
        images = lines // ((HEIGHT + STRIDE - 1) // STRIDE)
        y = lines % ((HEIGHT + STRIDE - 1) // STRIDE) * STRIDE
        rows = (images * HEIGHT + y) * WIDTH + x
    return rows[:, None] * channels + columns[None, :]


@triton.jit
def add(x, y):
    """The sum in float32, rounded as x is."""
    return (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)


@triton.jit
def affine(x, mean, scale, bias):
    return (x - mean[None, :]) * scale[None, :] + bias[None, :]


@triton.jit
def relu(x):
    # Written so that NaN stays NaN.
    return tl.where(x <= 0.0, 0.0, x)
