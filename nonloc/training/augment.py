"""Augmentation of a whole batch on its device: pad, crop, flip, with its own draw for every image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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


def augment(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Random crop of the zero-padded images and random flip, drawn anew for every image of the batch.

    `images` [B, C, H, W] are normalised already, so that the zeros of the border are the mean image for
    classification and mid-grey for restoration. `generator` lives on the images' device.
    """
    batch = images.shape[0]
    offsets = torch.randint(0, 2 * pad + 1, (batch, 2), generator=generator, device=images.device)
    flips = torch.randint(0, 2, (batch,), generator=generator, device=images.device).bool()
    return crop_and_flip(images, offsets, flips, pad)
