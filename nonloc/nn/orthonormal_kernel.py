"""The orthonormal columns of [V; I] in Triton: one program for each V, one launch."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor


def columns(v: Tensor) -> tuple[Tensor, Tensor]:
    """Q [*, C, r] and P = R⁻¹ [*, r, r], upper triangular with a positive diagonal, for V [*, C, r] in float32."""
    channels, rank = v.shape[-2:]
    q = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    p = torch.empty((*v.shape[:-2], rank, rank), dtype=v.dtype, device=v.device)
    each = v.reshape(-1, channels, rank)
    rows, width = triton.next_power_of_2(channels + rank), triton.next_power_of_2(rank)
    with torch.cuda.device(v.device) if v.is_cuda else nullcontext():
        columns_kernel[(len(each),)](
            each, q, p, *each.stride(), channels, rank,
            ROWS=rows, WIDTH=width, num_warps=4 if rows * width <= 4096 else 8,
        )  # fmt: skip
    return q, p


@triton.jit
def columns_kernel(
    V, Q, P, stride, row_stride, column_stride, channels, rank, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Modified Gram–Schmidt: each column is made a unit vector and taken out of those to its right."""
    one = tl.program_id(0)
    V += one * stride
    Q += one * channels * rank
    P += one * rank * rank
    rows = tl.arange(0, ROWS)[:, None]
    numbers = tl.arange(0, WIDTH)[None, :]
    is_v = (rows < channels) & (numbers < rank)
    tile = tl.load(V + rows * row_stride + numbers * column_stride, mask=is_v, other=0.0).to(tl.float64)
    tile = tl.where(rows == channels + numbers, 1.0, tile)
    for number in range(rank):
        column = tl.sum(tl.where(numbers == number, tile, 0.0), 1)[:, None]
        column = column / tl.sqrt(tl.sum(column * column, 0))[None, :]
        along = tl.sum(column * tile, 0)[None, :]
        tile = tl.where(numbers > number, tile - column * along, tl.where(numbers == number, column, tile))
    is_p = (rows >= channels) & (rows < channels + rank) & (numbers < rank)
    tl.store(Q + rows * rank + numbers, tile.to(tl.float32), mask=is_v)
    tl.store(P + (rows - channels) * rank + numbers, tile.to(tl.float32), mask=is_p)
