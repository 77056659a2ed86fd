"""A batch of images in one launch: gather, normalise, crop, mirror, and write in the network's layout and precision.

The crops and flips that are drawn from a seed are those of `augment.draw` on CUDA: element i of torch's n-th draw since
seeding is the first number of Philox 4x32-10 with the seed as key and the counter (n, 0, i, 0), modulo the range. This
holds up to tens of thousands of elements, for which torch has one thread each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def make_batch(
    images: Tensor,
    labels: Tensor,
    indices: Tensor,
    mean: Tensor,
    inverse_scale: float,
    *,
    dtype: torch.dtype,
    channels_last: bool,
    offsets: Tensor | None = None,
    flips: Tensor | None = None,
    seed: Tensor | None = None,
    pad: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return (the normalised images `indices`, augmented if there are offsets and flips, or a seed; their labels).

    images   [N, 3, H, W]  uint8, contiguous; labels [N]; indices [B]; all int64 but the images
    mean     [3, H, W]     float32, subtracted; what is left is multiplied by `inverse_scale`
    offsets  [B, 2]        the window's top and left corner in the padded image, in 0 … 2·pad
    flips    [B]           1 mirrors the window left to right
    seed     [1]           of offsets and flips, if they are None
    returns  [B, 3, H, W]  of `dtype`, rounded once, at the end; and [B]
    """
    _, channels, height, width = images.shape
    batch, size = len(indices), channels * height * width
    layout = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty(
        (batch, channels, height, width), dtype=dtype, device=images.device, memory_format=layout
    )
    targets = labels.new_empty(batch)
    batch_kernel[(batch, triton.cdiv(size, BLOCK))](
        images, labels, indices, mean, offsets, flips, seed, out, targets, inverse_scale,
        PAD=pad, CHANNELS=channels, HEIGHT=height, WIDTH=width, CHANNELS_LAST=channels_last, BLOCK=BLOCK,
    )  # fmt: skip
    return out, targets


@triton.jit
def batch_kernel(
    images_ptr, labels_ptr, indices_ptr, mean_ptr, offsets_ptr, flips_ptr, seed_ptr, out_ptr, targets_ptr,
    inverse_scale,
    PAD: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write BLOCK numbers of one image, in the order of the output."""
    number = tl.program_id(0)
    index = tl.load(indices_ptr + number)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = places < CHANNELS * HEIGHT * WIDTH
    if CHANNELS_LAST:
        channel = places % CHANNELS
        pixel = places // CHANNELS
    else:
        channel = places // (HEIGHT * WIDTH)
        pixel = places % (HEIGHT * WIDTH)
    x = pixel % WIDTH
    y = pixel // WIDTH
    if offsets_ptr is not None:
        top = tl.load(offsets_ptr + 2 * number).to(tl.int32)
        left = tl.load(offsets_ptr + 2 * number + 1).to(tl.int32)
        is_mirrored = tl.load(flips_ptr + number) != 0
        x, y = _moved(x, y, top, left, is_mirrored, PAD, WIDTH)
    elif seed_ptr is not None:
        seed = tl.load(seed_ptr)
        top = _draw(seed, 0, 2 * number, 2 * PAD + 1)
        left = _draw(seed, 0, 2 * number + 1, 2 * PAD + 1)
        is_mirrored = _draw(seed, 1, number, 2) != 0
        x, y = _moved(x, y, top, left, is_mirrored, PAD, WIDTH)
    # Outside the image there are zeros, of the normalised image: the mean image.
    inside = exists & (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
    sources = (channel * HEIGHT + y) * WIDTH + x
    size = CHANNELS * HEIGHT * WIDTH
    values = tl.load(images_ptr + index * size + sources, inside, 0).to(tl.float32)
    values = (values - tl.load(mean_ptr + sources, inside, 0.0)) * inverse_scale
    tl.store(out_ptr + number.to(tl.int64) * size + places, values.to(out_ptr.dtype.element_ty), exists)
    if tl.program_id(1) == 0:
        tl.store(targets_ptr + number, tl.load(labels_ptr + index))


@triton.jit
def _moved(x, y, top, left, is_mirrored, PAD: tl.constexpr, WIDTH: tl.constexpr):
    """Return the place in the image of the pixel (x, y) of its window."""
    return tl.where(is_mirrored, WIDTH - 1 - x, x) + left - PAD, y + top - PAD


@triton.jit
def _draw(seed, call: tl.constexpr, element, RANGE: tl.constexpr):
    zero = element * 0
    bits, _, _, _ = tl.philox(seed, zero + call, zero, element, zero)
    return (bits % RANGE).to(tl.int32)
