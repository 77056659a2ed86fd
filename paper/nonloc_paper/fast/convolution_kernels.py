"""Convolutions of few channels in Triton: the images and the gradient to them, and the gradient to the weights.

Images are matrices [positions, channels] with contiguous channels, which is what channels-last images are. Around
each position lie KERNEL × KERNEL taps; tap and channel together are a column, and a row of all columns is what a
position sees. What lies outside the image, and columns that only fill up a tile, are zeros on both sides of a product.

The gradient to the images is the same kernel as the convolution, with the taps flipped (FLIP) and the channels of
input and output exchanged. The gradient to the weights is a sum over all positions: it is taken in parts, and the
parts are added up by a second launch in a fixed order. No atomics, so the bits are the same every time.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["positions"])
def conv_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    positions,
    weight_out_stride,
    weight_in_stride,
    weight_y_stride,
    weight_x_stride,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    KERNEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    FLIP: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """BLOCK_P positions of BLOCK_O output channels; what they see is walked over BLOCK_C columns at a time."""
    COLUMNS: tl.constexpr = KERNEL * KERNEL * CHANNELS
    at = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    outs = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    sums = tl.zeros([BLOCK_P, BLOCK_O], tl.float32)
    for start in range(0, COLUMNS, BLOCK_C):
        columns = start + tl.arange(0, BLOCK_C)
        taps = columns // CHANNELS
        channels = columns % CHANNELS
        y = taps // KERNEL
        x = taps % KERNEL
        steps = _steps(y, x, KERNEL, WIDTH)
        inside = _is_inside(at, y, x, positions, KERNEL, HEIGHT, WIDTH) & (columns < COLUMNS)[None, :]
        seen = tl.load(x_ptr + at[:, None] * CHANNELS + (steps * CHANNELS + channels)[None, :], inside, 0.0)
        if FLIP:
            y = KERNEL - 1 - y
            x = KERNEL - 1 - x
        places = channels * weight_in_stride + y * weight_y_stride + x * weight_x_stride
        exists = (columns < COLUMNS)[:, None] & (outs < OUT_CHANNELS)[None, :]
        weight = tl.load(weight_ptr + places[:, None] + outs[None, :] * weight_out_stride, exists, 0.0)
        sums = tl.dot(seen, weight, sums, input_precision="ieee")
    kept = (at < positions)[:, None] & (outs < OUT_CHANNELS)[None, :]
    tl.store(out_ptr + at[:, None] * OUT_CHANNELS + outs[None, :], sums.to(out_ptr.dtype.element_ty), kept)


@triton.jit(do_not_specialize=["positions", "tiles"])
def conv_weight_parts_kernel(
    x_ptr,
    grad_ptr,
    parts_ptr,
    positions,
    tiles,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    KERNEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    GROUP: tl.constexpr,
    TURNED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """A part's Σ over its positions of grad · x at each tap; for each place in a GROUP a part of its own.

    GROUP neighbours in a line of an image are one row, so that few channels still make a tile that is wide enough.
    A row of x then has the columns (line of taps, place s, channel), with GROUP + KERNEL − 1 places, and a row of grad
    the columns (place r, channel), with GROUP places. Of the products of all with all those are kept whose s − r is a
    tap.

    TURNED  the larger side of the tile is grad's, and goes first into the product
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
    kept = (x >= 0) & (x < KERNEL) & has_column & has_out[:, None]
    rows = (part * GROUP + r) * OUT_CHANNELS + outs % OUT_CHANNELS
    places = ((y * KERNEL)[None, :] + x) * CHANNELS + (columns % CHANNELS)[None, :]
    tl.store(parts_ptr + rows[:, None] * (KERNEL * KERNEL * CHANNELS) + places, sums, kept)


@triton.jit(do_not_specialize=["parts"])
def conv_weight_sum_kernel(
    parts_ptr,
    grad_weight_ptr,
    parts,
    weight_out_stride,
    weight_in_stride,
    weight_y_stride,
    weight_x_stride,
    KERNEL: tl.constexpr,
    CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """The sum of all parts, as the weights lie in memory. Each part is [out channel, line, tap, channel]."""
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
def _steps(y, x, KERNEL: tl.constexpr, WIDTH: tl.constexpr):
    """How many positions it is from the centre to the tap (y, x)."""
    return (y - KERNEL // 2) * WIDTH + x - KERNEL // 2


@triton.jit
def _is_inside(at, y, x, positions, KERNEL: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Whether the taps (y, x) of the positions `at` are in the image, [positions, taps]."""
    inside = (at < positions)[:, None] & (x >= 0)[None, :]
    if KERNEL != 1:
        from_left = (at % WIDTH)[:, None] + x[None, :] - KERNEL // 2
        from_top = (at // WIDTH % HEIGHT)[:, None] + y[None, :] - KERNEL // 2
        inside &= (from_left >= 0) & (from_left < WIDTH) & (from_top >= 0) & (from_top < HEIGHT)
    return inside
