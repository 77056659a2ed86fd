"""The launches of our own convolutions: how the work is divided among programs, and what is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from nonloc_paper.fast.convolution_kernels import (
    conv_kernel,
    conv_weight_parts_kernel,
    conv_weight_sum_kernel,
)

# How many programs a launch should have: two for each of the 132 multiprocessors of an H100 or H200.
PROGRAMS = 264
# A tensor core takes 64 rows at a time; a product's other sides have at least 16.
WIDE, NARROW = 64, 16
# How many numbers of the parts a program adds up at a time.
SUMMED = 4096


@dataclass(frozen=True)
class Tile:
    """What a program of a convolution makes, positions × outputs, and how many columns it reads at a time."""

    positions: int
    columns: int
    outputs: int
    warps: int = 4
    stages: int = 3

    def sizes(self) -> dict[str, int]:
        return {
            "BLOCK_P": self.positions,
            "BLOCK_C": self.columns,
            "BLOCK_O": self.outputs,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


@dataclass(frozen=True)
class PartTile:
    """What a program of a weight gradient makes, columns × outputs, and how many rows it reads at a time.

    group  positions in a row: a divisor of the images' width, or of all positions where the kernel is 1×1
    parts  into how many the positions are divided, at most
    """

    group: int
    rows: int
    columns: int
    outputs: int
    parts: int
    warps: int = 4
    stages: int = 3

    def tiles(self, positions: int) -> int:
        """How many tiles of rows a part has."""
        return triton.cdiv(positions, self.parts * self.group * self.rows)

    def sizes(self) -> dict[str, int]:
        return {
            "GROUP": self.group,
            # The larger side of a product comes first, where the tensor cores take many rows.
            "TURNED": self.outputs > self.columns,
            "BLOCK_R": self.rows,
            "BLOCK_C": self.columns,
            "BLOCK_O": self.outputs,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


@lru_cache(maxsize=1024)
def make_tile(positions: int, kernel: int, channels: int, out_channels: int) -> Tile:
    """Tiles of a convolution as an H200 likes them."""
    seen = kernel * kernel * channels
    # 16 channels are read tap by tap, straight into registers; a 1×1 kernel reads all that it sees at once.
    columns = 16 if kernel > 1 and channels == 16 else _block(seen, 2 * WIDE if kernel == 1 else WIDE)
    is_deep = columns > WIDE
    return Tile(
        positions=2 * WIDE if is_deep or positions >= 2 * WIDE * 256 else WIDE,
        columns=columns,
        outputs=_block(out_channels, WIDE),
        warps=8 if is_deep else 4,
        stages=1 if columns >= seen or columns == 16 else 3,
    )


@lru_cache(maxsize=1024)
def make_part_tile(positions: int, width: int, kernel: int, channels: int, out_channels: int) -> PartTile:
    """Tiles of a weight gradient as an H200 likes them.

    More parts keep more programs busy, but each is written and read again: they are kept below what x and the gradient
    are in memory, as far as every multiprocessor has a program.
    """
    group = _group(positions, width, kernel, channels, out_channels)
    seen = kernel * (group + kernel - 1) * channels
    columns, outputs = _block(seen, WIDE), _block(group * out_channels, WIDE)
    blocks = triton.cdiv(seen, columns) * triton.cdiv(group * out_channels, outputs)
    operands = 2 * positions * (channels + out_channels)
    part = 2 * 4 * group * kernel * kernel * channels * out_channels
    parts = min(triton.cdiv(PROGRAMS, blocks), max(operands // part, triton.cdiv(PROGRAMS // 2, blocks)))
    # A group makes as many parts as it has places.
    parts = max(1, parts * 2 // group) if group > 2 else parts
    # Channels that are read one by one cannot be copied ahead.
    return PartTile(group, 64, columns, outputs, parts, stages=1 if channels % 8 != 0 else 3)


def _group(positions: int, width: int, kernel: int, channels: int, out_channels: int) -> int:
    """The largest group of which a tile holds x along a line of taps, and the gradient."""
    for group in (2,) if channels % 8 != 0 else (4, 2):
        fits = (group + kernel - 1) * channels <= WIDE and group * out_channels <= WIDE
        if fits and (positions if kernel == 1 else width) % group == 0:
            return group
    return 1


def _block(size: int, most: int) -> int:
    return min(max(triton.next_power_of_2(size), NARROW), most)


def convolve(x: Tensor, weight: Tensor, *, tile: Tile | None = None) -> Tensor:
    """The convolution with zeros around the images, so that they keep their size.

    x        [B, C, H, W]  channels-last; bfloat16 or float16
    weight   [O, C, K, K]  K odd; the same dtype, any strides
    returns  [B, O, H, W]  channels-last
    """
    return _convolve(x, weight, weight.stride(0), weight.stride(1), weight.shape[0], flip=False, tile=tile)


def input_gradient(grad: Tensor, weight: Tensor, *, tile: Tile | None = None) -> Tensor:
    """The gradient [B, C, H, W] to x, from that to the output, [B, O, H, W] channels-last."""
    return _convolve(grad, weight, weight.stride(1), weight.stride(0), weight.shape[1], flip=True, tile=tile)


def _convolve(
    x: Tensor,
    weight: Tensor,
    out_stride: int,
    in_stride: int,
    out_channels: int,
    *,
    flip: bool,
    tile: Tile | None,
) -> Tensor:
    batch, channels, height, width = x.shape
    kernel = weight.shape[2]
    positions = batch * height * width
    tile = tile or make_tile(positions, kernel, channels, out_channels)
    out = torch.empty(
        (batch, out_channels, height, width),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last,
    )
    grid = triton.cdiv(positions, tile.positions), triton.cdiv(out_channels, tile.outputs)
    # fmt: off
    conv_kernel[grid](
        x, weight, out, positions, out_stride, in_stride, *weight.stride()[2:],
        **_images(height, width, kernel), KERNEL=kernel, CHANNELS=channels, OUT_CHANNELS=out_channels,
        FLIP=flip, **tile.sizes(),
    )
    # fmt: on
    return out


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, *, tile: PartTile | None = None) -> Tensor:
    """The gradient to the weights, with the size, dtype and strides of `weight`, whose numbers play no part.

    x, grad  [B, C, H, W] and [B, O, H, W], channels-last, of one dtype
    """
    batch, channels, height, width = x.shape
    out_channels, _, kernel, _ = weight.shape
    positions = batch * height * width
    tile = tile or make_part_tile(positions, width, kernel, channels, out_channels)
    tiles = tile.tiles(positions)
    parts = triton.cdiv(positions, tiles * tile.group * tile.rows)
    sums = x.new_empty((parts * tile.group, weight.numel()), dtype=torch.float32)
    out = torch.empty_like(weight)
    seen = kernel * (tile.group + kernel - 1) * channels
    grid = parts, triton.cdiv(seen, tile.columns), triton.cdiv(tile.group * out_channels, tile.outputs)
    sizes = {"KERNEL": kernel, "CHANNELS": channels, "OUT_CHANNELS": out_channels}
    conv_weight_parts_kernel[grid](
        x, grad, sums, positions, tiles, **_images(height, width, kernel), **sizes, **tile.sizes()
    )
    block = _block(weight.numel() // PROGRAMS, 256)
    conv_weight_sum_kernel[(triton.cdiv(weight.numel(), block),)](
        sums, out, len(sums), *out.stride(), **sizes, BLOCK_R=SUMMED // block, BLOCK_E=block
    )
    return out


def _images(height: int, width: int, kernel: int) -> dict[str, int]:
    # Without neighbours the size of the images plays no part, and must not make another compilation.
    return {"HEIGHT": 0, "WIDTH": 0} if kernel == 1 else {"HEIGHT": height, "WIDTH": width}
