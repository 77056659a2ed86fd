"""Augmentation of a whole batch on its device: pad, crop and flip, with its own draw for every image."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from nonloc._torch_compat import triton_module

PAD = 4


def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, pad: int) -> Tensor:
    """Cut [H, W] windows out of zero-padded images and mirror some of them.

    images   [B, C, H, W]  any dtype
    offsets  [B, 2]        int64, the window's top and left corner in the padded image, in 0 … 2·pad
    flips    [B]           bool, True mirrors the window left to right
    returns  [B, C, H, W]  out[b, c, y, x] = padded[b, c, y + top_b, (W−1−x if flip_b else x) + left_b]
    """
    batch, channels, height, width = images.shape
    rows = torch.arange(height, device=images.device) + offsets[:, :1]  # [B, H]
    columns = torch.arange(width, device=images.device).expand(batch, width)
    columns = torch.where(flips[:, None], width - 1 - columns, columns) + offsets[:, 1:]  # [B, W]
    padded = F.pad(images, (pad, pad, pad, pad))
    padded = padded.gather(2, rows[:, None, :, None].expand(batch, channels, height, width + 2 * pad))
    return padded.gather(3, columns[:, None, None, :].expand(batch, channels, height, width))


def draw(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw, on the generator's device, offsets [B, 2] in 0 … 2·PAD and flips [B], 1 to mirror an image or 0."""
    offsets = torch.randint(0, 2 * PAD + 1, (batch, 2), generator=generator, device=generator.device)
    return offsets, torch.randint(0, 2, (batch,), generator=generator, device=generator.device)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Crop the zero-padded images and flip them at random, with its own draw for every image.

    `images` [B, C, H, W] are normalised already, so that the zeros of the border are the mean image for classification
    and mid-grey for restoration. `generator` is on the images' device.
    """
    offsets, flips = draw(len(images), generator)
    return crop_and_flip(images, offsets, flips.bool(), PAD)


def batch_kernel() -> ModuleType | None:
    """Return the module that does all of this in one launch; None without Triton."""
    return triton_module("nonloc_paper.training.augment_kernel")
