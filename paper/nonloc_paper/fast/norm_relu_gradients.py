"""Batch normalisation followed by ReLU in Triton, backward: two launches, divided as those of the forward pass.

The ReLU's mask is computed again from the features: it costs less than reading it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nonloc_paper.fast.norm_relu_kernels import affine, source_at, tile_at


@triton.jit
def norm_sums_kernel(
    x_ptr,
    grad_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    inverse_ptr,
    sums_ptr,
    products_ptr,
    out_rows,
    channels,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Each part's sums of the gradient that passes the ReLU, and of its product with the normalised features."""
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
        places, inside = tile_at(start, last, columns, channels, BLOCK_R)
        sources = source_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        x = tl.load(x_ptr + sources, inside, 0.0).to(tl.float32)
        grad = tl.load(grad_ptr + places, inside, 0.0).to(tl.float32)
        passed = _through_relu(grad, affine(x, mean, scale, bias))
        sums += passed
        # Outside the matrix x is 0 and not the mean, but there the gradient is 0.
        products += passed * (x - mean[None, :])
    at = part * channels + columns
    tl.store(sums_ptr + at, tl.sum(sums, 0), exists)
    tl.store(products_ptr + at, tl.sum(products, 0) * inverse, exists)


@triton.jit
def norm_gradient_kernel(
    x_ptr,
    grad_ptr,
    more_ptr,
    weight_ptr,
    bias_ptr,
    mean_ptr,
    inverse_ptr,
    sums_ptr,
    products_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    grad_bias_ptr,
    rows,
    channels,
    parts,
    THROUGH_STATISTICS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The gradient to x, with what came to x itself (`more`) added; those to weight and bias by the first program."""
    part = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    exists = columns < channels
    first = part * TILES * BLOCK_R
    last = tl.minimum(first + TILES * BLOCK_R, rows)
    # The first tile is on its way while the sums are put together.
    places, inside = tile_at(first, last, columns, channels, BLOCK_R)
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
        places, inside = tile_at(start, last, columns, channels, BLOCK_R)
        grads, has_grad = _target_at(start, columns, channels, BLOCK_R, STRIDE, HEIGHT, WIDTH)
        following = tl.load(x_ptr + places, inside, 0.0)
        following_grad = tl.load(grad_ptr + grads, inside & has_grad, 0.0)
        grad_x = _through_relu(grad, affine(x, mean, scale, bias)) * scale[None, :]
        if THROUGH_STATISTICS:
            grad_x -= constant[None, :] + (x - mean[None, :]) * slope[None, :]
        if more_ptr is not None:
            grad_x += more.to(tl.float32)
        tl.store(grad_x_ptr + here, grad_x.to(grad_x_ptr.dtype.element_ty), now)


@triton.jit
def _target_at(
    start,
    columns,
    channels,
    BLOCK_R: tl.constexpr,
    STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Where the gradients lie to what was made of the tile of features from `start`, and which of it was used."""
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


@triton.jit
def _through_relu(grad, before):
    return tl.where(before <= 0.0, 0.0, grad)
