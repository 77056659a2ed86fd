"""Batch normalisation and the ReLU after it in Triton: two launches forward and two backward, no atomics.

Features are a matrix [rows, channels] with contiguous channels: the layout of channels-last images. A launch divides
it into parts of TILES × BLOCK_R consecutive rows. Each part stores its own sums. Each program of the next launch adds
the sums of all parts by itself, in the same order, so the bits are always the same.

Statistics are pairs (mean, sum of squared deviations), relative to the first row, merged by Chan's formula in float32.
So a large mean costs the variance no digits.

With a STRIDE, only every STRIDE-th pixel of every STRIDE-th line of images of HEIGHT × WIDTH is activated, because the
next convolution reads no others. The statistics are those of all pixels.

The backward pass computes the ReLU's mask again from the features: that costs less than reading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs that a launch should have: two for each of the 132 multiprocessors of an H100 or H200.
PROGRAMS = 264
# Up to this many features, one program for each multiprocessor is enough.
SMALL = 2**21
# Parts and channels that a program of the merging launch holds.
MERGED_PARTS, MERGED_CHANNELS = 1024, 8


@triton.jit
def norm_moments_kernel(
    x_ptr, added_ptr, sum_ptr, means_ptr, squares_ptr, rows, channels,
    TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Find mean and squared deviations of each part: Welford's update at each place of the tile, merged at the end.

    With `added`, the sum is stored, and the statistics are those of the stored, rounded sum.
    """
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, rows)
    base = tl.load(x_ptr + columns, exists, 0.0)
    if added_ptr is not None:
        base = _add(base, tl.load(added_ptr + columns, exists, 0.0))
    base = base.to(tl.float32)[None, :]
    mean = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    squares = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    seen = 0.0
    places, inside = _tile_at(first, last, columns, channels, BLOCK_R)
    following = tl.load(x_ptr + places, inside, 0.0)
    if added_ptr is not None:
        following_added = tl.load(added_ptr + places, inside, 0.0)
    for tile in range(TILES):
        x = following
        if added_ptr is not None:
            x = _add(x, following_added)
            tl.store(sum_ptr + places, x, inside)
        x = x.to(tl.float32) - base
        now = inside
        places, inside = _tile_at(first + (tile + 1) * BLOCK_R, last, columns, channels, BLOCK_R)
        following = tl.load(x_ptr + places, inside, 0.0)
        if added_ptr is not None:
            following_added = tl.load(added_ptr + places, inside, 0.0)
        seen += 1.0
        difference = tl.where(now, x - mean, 0.0)
        mean += difference * (1.0 / seen)
        squares += difference * (x - mean)

    # How many rows each row of the tile has seen; the last tile may be shorter.
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
    x_ptr, out_ptr, weight_ptr, bias_ptr, means_ptr, squares_ptr, mean_ptr, inverse_ptr,
    running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, epsilon,
    rows, out_rows, channels, parts,
    PART_ROWS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Activate with the statistics of all `parts` of PART_ROWS rows; the first program stores the statistics."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, out_rows)
    # Load the first tile before the statistics are merged, to hide its latency.
    places, inside = _tile_at(first, last, columns, channels, BLOCK_R)
    sources = _source_at(first, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
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
        at = numbers[:, None] * channels + columns[None, :]
        there = (numbers < parts)[:, None] & exists[None, :]
        means = tl.load(means_ptr + at, there, 0.0)
        more_squares = tl.load(squares_ptr + at, there, 0.0)
        mean, squares, seen = _merge(mean, squares, seen, means, more_squares, counts)
    mean += tl.load(x_ptr + columns, exists, 0.0).to(tl.float32)
    count = rows.to(tl.float32)
    inverse = 1.0 / tl.sqrt(squares / count + epsilon)

    if part == 0:
        tl.store(mean_ptr + columns, mean, exists)
        tl.store(inverse_ptr + columns, inverse, exists)
        _update_running(
            mean, squares, count, columns, exists,
            running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, tl.program_id(1) == 0,
        )  # fmt: skip

    scale = inverse * weight
    for tile in range(TILES):
        x = following.to(tl.float32)
        here, now = places, inside
        start = first + (tile + 1) * BLOCK_R
        places, inside = _tile_at(start, last, columns, channels, BLOCK_R)
        sources = _source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        following = tl.load(x_ptr + sources, inside, 0.0)
        before = _affine(x, mean, scale, bias)
        out = _relu(before, before)
        tl.store(out_ptr + here, out.to(out_ptr.dtype.element_ty), now)


@triton.jit(do_not_specialize=["rows", "parts"])
def norm_merge_kernel(
    parts_ptr, found_ptr, running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, epsilon, rows, parts, channels,
    MOMENTS: tl.constexpr, PART_ROWS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """From parts [2, parts, channels]: mean and 1/√(variance + epsilon), updating the running statistics; or sums."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = tl.zeros([BLOCK_C], tl.float32)
    second = tl.zeros([BLOCK_C], tl.float32)
    seen = 0.0
    for start in range(0, parts, BLOCK_P):
        numbers = start + tl.arange(0, BLOCK_P)
        there = (numbers < parts)[:, None] & exists[None, :]
        at = parts_ptr + numbers[:, None] * channels + columns[None, :]
        one = tl.load(at, there, 0.0)
        other = tl.load(at + parts * channels, there, 0.0)
        if MOMENTS:
            counts = tl.minimum(rows - numbers * PART_ROWS, PART_ROWS)
            counts = tl.where(numbers < parts, counts, 0).to(tl.float32)
            first, second, seen = _merge(first, second, seen, one, other, counts)
        else:
            first += tl.sum(one, 0)
            second += tl.sum(other, 0)
    if MOMENTS:
        count = rows.to(tl.float32)
        _update_running(
            first, second, count, columns, exists,
            running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, tl.program_id(0) == 0,
        )  # fmt: skip
        second = 1.0 / tl.sqrt(second / count + epsilon)
    tl.store(found_ptr + columns, first, exists)
    tl.store(found_ptr + channels + columns, second, exists)


@triton.jit
def _merge(mean, squares, seen, means, more_squares, counts):
    """Merge parts of `counts` rows into the moments of the `seen` ones, by Chan's formula."""
    total = tl.sum(counts, 0)
    chunk_mean = tl.sum(counts[:, None] * means, 0) / total
    apart = means - chunk_mean[None, :]
    chunk_squares = tl.sum(more_squares + counts[:, None] * apart * apart, 0)
    step = chunk_mean - mean
    both = seen + total
    mean += step * (total / both)
    squares += chunk_squares + step * step * (seen * (total / both))
    return mean, squares, both


@triton.jit
def _update_running(
    mean, squares, count, columns, exists, running_mean_ptr, running_var_ptr, num_batches_ptr, momentum, counts_batch
):  # fmt: skip
    old_mean = tl.load(running_mean_ptr + columns, exists, 0.0)
    old_var = tl.load(running_var_ptr + columns, exists, 0.0)
    unbiased = squares / (count - 1.0)
    tl.store(running_mean_ptr + columns, (1.0 - momentum) * old_mean + momentum * mean, exists)
    tl.store(running_var_ptr + columns, (1.0 - momentum) * old_var + momentum * unbiased, exists)
    if counts_batch:
        tl.store(num_batches_ptr, tl.load(num_batches_ptr) + 1)


@triton.jit
def norm_affine_kernel(
    x_ptr, out_ptr, weight_ptr, bias_ptr, mean_ptr, variance_ptr, inverse_ptr, epsilon, out_rows, channels,
    TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Activate with statistics that are known: the variance, or 1/√(variance + epsilon)."""
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = tl.program_id(0) * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, out_rows)
    mean = tl.load(mean_ptr + columns, exists, 0.0)
    bias = tl.load(bias_ptr + columns, exists, 0.0)
    scale = tl.load(weight_ptr + columns, exists, 0.0)
    if inverse_ptr is None:
        scale /= tl.sqrt(tl.load(variance_ptr + columns, exists, 1.0) + epsilon)
    else:
        scale *= tl.load(inverse_ptr + columns, exists, 0.0)
    for tile in range(TILES):
        start = first + tile * BLOCK_R
        places, inside = _tile_at(start, last, columns, channels, BLOCK_R)
        sources = _source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        x = tl.load(x_ptr + sources, inside, 0.0).to(tl.float32)
        before = _affine(x, mean, scale, bias)
        out = _relu(before, before)
        tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), inside)


@triton.jit
def norm_sums_kernel(
    x_ptr, grad_ptr, weight_ptr, bias_ptr, mean_ptr, inverse_ptr, sums_ptr, products_ptr,
    out_rows, channels,
    TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Sum, for each part, the gradient that passes the ReLU, and its product with the normalised features."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, out_rows)
    mean = tl.load(mean_ptr + columns, exists, 0.0)
    inverse = tl.load(inverse_ptr + columns, exists, 0.0)
    scale = inverse * tl.load(weight_ptr + columns, exists, 0.0)
    bias = tl.load(bias_ptr + columns, exists, 0.0)
    sums = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    products = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for tile in range(TILES):
        start = first + tile * BLOCK_R
        places, inside = _tile_at(start, last, columns, channels, BLOCK_R)
        sources = _source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        x = tl.load(x_ptr + sources, inside, 0.0).to(tl.float32)
        grad = tl.load(grad_ptr + places, inside, 0.0).to(tl.float32)
        passed = _relu(grad, _affine(x, mean, scale, bias))
        sums += passed
        # Outside the matrix x is 0 and not the mean, but there the gradient is 0.
        products += passed * (x - mean[None, :])
    at = part * channels + columns
    tl.store(sums_ptr + at, tl.sum(sums, 0), exists)
    tl.store(products_ptr + at, tl.sum(products, 0) * inverse, exists)


@triton.jit
def norm_gradient_kernel(
    x_ptr, grad_ptr, more_ptr, weight_ptr, bias_ptr, mean_ptr, inverse_ptr, sums_ptr, products_ptr,
    grad_x_ptr, grad_weight_ptr, grad_bias_ptr, rows, channels, parts,
    CHUNKS: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Find the gradient to x and add `more` to it; the first program stores those to weight and bias."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, rows)
    # Load the first tile before the sums are added up, to hide its latency.
    places, inside = _tile_at(first, last, columns, channels, BLOCK_R)
    grads, has_grad = _target_at(first, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
    following = tl.load(x_ptr + places, inside, 0.0)
    following_grad = tl.load(grad_ptr + grads, inside & has_grad, 0.0)
    mean = tl.load(mean_ptr + columns, exists, 0.0)
    inverse = tl.load(inverse_ptr + columns, exists, 0.0)
    scale = inverse * tl.load(weight_ptr + columns, exists, 0.0)
    bias = tl.load(bias_ptr + columns, exists, 0.0)

    sums = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    products = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for chunk in range(CHUNKS):
        numbers = chunk * BLOCK_P + tl.arange(0, BLOCK_P)
        at = numbers[:, None] * channels + columns[None, :]
        there = (numbers < parts)[:, None] & exists[None, :]
        sums += tl.load(sums_ptr + at, there, 0.0)
        products += tl.load(products_ptr + at, there, 0.0)
    grad_bias = tl.sum(sums, 0)
    grad_weight = tl.sum(products, 0)
    if part == 0:
        tl.store(grad_bias_ptr + columns, grad_bias, exists)
        tl.store(grad_weight_ptr + columns, grad_weight, exists)

    # dx = scale · (passed − mean(passed) − x̂ · mean(passed · x̂)), with x̂ = (x − mean) · inverse
    constant = scale * (grad_bias / rows)
    slope = scale * inverse * (grad_weight / rows)
    for tile in range(TILES):
        x = following.to(tl.float32)
        grad = following_grad.to(tl.float32)
        here, now = places, inside
        if more_ptr is not None:
            more = tl.load(more_ptr + here, now, 0.0)
        start = first + (tile + 1) * BLOCK_R
        places, inside = _tile_at(start, last, columns, channels, BLOCK_R)
        grads, has_grad = _target_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        following = tl.load(x_ptr + places, inside, 0.0)
        following_grad = tl.load(grad_ptr + grads, inside & has_grad, 0.0)
        grad_x = _relu(grad, _affine(x, mean, scale, bias)) * scale[None, :]
        grad_x -= constant[None, :] + (x - mean[None, :]) * slope[None, :]
        if more_ptr is not None:
            grad_x += more.to(tl.float32)
        tl.store(grad_x_ptr + here, grad_x.to(grad_x_ptr.dtype.element_ty), now)


@triton.jit
def _tile_at(start, last, columns, channels, BLOCK_R: tl.constexpr):
    """Return the offsets of the tile of rows from `start`, and which of them are inside the matrix."""
    rows = start + tl.arange(0, BLOCK_R)
    places = rows[:, None] * channels + columns[None, :]
    return places, (rows < last)[:, None] & (columns < channels)[None, :]


@triton.jit
def _source_at(
    start, columns, channels, BLOCK_R: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the offsets of the features from which the activated rows from `start` are made."""
    rows = start + tl.arange(0, BLOCK_R)
    if STRIDE != 1:
        lines = rows // ((WIDTH + STRIDE - 1) // STRIDE)
        x = rows % ((WIDTH + STRIDE - 1) // STRIDE) * STRIDE
        images = lines // ((HEIGHT + STRIDE - 1) // STRIDE)
        y = lines % ((HEIGHT + STRIDE - 1) // STRIDE) * STRIDE
        rows = (images * HEIGHT + y) * WIDTH + x
    return rows[:, None] * channels + columns[None, :]


@triton.jit
def _add(x, y):
    """Add in float32 and round to the dtype of x."""
    return (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)


@triton.jit
def _affine(x, mean, scale, bias):
    return (x - mean[None, :]) * scale[None, :] + bias[None, :]


@triton.jit
def _relu(value, before):
    """Return `value` where the ReLU's input `before` is positive or NaN, else 0."""
    return tl.where(before <= 0.0, 0.0, value)


@triton.jit
def _target_at(
    start, columns, channels, BLOCK_R: tl.constexpr,
    STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the offsets of the gradients of the features from `start`, and which features were activated."""
    rows = start + tl.arange(0, BLOCK_R)
    is_used = rows >= 0
    if STRIDE != 1:
        x = rows % WIDTH
        y = rows // WIDTH % HEIGHT
        images = rows // (WIDTH * HEIGHT)
        is_used = (x % STRIDE == 0) & (y % STRIDE == 0)
        lines = images * ((HEIGHT + STRIDE - 1) // STRIDE) + y // STRIDE
        rows = lines * ((WIDTH + STRIDE - 1) // STRIDE) + x // STRIDE
    return rows[:, None] * channels + columns[None, :], is_used[:, None]


def moments_and_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor,
    momentum: float,
    epsilon: float,
    *,
    added: Tensor | None = None,
    stride: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training: compute relu(norm(x + added)) with the batch's statistics; update the running ones and the count.

    x        [B, C, H, W]  channels-last; float32, bfloat16 or float16. `added` has its shape, dtype and layout
    weight, bias, running_mean, running_var  [C]  float32; num_batches  int64 []
    stride   activate every stride-th pixel in both directions
    returns  x + added, or x; the activation [B, C, ⌈H/stride⌉, ⌈W/stride⌉]; and, float32 [C], the mean and
             1/√(variance + epsilon) of all pixels
    """
    rows, out_shape, out_rows, pixels = _sizes(x, stride)
    channels = x.shape[1]
    tiling, out_tiling = make_tiling(rows, channels), make_tiling(out_rows, channels)
    parts = tiling.parts(rows)
    means, squares = x.new_empty((2, parts, channels), dtype=torch.float32)
    mean, inverse = x.new_empty((2, channels), dtype=torch.float32)
    total = x if added is None else torch.empty_like(x)
    out = torch.empty(out_shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    norm_moments_kernel[tiling.grid(rows, channels)](
        x, added, None if added is None else total, means, squares, rows, channels, **tiling.sizes()
    )
    norm_relu_kernel[out_tiling.grid(out_rows, channels)](
        total, out, weight, bias, means, squares, mean, inverse, running_mean, running_var, num_batches,
        float(momentum), float(epsilon), rows, out_rows, channels, parts,
        PART_ROWS=tiling.part_rows, **_chunks(parts), **out_tiling.sizes(), **pixels,
    )  # fmt: skip
    return total, out, mean, inverse


def merge_moments(
    parts: Tensor,
    rows: int,
    part_rows: int,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor,
    momentum: float,
    epsilon: float,
) -> Tensor:
    """Return mean and 1/√(variance + epsilon) [2, C]; update the running statistics and the count.

    parts  mean and sum of squared deviations [2, parts, C] of `part_rows` rows each, of which there are `rows`
    """
    running = (running_mean, running_var, num_batches, float(momentum), float(epsilon))
    return _merge_parts(parts, rows, part_rows, running)


def merge_sums(parts: Tensor) -> Tensor:
    """Return the sums [2, C] of parts [2, parts, C]."""
    return _merge_parts(parts, 0, 0, None)


def _merge_parts(parts: Tensor, rows: int, part_rows: int, running: tuple[Any, ...] | None) -> Tensor:
    """As `merge_moments`; without `running`, the sums [2, C].

    In a launch of its own: if the last program of a convolution did it, every program would have to wait until its
    stores can be seen, 5 to 20 µs on an H200.
    """
    _, count, channels = parts.shape
    found = parts.new_empty((2, channels))
    norm_merge_kernel[(triton.cdiv(channels, MERGED_CHANNELS),)](
        parts, found, *(running or (None, None, None, 0.0, 0.0)), rows, count, channels,
        MOMENTS=running is not None, PART_ROWS=part_rows,
        BLOCK_P=min(MERGED_PARTS, max(16, triton.next_power_of_2(count))), BLOCK_C=MERGED_CHANNELS, num_warps=8,
    )  # fmt: skip
    return found


def activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor | None,
    epsilon: float,
    *,
    inverse: Tensor | None = None,
    stride: int = 1,
) -> Tensor:
    """Compute relu(weight · (x − mean) · inverse + bias), with inverse = 1/√(variance + epsilon) if it is None."""
    _, out_shape, out_rows, pixels = _sizes(x, stride)
    channels = x.shape[1]
    tiling = make_tiling(out_rows, channels)
    out = torch.empty(out_shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    norm_affine_kernel[tiling.grid(out_rows, channels)](
        x, out, weight, bias, mean, variance, inverse, float(epsilon), out_rows, channels,
        **tiling.sizes(), **pixels,
    )  # fmt: skip
    return out


def gradients(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    *,
    more: Tensor | None = None,
    found: Tensor | None = None,
    stride: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients to x, weight and bias in training.

    grad   the gradient to the activation, channels-last
    more   another gradient to x, to be added; like x
    found  the gradients to bias and weight [2, parts, C], of parts to be added, where they are known
    """
    rows, _, out_rows, pixels = _sizes(x, stride)
    channels = x.shape[1]
    tiling, out_tiling = (make_tiling(count, channels, elements=4096) for count in (rows, out_rows))
    grad_x = torch.empty_like(x)
    affine = (weight, bias, mean, inverse)
    if found is None:
        found = x.new_empty((2, out_tiling.parts(out_rows), channels), dtype=torch.float32)
        norm_sums_kernel[out_tiling.grid(out_rows, channels)](
            x, grad, *affine, *found, out_rows, channels, **out_tiling.sizes(), **pixels
        )
    elif found.shape[1] > PROGRAMS:
        found = merge_sums(found).unsqueeze(1)
    parts = found.shape[1]
    grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
    norm_gradient_kernel[tiling.grid(rows, channels)](
        x, grad, more, *affine, *found, grad_x, grad_weight, grad_bias, rows, channels, parts,
        **_chunks(parts), **tiling.sizes(), **pixels,
    )  # fmt: skip
    return grad_x, grad_weight, grad_bias


@dataclass(frozen=True)
class Tiling:
    """How a matrix of features is divided: the tile of a program, and the number of tiles in its part."""

    block_rows: int
    block_channels: int
    tiles_per_part: int

    @property
    def part_rows(self) -> int:
        return self.tiles_per_part * self.block_rows

    def parts(self, rows: int) -> int:
        return triton.cdiv(rows, self.part_rows)

    def grid(self, rows: int, channels: int) -> tuple[int, int]:
        return self.parts(rows), triton.cdiv(channels, self.block_channels)

    def sizes(self) -> dict[str, int]:
        return {
            "TILES": self.tiles_per_part,
            "BLOCK_R": self.block_rows,
            "BLOCK_C": self.block_channels,
            "num_warps": 8,
        }


@lru_cache(maxsize=1024)
def make_tiling(rows: int, channels: int, *, elements: int = 8192) -> Tiling:
    """Return a tiling that fills an H200, with tiles of at most `elements`.

    For few features narrow tiles are better, although their reads are shorter. What a program adds up again is parts ×
    block_channels, and both shrink with block_channels.
    """
    is_small = rows * channels <= SMALL
    block_channels = min(16 if is_small else 32, triton.next_power_of_2(channels))
    most_parts = max(1, (PROGRAMS // 2 if is_small else PROGRAMS) // triton.cdiv(channels, block_channels))
    rows_per_part = triton.cdiv(rows, most_parts)
    block_rows = min(triton.next_power_of_2(rows_per_part), max(1, elements // block_channels))
    block_rows = max(block_rows, 1024 // block_channels)
    # A power of 2, because each number of tiles is another compilation.
    tiles = triton.next_power_of_2(triton.cdiv(rows_per_part, block_rows))
    return Tiling(block_rows, block_channels, tiles)


def _sizes(x: Tensor, stride: int) -> tuple[int, tuple[int, int, int, int], int, dict[str, int]]:
    """Return the rows of x, the shape and rows of its activation, and the constants of the pixels."""
    batch, channels, height, width = x.shape
    out_height, out_width = triton.cdiv(height, stride), triton.cdiv(width, stride)
    # Stride 1 does not need the size of the images, which would be another compilation.
    pixels = {"STRIDE": stride, "HEIGHT": 0 if stride == 1 else height, "WIDTH": 0 if stride == 1 else width}
    rows, out_rows = batch * height * width, batch * out_height * out_width
    return rows, (batch, channels, out_height, out_width), out_rows, pixels


def _chunks(parts: int) -> dict[str, int]:
    """Return how the parts' sums are read; in two sizes, because each is another compilation."""
    block = 64 if parts <= 64 else 256
    return {"CHUNKS": triton.cdiv(parts, block), "BLOCK_P": block}
