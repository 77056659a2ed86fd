"""The launches of the fused NormReLU: how the features are divided among programs, and what is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from nonloc_paper.fast.norm_relu_gradients import norm_gradient_kernel, norm_sums_kernel
from nonloc_paper.fast.norm_relu_kernels import norm_affine_kernel, norm_moments_kernel, norm_relu_kernel

# How many programs a launch should have: two for each of the 132 multiprocessors of an H100 or H200.
PROGRAMS = 264
# Up to so many features one program for each of them is enough.
SMALL = 2**21


@dataclass(frozen=True)
class Tiling:
    """How a matrix of features is divided: the tile that a program holds, and how many of them it walks over."""

    block_rows: int
    block_channels: int
    tiles_per_part: int
    warps: int

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
            "num_warps": self.warps,
        }


@lru_cache(maxsize=1024)
def make_tiling(
    rows: int,
    channels: int,
    *,
    block_channels: int | None = None,
    elements: int = 8192,
    warps: int = 8,
    programs: int | None = None,
) -> Tiling:
    """A tiling that fills the device, with tiles of at most `elements`; what is left out is as an H200 likes it.

    Narrow tiles are worth their shorter reads while there is little to read: what a program adds up again is parts ×
    block_channels, and both shrink with block_channels.
    """
    is_small = rows * channels <= SMALL
    block_channels = block_channels or (16 if is_small else 32)
    programs = programs or (PROGRAMS // 2 if is_small else PROGRAMS)
    block_channels = min(block_channels, triton.next_power_of_2(channels))
    columns = triton.cdiv(channels, block_channels)
    wanted = max(1, programs // columns)  # parts
    rows_per_part = triton.cdiv(rows, wanted)
    block_rows = min(triton.next_power_of_2(rows_per_part), max(1, elements // block_channels))
    block_rows = max(block_rows, 1024 // block_channels)
    tiles = triton.next_power_of_2(triton.cdiv(rows_per_part, block_rows))  # each is another compilation
    return Tiling(block_rows, block_channels, tiles, warps)


@dataclass(frozen=True)
class Pixels:
    """Which pixels of images [B, C, height, width] are activated: every stride-th of every stride-th line."""

    batch: int
    height: int
    width: int
    stride: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of what is activated."""
        return triton.cdiv(self.height, self.stride), triton.cdiv(self.width, self.stride)

    def rows(self) -> int:
        height, width = self.shape
        return self.batch * height * width

    def sizes(self) -> dict[str, int]:
        # Without a stride the size of the images plays no part, and must not make another compilation.
        height, width = (0, 0) if self.stride == 1 else (self.height, self.width)
        return {"STRIDE": self.stride, "HEIGHT": height, "WIDTH": width}


def moments_and_activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches: Tensor | None,
    momentum: float,
    epsilon: float,
    *,
    added: Tensor | None = None,
    stride: int = 1,
    tiling: Tiling | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training: relu(norm(x + added)) with the batch's own statistics; the running ones and the count are updated.

    x        [B, C, H, W]  channels-last; float32, bfloat16 or float16. `added`, if any, is like it
    weight, bias, running_mean, running_var  [C]  float32; num_batches  int64 [], or None
    stride   every how many pixels, in both directions, are activated
    returns  x + added, or x; the activation [B, C, ⌈H/stride⌉, ⌈W/stride⌉]; and, float32 [C], the mean and
             1/√(variance + epsilon) of all pixels
    """
    rows, channels, pixels = _sizes(x, stride)
    tiling, out_tiling = (tiling or make_tiling(count, channels) for count in (rows, pixels.rows()))
    parts = tiling.parts(rows)
    means, squares = x.new_empty((2, parts, channels), dtype=torch.float32)
    mean, inverse = x.new_empty((2, channels), dtype=torch.float32)
    total = x if added is None else torch.empty_like(x)
    out = _empty(x, pixels)
    # fmt: off
    norm_moments_kernel[tiling.grid(rows, channels)](
        x, added, None if added is None else total, means, squares, rows, channels, **tiling.sizes()
    )
    norm_relu_kernel[out_tiling.grid(pixels.rows(), channels)](
        total, out, weight, bias, means, squares, mean, inverse, running_mean, running_var, num_batches,
        float(momentum), float(epsilon), rows, pixels.rows(), channels, parts,
        PART_ROWS=tiling.part_rows, **_chunks(parts), **out_tiling.sizes(), **pixels.sizes(),
    )
    # fmt: on
    return total, out, mean, inverse


def activation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    *,
    stride: int = 1,
    tiling: Tiling | None = None,
) -> Tensor:
    """relu(weight · (x − mean) / √(variance + epsilon) + bias), with statistics that are known."""
    _, channels, pixels = _sizes(x, stride)
    tiling = tiling or make_tiling(pixels.rows(), channels)
    out = _empty(x, pixels)
    # fmt: off
    norm_affine_kernel[tiling.grid(pixels.rows(), channels)](
        x, out, weight, bias, mean, variance, float(epsilon), pixels.rows(), channels,
        **tiling.sizes(), **pixels.sizes(),
    )
    # fmt: on
    return out


def gradients(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
    *,
    through_statistics: bool,
    more: Tensor | None = None,
    stride: int = 1,
    tiling: Tiling | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients to x, weight and bias.

    grad                the gradient to the activation, channels-last
    more                a gradient that comes to x in another way, to be added; like x
    through_statistics  whether mean and inverse came from x itself (training) or were given (evaluation)
    """
    rows, channels, pixels = _sizes(x, stride)
    tiling, out_tiling = (tiling or make_tiling(n, channels, elements=4096) for n in (rows, pixels.rows()))
    parts = out_tiling.parts(pixels.rows())
    sums, products = x.new_empty((2, parts, channels), dtype=torch.float32)
    grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
    grad_x = torch.empty_like(x)
    known = (weight, bias, mean, inverse, sums, products)
    # fmt: off
    norm_sums_kernel[out_tiling.grid(pixels.rows(), channels)](
        x, grad, *known, pixels.rows(), channels, **out_tiling.sizes(), **pixels.sizes()
    )
    norm_gradient_kernel[tiling.grid(rows, channels)](
        x, grad, more, *known, grad_x, grad_weight, grad_bias, rows, channels, parts,
        THROUGH_STATISTICS=through_statistics, **_chunks(parts), **tiling.sizes(), **pixels.sizes(),
    )
    # fmt: on
    return grad_x, grad_weight, grad_bias


def _sizes(x: Tensor, stride: int) -> tuple[int, int, Pixels]:
    """Rows and channels of the matrix that images are, and their pixels."""
    batch, channels, height, width = x.shape
    return batch * height * width, channels, Pixels(batch, height, width, stride)


def _empty(x: Tensor, pixels: Pixels) -> Tensor:
    size = (*x.shape[:2], *pixels.shape)
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _chunks(parts: int) -> dict[str, int]:
    """How the parts' sums are read; in two sizes, as each is another compilation."""
    block = 64 if parts <= 64 else 256
    return {"CHUNKS": triton.cdiv(parts, block), "BLOCK_P": block}
