"""The Triton kernels of a stage whose K is stored: rows of a matrix [B, M, M], read once and held by one program."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax_kernel(
    S, BIAS, OUT, M, LD, scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr
):
    """OUT [B, M, LD] = softmax(scale · S + BIAS) of S [B, M, M], to base 2; zeros in the columns beyond M."""
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    places = sample * M * M + rows[:, None].to(tl.int64) * M + columns[None, :]
    s = tl.load(S + places, mask=(rows[:, None] < M) & (columns[None, :] < M), other=0.0) * scale
    if HAS_BIAS:
        s += tl.load(BIAS + sample * M + columns, mask=columns < M, other=0.0)[None, :]
    s = tl.where(columns[None, :] < M, s, float("-inf"))
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    p /= tl.sum(p, 1)[:, None]
    places = sample * M * LD + rows[:, None].to(tl.int64) * LD + columns[None, :]
    tl.store(OUT + places, p.to(OUT.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < LD))


@triton.jit
def softmax_gradient_kernel(P, DP, DS, M, LD, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """DS = P (DP − δ) of P and DS [B, M, LD] and DP [B, M, M], with the δ of each row that makes its sum 0."""
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows[:, None] < M) & (columns[None, :] < M)
    dp = tl.load(
        DP + sample * M * M + rows[:, None].to(tl.int64) * M + columns[None, :], mask=inside, other=0.0
    )
    places = sample * M * LD + rows[:, None].to(tl.int64) * LD + columns[None, :]
    p = tl.load(P + places, mask=inside, other=0.0).to(tl.float32)
    # The sum of a row is near 1, not 1. Where there is no row it may be anything.
    mass = tl.where(rows < M, tl.sum(p, 1), 1.0)
    ds = p * (dp - (tl.sum(p * dp, 1) / mass)[:, None])
    tl.store(DS + places, ds.to(DS.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < LD))
