"""Convolutions of few channels in Triton: forward, the gradient to the input, the gradient to the weights.

Images are matrices [positions, channels] with contiguous channels: the layout of channels-last images. A 3×3 kernel
has nine taps around each position. A column is a tap and a channel; a position reads one row of all columns. Taps
outside the image, and columns that only fill a tile, count as zeros.

The gradient to the input uses the kernel of the forward pass, with flipped taps (FLIP) and the channels of input and
output exchanged. The gradient to the weights is a sum over all positions. One launch sums parts of the positions; a
second launch adds the parts in a fixed order, so the bits are always the same.

A batch norm with ReLU before the convolution, the sum of a residual block after it, and the statistics for the batch
norm that follows can be part of its launch; backward, the two sums that the norm needs. For a 1×1 kernel, which is a
product of matrices, the sums and the gradient to the weights are one launch: they read the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Programs that a launch should have: two for each of the multiprocessors of an H100 or H200. Those that add something
# up are one for each: with several runs side by side, longer programs do more than more of them.
MULTIPROCESSORS = 132
PROGRAMS = 2 * MULTIPROCESSORS
# A tensor core takes 64 rows at a time; the other sides of a product have at least 16.
WIDE, NARROW = 64, 16
# Numbers of the parts that a program adds up at a time.
SUMMED = 4096


@triton.jit(do_not_specialize=["positions", "tiles"])
def conv_kernel(
    x_ptr, weight_ptr, out_ptr, positions, tiles,
    weight_out_stride, weight_in_stride, weight_y_stride, weight_x_stride,
    mean_ptr, inverse_ptr, scale_ptr, bias_ptr, added_ptr, features_ptr, parts_ptr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr,
    CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, FLIP: tl.constexpr,
    ACTIVATES: tl.constexpr, STATISTICS: tl.constexpr, AHEAD: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Compute `tiles` tiles of BLOCK_P positions for BLOCK_O output channels, reading BLOCK_C columns at a time.

    ACTIVATES    x goes through the norm and its ReLU first
    added        is added to the result
    STATISTICS   "moments": of the result, for the norm that follows: mean and squared deviations of these positions.
                 "sums": the result is the gradient to the activation of `features` by the norm: what passes the ReLU,
                 and its product with the normalised features
    AHEAD        for a 1×1 kernel whose columns are one block: what a tile needs is asked for a tile before, so that
                 memory is busy while a program computes
    EVEN         no position, no column and no output channel is outside
    """
    COLUMNS: tl.constexpr = KERNEL * KERNEL * CHANNELS
    begin = tl.program_id(0) * tiles * BLOCK_P
    outs = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    has_out = outs < OUT_CHANNELS
    more_ptr = features_ptr if STATISTICS == "sums" else added_ptr
    if STATISTICS == "sums":
        scale, shift = _load_norm(mean_ptr, inverse_ptr, scale_ptr, bias_ptr, outs, has_out)
    if STATISTICS != "":
        first = tl.zeros([BLOCK_P // 2, BLOCK_O], tl.float32)
        second = tl.zeros([BLOCK_P // 2, BLOCK_O], tl.float32)
    if AHEAD:
        at = begin + tl.arange(0, BLOCK_P)
        columns = tl.arange(0, BLOCK_C)
        exists = (columns < COLUMNS)[:, None] & has_out[None, :]
        places = columns[:, None] * weight_in_stride + outs[None, :] * weight_out_stride
        weight = tl.load(weight_ptr + places, exists, 0.0)
        if ACTIVATES:
            scale, shift = _load_norm(mean_ptr, inverse_ptr, scale_ptr, bias_ptr, columns, columns < COLUMNS)
        following = _load_rows(x_ptr, at, columns, positions, COLUMNS, EVEN)
        if more_ptr is not None:
            following_more = _load_rows(more_ptr, at, outs, positions, OUT_CHANNELS, EVEN)
    for tile in tl.range(tiles, num_stages=1):
        at = begin + tile * BLOCK_P + tl.arange(0, BLOCK_P)
        if AHEAD:
            seen = following
            # The last tile asks for itself once more: a mask would cost every tile.
            upcoming = begin + tl.minimum(tile + 1, tiles - 1) * BLOCK_P + tl.arange(0, BLOCK_P)
            following = _load_rows(x_ptr, upcoming, columns, positions, COLUMNS, EVEN)
            if more_ptr is not None:
                more = following_more
                following_more = _load_rows(more_ptr, upcoming, outs, positions, OUT_CHANNELS, EVEN)
            if ACTIVATES:
                inside = (at < positions)[:, None] & (columns < COLUMNS)[None, :]
                seen = _activated(seen, inside, scale, shift, EVEN)
            sums = tl.dot(seen, weight, input_precision="ieee")
        else:
            # What is needed last is asked for first: nothing is read ahead of a store.
            if more_ptr is not None:
                more = _load_rows(more_ptr, at, outs, positions, OUT_CHANNELS, EVEN)
            sums = tl.zeros([BLOCK_P, BLOCK_O], tl.float32)
            for start in range(0, COLUMNS, BLOCK_C):
                columns = start + tl.arange(0, BLOCK_C)
                taps = columns // CHANNELS
                channels = columns % CHANNELS
                y = taps // KERNEL
                x = taps % KERNEL
                sources = _steps(y, x, KERNEL, WIDTH) * CHANNELS + channels
                inside = _is_inside(at, y, x, positions, KERNEL, HEIGHT, WIDTH) & (columns < COLUMNS)[None, :]
                seen = tl.load(x_ptr + at[:, None] * CHANNELS + sources[None, :], inside, 0.0)
                if ACTIVATES:
                    scale, shift = _load_norm(
                        mean_ptr, inverse_ptr, scale_ptr, bias_ptr, channels, columns < COLUMNS
                    )
                    seen = _activated(seen, inside, scale, shift, EVEN)
                if FLIP:
                    y = KERNEL - 1 - y
                    x = KERNEL - 1 - x
                places = channels * weight_in_stride + y * weight_y_stride + x * weight_x_stride
                exists = (columns < COLUMNS)[:, None] & has_out[None, :]
                weight = tl.load(
                    weight_ptr + places[:, None] + outs[None, :] * weight_out_stride, exists, 0.0
                )
                sums = tl.dot(seen, weight, sums, input_precision="ieee")
        if added_ptr is not None:
            sums += more.to(tl.float32)
        _store_rows(out_ptr, sums, at, outs, positions, OUT_CHANNELS, EVEN)
        # In half precision, sums of squares lose fewer digits to a large mean than the results have lost already.
        if STATISTICS == "moments":
            first += _folded(sums)
            second += _folded(sums * sums)
        if STATISTICS == "sums":
            x = more.to(tl.float32)
            passed = tl.where(x * scale[None, :] + shift[None, :] <= 0.0, 0.0, sums)
            first += _folded(passed)
            second += _folded(passed * x)
    if STATISTICS == "moments":
        total, two = tl.reduce((first, second), 0, _add_pairs)
        one = total / tl.minimum(positions - begin, tiles * BLOCK_P)
        _store_part(parts_ptr, one, tl.maximum(two - total * one, 0.0), outs, OUT_CHANNELS)
    if STATISTICS == "sums":
        _store_sums(parts_ptr, first, second, mean_ptr, inverse_ptr, outs, OUT_CHANNELS)


@triton.jit
def _load_rows(ptr, at, columns, positions, COLUMNS: tl.constexpr, EVEN: tl.constexpr):
    """Return the rows `at` of a matrix [positions, COLUMNS]; zeros outside, unless all is inside (EVEN)."""
    places = ptr + at[:, None] * COLUMNS + columns[None, :]
    inside = (at < positions)[:, None] & (columns < COLUMNS)[None, :]
    return tl.load(places) if EVEN else tl.load(places, inside, 0.0)


@triton.jit
def _store_rows(ptr, values, at, columns, positions, COLUMNS: tl.constexpr, EVEN: tl.constexpr):
    """Store the rows `at` of a matrix [positions, COLUMNS], those inside."""
    places = ptr + at[:, None] * COLUMNS + columns[None, :]
    values = values.to(ptr.dtype.element_ty)
    if EVEN:
        tl.store(places, values)
    else:
        tl.store(places, values, (at < positions)[:, None] & (columns < COLUMNS)[None, :])


@triton.jit
def _folded(x):
    """Add rows that are 8 apart: a tensor core leaves them to one thread."""
    ROWS: tl.constexpr = x.shape[0]
    COLUMNS: tl.constexpr = x.shape[1]
    pairs = tl.reshape(x, [ROWS // 16, 2, 8, COLUMNS])
    return tl.reshape(tl.sum(pairs, 1), [ROWS // 2, COLUMNS])


@triton.jit
def _store_sums(parts_ptr, passed, products, mean_ptr, inverse_ptr, channels, CHANNELS: tl.constexpr):
    """Store what the norm needs of a part, from what passes the ReLU and its products with the features."""
    one, two = tl.reduce((passed, products), 0, _add_pairs)
    mean = tl.load(mean_ptr + channels, channels < CHANNELS, 0.0)
    two = (two - one * mean) * tl.load(inverse_ptr + channels, channels < CHANNELS, 0.0)
    _store_part(parts_ptr, one, two, channels, CHANNELS)


@triton.jit
def _store_part(parts_ptr, one, two, channels, CHANNELS: tl.constexpr):
    """Store two statistics of this program's positions in [2, parts, CHANNELS]."""
    parts = parts_ptr + tl.program_id(0) * CHANNELS + channels
    tl.store(parts, one, channels < CHANNELS)
    tl.store(parts + tl.num_programs(0) * CHANNELS, two, channels < CHANNELS)


@triton.jit
def _add_pairs(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit(do_not_specialize=["positions", "tiles"])
def pointwise_conv_sums_kernel(
    x_ptr, grad_ptr, weight_ptr, grad_active_ptr, parts_ptr, weight_parts_ptr, mean_ptr, inverse_ptr, scale_ptr,
    bias_ptr, positions, tiles, weight_out_stride, weight_in_stride,
    CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Sum over `tiles` tiles of positions what the norm before a 1×1 kernel needs, and the gradient to the weights.

    grad_active  None, or gets the gradient to the activation
    EVEN         as in `conv_kernel`. What a tile needs is asked for a tile before, too
    """
    begin = tl.program_id(0) * tiles * BLOCK_P
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    outs = tl.arange(0, BLOCK_O)
    has_channel = channels < CHANNELS
    exists = (outs < OUT_CHANNELS)[:, None] & has_channel[None, :]
    places = outs[:, None] * weight_out_stride + channels[None, :] * weight_in_stride
    weight = tl.load(weight_ptr + places, exists, 0.0)
    scale, shift = _load_norm(mean_ptr, inverse_ptr, scale_ptr, bias_ptr, channels, has_channel)
    passed = tl.zeros([BLOCK_P // 2, BLOCK_C], tl.float32)
    products = tl.zeros([BLOCK_P // 2, BLOCK_C], tl.float32)
    # The larger side of a product comes first, where the tensor cores take many rows.
    IS_TURNED: tl.constexpr = BLOCK_C >= BLOCK_O
    grad_weight = tl.zeros([BLOCK_C if IS_TURNED else BLOCK_O, BLOCK_O if IS_TURNED else BLOCK_C], tl.float32)
    at = begin + tl.arange(0, BLOCK_P)
    following = _load_rows(x_ptr, at, channels, positions, CHANNELS, EVEN)
    following_grad = _load_rows(grad_ptr, at, outs, positions, OUT_CHANNELS, EVEN)
    for tile in tl.range(tiles, num_stages=1):
        at = begin + tile * BLOCK_P + tl.arange(0, BLOCK_P)
        x, grad = following, following_grad
        upcoming = begin + tl.minimum(tile + 1, tiles - 1) * BLOCK_P + tl.arange(0, BLOCK_P)
        following = _load_rows(x_ptr, upcoming, channels, positions, CHANNELS, EVEN)
        following_grad = _load_rows(grad_ptr, upcoming, outs, positions, OUT_CHANNELS, EVEN)
        inside = (at < positions)[:, None] & has_channel[None, :]
        active = _activated(x, inside, scale, shift, EVEN)
        if IS_TURNED:
            grad_weight = tl.dot(tl.trans(active), grad, grad_weight, input_precision="ieee")
        else:
            grad_weight = tl.dot(tl.trans(grad), active, grad_weight, input_precision="ieee")
        grad_active = tl.dot(grad, weight, input_precision="ieee")
        x = x.to(tl.float32)
        kept = tl.where(x * scale[None, :] + shift[None, :] <= 0.0, 0.0, grad_active)
        passed += _folded(kept)
        products += _folded(kept * x)
        if grad_active_ptr is not None:
            _store_rows(grad_active_ptr, grad_active, at, channels, positions, CHANNELS, EVEN)
    _store_sums(parts_ptr, passed, products, mean_ptr, inverse_ptr, channels, CHANNELS)
    if IS_TURNED:
        grad_weight = tl.trans(grad_weight)
    parts = weight_parts_ptr + tl.program_id(0) * OUT_CHANNELS * CHANNELS
    tl.store(parts + outs[:, None] * CHANNELS + channels[None, :], grad_weight, exists)


@triton.jit(do_not_specialize=["positions", "tiles"])
def pointwise_conv_gradient_kernel(
    x_ptr, grad_ptr, weight_ptr, added_ptr, grad_x_ptr, totals_ptr, mean_ptr, inverse_ptr, scale_ptr, bias_ptr,
    positions, tiles, weight_out_stride, weight_in_stride,
    CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Find the gradient to the features before the norm, and add `added` to it.

    The gradient to the activation is computed once more: where it has more channels than `grad`, that costs less than
    storing and reading it.

    totals  the sums of all positions [2, CHANNELS]
    """
    begin = tl.program_id(0) * tiles * BLOCK_P
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    outs = tl.arange(0, BLOCK_O)
    has_channel = channels < CHANNELS
    exists = (outs < OUT_CHANNELS)[:, None] & has_channel[None, :]
    places = outs[:, None] * weight_out_stride + channels[None, :] * weight_in_stride
    weight = tl.load(weight_ptr + places, exists, 0.0)
    scale, shift = _load_norm(mean_ptr, inverse_ptr, scale_ptr, bias_ptr, channels, has_channel)
    # dx = scale · (passed − mean(passed) − x̂ · mean(passed · x̂)), with x̂ = (x − mean) · inverse
    grad_bias = tl.load(totals_ptr + channels, has_channel, 0.0) / positions
    grad_scale = tl.load(totals_ptr + CHANNELS + channels, has_channel, 0.0) / positions
    slope = scale * grad_scale * tl.load(inverse_ptr + channels, has_channel, 0.0)
    constant = scale * grad_bias - slope * tl.load(mean_ptr + channels, has_channel, 0.0)
    at = begin + tl.arange(0, BLOCK_P)
    following = _load_rows(x_ptr, at, channels, positions, CHANNELS, EVEN)
    following_grad = _load_rows(grad_ptr, at, outs, positions, OUT_CHANNELS, EVEN)
    if added_ptr is not None:
        following_added = _load_rows(added_ptr, at, channels, positions, CHANNELS, EVEN)
    for tile in tl.range(tiles, num_stages=1):
        at = begin + tile * BLOCK_P + tl.arange(0, BLOCK_P)
        x, grad = following.to(tl.float32), following_grad
        upcoming = begin + tl.minimum(tile + 1, tiles - 1) * BLOCK_P + tl.arange(0, BLOCK_P)
        if added_ptr is not None:
            added = following_added.to(tl.float32)
            following_added = _load_rows(added_ptr, upcoming, channels, positions, CHANNELS, EVEN)
        following = _load_rows(x_ptr, upcoming, channels, positions, CHANNELS, EVEN)
        following_grad = _load_rows(grad_ptr, upcoming, outs, positions, OUT_CHANNELS, EVEN)
        grad_x = tl.dot(grad, weight, input_precision="ieee") * scale[None, :]
        grad_x = tl.where(x * scale[None, :] + shift[None, :] <= 0.0, 0.0, grad_x)
        grad_x -= x * slope[None, :] + constant[None, :]
        if added_ptr is not None:
            grad_x += added
        _store_rows(grad_x_ptr, grad_x, at, channels, positions, CHANNELS, EVEN)


@triton.jit(do_not_specialize=["positions", "tiles"])
def conv_weight_parts_kernel(
    x_ptr, grad_ptr, parts_ptr, positions, tiles,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr,
    CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr, GROUP: tl.constexpr, TURNED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """Sum grad · x over the positions of a part, for each tap; each place in a GROUP makes its own part.

    GROUP neighbours in a line of an image are one row, so that few channels still fill a wide tile. A row of x then has
    the columns (line of taps, place s, channel), with GROUP + KERNEL − 1 places. A row of grad has the columns (place
    r, channel), with GROUP places. The tile holds all products; those where s − r is a tap are stored.

    TURNED  grad has the larger side of the tile and comes first in the product
    """
    PLACES: tl.constexpr = GROUP + KERNEL - 1
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    outs = tl.program_id(2) * BLOCK_O + tl.arange(0, BLOCK_O)
    y = columns // CHANNELS // PLACES
    s = columns // CHANNELS % PLACES
    r = outs // OUT_CHANNELS
    sources = _steps(y, s, KERNEL, WIDTH) * CHANNELS + columns % CHANNELS
    has_column = (columns < KERNEL * PLACES * CHANNELS)[None, :]
    has_out = outs < GROUP * OUT_CHANNELS
    sums = tl.zeros([BLOCK_O if TURNED else BLOCK_C, BLOCK_C if TURNED else BLOCK_O], tl.float32)
    for tile in range(tiles):
        at = ((part * tiles + tile) * BLOCK_R + tl.arange(0, BLOCK_R)) * GROUP
        inside = _is_inside(at, y, s, positions, KERNEL, HEIGHT, WIDTH) & has_column
        seen = tl.load(x_ptr + at[:, None] * CHANNELS + sources[None, :], inside, 0.0)
        there = (at < positions)[:, None] & has_out[None, :]
        grad = tl.load(grad_ptr + at[:, None] * OUT_CHANNELS + outs[None, :], there, 0.0)
        if TURNED:
            sums = tl.dot(tl.trans(grad), seen, sums, input_precision="ieee")
        else:
            sums = tl.dot(tl.trans(seen), grad, sums, input_precision="ieee")
    if not TURNED:
        sums = tl.trans(sums)
    x = s[None, :] - r[:, None]
    is_tap = (x >= 0) & (x < KERNEL) & has_column & has_out[:, None]
    rows = (part * GROUP + r) * OUT_CHANNELS + outs % OUT_CHANNELS
    places = ((y * KERNEL)[None, :] + x) * CHANNELS + (columns % CHANNELS)[None, :]
    tl.store(parts_ptr + rows[:, None] * (KERNEL * KERNEL * CHANNELS) + places, sums, is_tap)


@triton.jit(do_not_specialize=["parts"])
def conv_weight_sum_kernel(
    parts_ptr, grad_weight_ptr, parts,
    weight_out_stride, weight_in_stride, weight_y_stride, weight_x_stride,
    KERNEL: tl.constexpr, CHANNELS: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Add all parts, each [out channel, line, tap, channel], and store the sum with the strides of the weights."""
    COLUMNS: tl.constexpr = KERNEL * KERNEL * CHANNELS
    numbers = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    exists = numbers < OUT_CHANNELS * COLUMNS
    sums = tl.zeros([BLOCK_R, BLOCK_E], tl.float32)
    for start in range(0, parts, BLOCK_R):
        rows = start + tl.arange(0, BLOCK_R)
        there = (rows < parts)[:, None] & exists[None, :]
        sums += tl.load(parts_ptr + rows[:, None] * (OUT_CHANNELS * COLUMNS) + numbers[None, :], there, 0.0)
    taps = numbers % COLUMNS // CHANNELS
    places = numbers // COLUMNS * weight_out_stride + numbers % CHANNELS * weight_in_stride
    places += taps // KERNEL * weight_y_stride + taps % KERNEL * weight_x_stride
    tl.store(grad_weight_ptr + places, tl.sum(sums, 0).to(grad_weight_ptr.dtype.element_ty), exists)


@triton.jit
def _load_norm(mean_ptr, inverse_ptr, scale_ptr, bias_ptr, channels, exists):
    """Return scale and shift: the norm of x is x · scale + shift."""
    scale = tl.load(inverse_ptr + channels, exists, 0.0) * tl.load(scale_ptr + channels, exists, 0.0)
    return scale, tl.load(bias_ptr + channels, exists, 0.0) - tl.load(
        mean_ptr + channels, exists, 0.0
    ) * scale


@triton.jit
def _activated(x, inside, scale, shift, EVEN: tl.constexpr):
    """Return the norm and ReLU of x, rounded as if they were stored; NaN for NaN.

    EVEN  all is inside; else 0 outside the image
    """
    before = x.to(tl.float32) * scale[None, :] + shift[None, :]
    active = tl.maximum(before, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if not EVEN:
        active = tl.where(inside, active, 0.0)
    return active.to(x.dtype)


@triton.jit
def _steps(y, x, KERNEL: tl.constexpr, WIDTH: tl.constexpr):
    """Return the number of positions from the centre to the tap (y, x)."""
    return (y - KERNEL // 2) * WIDTH + x - KERNEL // 2


@triton.jit
def _is_inside(at, y, x, positions, KERNEL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Return whether the taps (y, x) of the positions `at` are in the image, [positions, taps]."""
    inside = (at < positions)[:, None] & (x >= 0)[None, :]
    if KERNEL != 1:
        from_left = (at % WIDTH)[:, None] + x[None, :] - KERNEL // 2
        from_top = (at // WIDTH % HEIGHT)[:, None] + y[None, :] - KERNEL // 2
        inside &= (from_left >= 0) & (from_left < WIDTH) & (from_top >= 0) & (from_top < HEIGHT)
    return inside


class Norm(NamedTuple):
    """A batch norm: mean and 1/√(variance + epsilon) of its input, its weight and bias; float32 [C]."""

    mean: Tensor
    inverse: Tensor
    weight: Tensor
    bias: Tensor


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    added: Tensor | None = None,
    has_moments: bool = False,
) -> tuple[Tensor, Tensor | None, int]:
    """Return the convolution with zeros around the images, [B, O, H, W] channels-last.

    x            [B, C, H, W]  channels-last; bfloat16 or float16
    weight       [O, C, K, K]  K odd; the dtype of x, any strides
    norm         x goes through it and a ReLU first
    added        like the result, to be added to it
    has_moments  the second result is mean and sum of squared deviations of parts of the first, [2, parts, O], else
                 None; the third is the number of positions of a part
    """
    strides = weight.stride(0), weight.stride(1)
    return _convolve(
        x, weight, *strides, weight.shape[0], flip=False, norm=norm, added=added, has_statistics=has_moments
    )


def input_gradient(
    grad: Tensor, weight: Tensor, *, norm: Norm | None = None, features: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient to x, [B, C, H, W], from the gradient to the output, [B, O, H, W] channels-last.

    norm, features  x is the activation of these features by that norm: the second result is then the gradients to its
                    bias and weight [2, parts, C], of several parts to be added, else None
    """
    strides = weight.stride(1), weight.stride(0)
    return _convolve(
        grad, weight, *strides, weight.shape[1], flip=True, norm=norm, features=features,
        has_statistics=features is not None,
    )[:2]  # fmt: skip


def _convolve(
    x: Tensor,
    weight: Tensor,
    out_stride: int,
    in_stride: int,
    out_channels: int,
    *,
    flip: bool,
    norm: Norm | None,
    added: Tensor | None = None,
    features: Tensor | None = None,
    has_statistics: bool,
) -> tuple[Tensor, Tensor | None, int]:
    """Return the result, the statistics of its parts [2, parts, O], and the positions of a part."""
    batch, channels, height, width = x.shape
    kernel = weight.shape[2]
    positions = batch * height * width
    statistics = "" if not has_statistics else "moments" if features is None else "sums"
    tiles, tile = make_tile(positions, kernel, channels, out_channels, statistics)
    size = (batch, out_channels, height, width)
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    part_rows = tiles * tile["BLOCK_P"]
    grid = triton.cdiv(positions, part_rows), triton.cdiv(out_channels, tile["BLOCK_O"])
    parts = x.new_empty((2, grid[0], out_channels), dtype=torch.float32) if has_statistics else None
    is_even = positions % part_rows == channels % tile["BLOCK_C"] == out_channels % tile["BLOCK_O"] == 0
    conv_kernel[grid](
        x, weight, out, positions, tiles, out_stride, in_stride, *weight.stride()[2:],
        *(norm or (None,) * 4), added, features, parts,
        **_images(height, width, kernel), KERNEL=kernel, CHANNELS=channels, OUT_CHANNELS=out_channels, FLIP=flip,
        ACTIVATES=norm is not None and features is None, STATISTICS=statistics,
        AHEAD=tiles > 1 and kernel == 1 and channels <= tile["BLOCK_C"], EVEN=kernel == 1 and is_even, **tile,
    )  # fmt: skip
    return out, parts, part_rows


def pointwise_gradients(
    grad: Tensor, weight: Tensor, norm: Norm, features: Tensor, *, stores: bool = True
) -> tuple[Tensor | None, Tensor, Tensor]:
    """For a 1×1 kernel after a norm and its ReLU, return what one look at `features` and `grad` tells.

    These are the gradient to the activation, unless not `stores`; the gradients to the norm's bias and weight
    [2, parts, C], of parts to be added; and the gradient to the weights, like `weight`.
    """
    positions, channels = features[:, 0].numel(), features.shape[1]
    tiles, blocks, sizes = _pointwise(positions, channels, weight.shape[0])
    grid = triton.cdiv(positions, tiles * sizes["BLOCK_P"]), blocks
    grad_active = torch.empty_like(features) if stores else None
    parts = features.new_empty((2, grid[0], channels), dtype=torch.float32)
    weight_parts = features.new_empty((grid[0], weight.numel()), dtype=torch.float32)
    pointwise_conv_sums_kernel[grid](
        features, grad, weight, grad_active, parts, weight_parts, *norm, positions, tiles, *weight.stride()[:2],
        **sizes,
    )  # fmt: skip
    return grad_active, parts, _add_parts(weight_parts, weight)


def feature_gradient(
    grad: Tensor, weight: Tensor, norm: Norm, features: Tensor, totals: Tensor, *, added: Tensor | None = None
) -> Tensor:
    """For a 1×1 kernel after a norm and its ReLU, return the gradient to `features`, plus `added`.

    totals  the gradients to the norm's bias and weight, [2, C]
    """
    positions = features[:, 0].numel()
    tiles, blocks, sizes = _pointwise(positions, features.shape[1], weight.shape[0])
    sizes["num_warps"] = 8
    out = torch.empty_like(features)
    pointwise_conv_gradient_kernel[triton.cdiv(positions, tiles * sizes["BLOCK_P"]), blocks](
        features, grad, weight, added, out, totals, *norm, positions, tiles, *weight.stride()[:2], **sizes
    )
    return out


def _pointwise(positions: int, channels: int, out_channels: int) -> tuple[int, int, dict[str, int]]:
    """Return the tiles of a program, the blocks of channels, and the constants of a launch."""
    tiles, tile = make_pointwise_tile(positions, channels, out_channels)
    part_rows = tiles * tile["BLOCK_P"]
    is_even = positions % part_rows == channels % tile["BLOCK_C"] == out_channels % tile["BLOCK_O"] == 0
    sizes = {"CHANNELS": channels, "OUT_CHANNELS": out_channels, "EVEN": is_even}
    return tiles, triton.cdiv(channels, tile["BLOCK_C"]), sizes | tile


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient to the weights, with the size, dtype and strides of `weight`; its values are not read.

    x, grad  [B, C, H, W] and [B, O, H, W], channels-last, of one dtype
    """
    batch, channels, height, width = x.shape
    out_channels, _, kernel, _ = weight.shape
    positions = batch * height * width
    most_parts, tile = make_part_tile(positions, width, kernel, channels, out_channels)
    group, columns, outputs = tile["GROUP"], tile["BLOCK_C"], tile["BLOCK_O"]
    part_rows = group * tile["BLOCK_R"]
    tiles = triton.cdiv(positions, most_parts * part_rows)
    parts = triton.cdiv(positions, tiles * part_rows)
    sums = x.new_empty((parts * group, weight.numel()), dtype=torch.float32)
    grid = (
        parts,
        triton.cdiv(kernel * (group + kernel - 1) * channels, columns),
        triton.cdiv(group * out_channels, outputs),
    )
    # The larger side of a product comes first, where the tensor cores take many rows.
    conv_weight_parts_kernel[grid](
        x, grad, sums, positions, tiles, **_images(height, width, kernel), KERNEL=kernel, CHANNELS=channels,
        OUT_CHANNELS=out_channels, TURNED=outputs > columns, **tile,
    )  # fmt: skip
    return _add_parts(sums, weight)


def _add_parts(parts: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of parts [parts, weights], each with the channels last, like `weight`."""
    out_channels, channels, kernel, _ = weight.shape
    out = torch.empty_like(weight)
    block = _block(weight.numel() // PROGRAMS, 256)
    conv_weight_sum_kernel[(triton.cdiv(weight.numel(), block),)](
        parts, out, len(parts), *out.stride(), KERNEL=kernel, CHANNELS=channels, OUT_CHANNELS=out_channels,
        BLOCK_R=SUMMED // block, BLOCK_E=block,
    )  # fmt: skip
    return out


@lru_cache(maxsize=1024)
def make_tile(
    positions: int, kernel: int, channels: int, out_channels: int, statistics: str = ""
) -> tuple[int, dict[str, int]]:
    """Return (tiles of a program, the tile) of a convolution, measured to be fast on an H200."""
    seen = kernel * kernel * channels
    # 16 channels are read tap by tap, straight into registers; a 1×1 kernel reads all its columns at once.
    columns = 16 if kernel > 1 and channels == 16 else _block(seen, 2 * WIDE if kernel == 1 else WIDE)
    # Sums need registers, and what is then read twice is small.
    outputs = _block(out_channels, WIDE // 2 if statistics == "sums" and channels < out_channels else WIDE)
    is_deep = columns > WIDE and positions >= WIDE * PROGRAMS
    tile = {
        "BLOCK_P": 2 * WIDE if is_deep or positions >= 2 * WIDE * 256 else WIDE,
        "BLOCK_C": columns,
        "BLOCK_O": outputs,
        "num_warps": 8 if is_deep else 4,
        "num_stages": 1 if columns >= seen or columns == 16 else 3,
    }
    if statistics == "":
        return 1, tile
    # They are added up once in a program, so each has several tiles.
    if kernel == 1:
        tile |= {"BLOCK_P": WIDE, "num_warps": 4}
    programs = triton.cdiv(positions, tile["BLOCK_P"]) * triton.cdiv(out_channels, outputs)
    return min(triton.cdiv(programs, MULTIPROCESSORS), 8 if kernel == 1 else 2), tile


@lru_cache(maxsize=1024)
def make_pointwise_tile(positions: int, channels: int, out_channels: int) -> tuple[int, dict[str, int]]:
    """Return (tiles of a program, the tile) of the backward pass of a 1×1 kernel after a norm."""
    outputs = _block(out_channels, 1024)
    columns = _block(channels, WIDE if outputs <= 2 * WIDE else WIDE // 2)
    tile = {"BLOCK_P": WIDE, "BLOCK_C": columns, "BLOCK_O": outputs, "num_warps": 4, "num_stages": 1}
    programs = triton.cdiv(positions, WIDE) * triton.cdiv(channels, columns)
    return triton.cdiv(programs, MULTIPROCESSORS), tile


@lru_cache(maxsize=1024)
def make_part_tile(
    positions: int, width: int, kernel: int, channels: int, out_channels: int
) -> tuple[int, dict[str, int]]:
    """Return (the most parts, the tile) of a weight gradient, measured to be fast on an H200.

    More parts keep more programs busy, but each part is written and read again. So the parts take less memory than x
    and the gradient, unless every multiprocessor then has no program.
    """
    group = _group(positions, width, kernel, channels, out_channels)
    seen = kernel * (group + kernel - 1) * channels
    columns, outputs = _block(seen, WIDE), _block(group * out_channels, WIDE)
    blocks = triton.cdiv(seen, columns) * triton.cdiv(group * out_channels, outputs)
    operands = 2 * positions * (channels + out_channels)
    part = 2 * 4 * group * kernel * kernel * channels * out_channels
    parts = min(triton.cdiv(PROGRAMS, blocks), max(operands // part, triton.cdiv(MULTIPROCESSORS, blocks)))
    # A group makes as many parts as it has places.
    parts = max(1, parts * 2 // group) if group > 2 else parts
    # Channels that are read one by one cannot be copied ahead.
    stages = 1 if channels % 8 != 0 else 3
    tile = {"GROUP": group, "BLOCK_R": 64, "BLOCK_C": columns, "BLOCK_O": outputs}
    return parts, tile | {"num_warps": 4, "num_stages": stages}


def _group(positions: int, width: int, kernel: int, channels: int, out_channels: int) -> int:
    """Return the largest group that fits in a tile; it divides the width, or all positions of a 1×1 kernel."""
    for group in (2,) if channels % 8 != 0 else (4, 2):
        fits = (group + kernel - 1) * channels <= WIDE and group * out_channels <= WIDE
        if fits and (positions if kernel == 1 else width) % group == 0:
            return group
    return 1


def _block(size: int, most: int) -> int:
    return min(max(triton.next_power_of_2(size), NARROW), most)


def _images(height: int, width: int, kernel: int) -> dict[str, int]:
    # A 1×1 kernel does not need the size of the images, which would be another compilation.
    return {"HEIGHT": 0, "WIDTH": 0} if kernel == 1 else {"HEIGHT": height, "WIDTH": width}
