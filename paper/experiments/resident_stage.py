"""Tried and slower: a stage whose sample fits into the shared memory of one multiprocessor, in one launch, in Gluon.

One program has one sample. k and the present g of all its positions lie in shared memory, so that the loop over them
has neither loads nor barriers, and the g of the next sub-block is written beside the present one. Everything else is
as in nonloc/ops/fused/kernels.py: same formulas, same names, logarithms to base 2. Half precision only; Hopper's
warp-group products. docs/performance.md says why it was given up.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

SAFE_BITS = gl.constexpr(100.0)
SAFE_BITS_FLOAT16 = gl.constexpr(6.0)


@gluon.jit
def _places(start, ROWS: gl.constexpr, WIDTH: gl.constexpr, layout: gl.constexpr):
    """Offsets of the tile of ROWS rows from `start` of a matrix with WIDTH columns."""
    rows = start + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
    return rows[:, None] * WIDTH + columns[None, :]


@gluon.jit
def _product(
    q, keys, givers, base, shift, scale,
    BLOCKS: gl.constexpr, ROWS: gl.constexpr, STEP: gl.constexpr, H: gl.constexpr,
    over_step: gl.constexpr, over_hidden: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Σ_j 2^(s_ij − shift_i) g_j for ROWS rows, and Σ_j 2^(s_ij − shift_i)."""
    operand: gl.constexpr = gl.DotOperandLayout(0, over_hidden, 2)
    nothing = gl.zeros([ROWS, STEP], gl.float32, over_step)
    total = gl.zeros([ROWS, H], gl.float32, over_hidden)
    mass = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, over_step))
    s = warpgroup_mma(q, keys.index(0).slice(0, STEP).permute((1, 0)), nothing, use_acc=False)
    for block in range(BLOCKS):
        for part in gl.static_range(ROWS // STEP):
            # The next logits are on their way while the exponentials of these are taken; the last are of no use.
            if (part + 1) * STEP < ROWS:
                following = keys.index(block).slice((part + 1) * STEP, STEP)
            else:
                following = keys.index((block + 1) % BLOCKS).slice(0, STEP)
            coming = warpgroup_mma(q, following.permute((1, 0)), nothing, use_acc=False, is_async=True)
            p = gl.exp2(s * scale - shift[:, None])
            if SUMS:
                mass += gl.sum(p, 1)
            p = gl.convert_layout(p.to(q.dtype), operand)
            total = warpgroup_mma(
                p, givers.index(base + block).slice(part * STEP, STEP), total, is_async=True
            )
            s, total, p = warpgroup_mma_wait(0, deps=[coming, total, p])
    return total, mass


@gluon.jit
def _row_bound(
    q, Q, start, keys, largest, scale,
    BLOCKS: gl.constexpr, ROWS: gl.constexpr, STEP: gl.constexpr, D: gl.constexpr,
    over_step: gl.constexpr, over_depth: gl.constexpr,
):  # fmt: skip
    """As `_row_bound` of nonloc/ops/fused/kernels.py."""
    line: gl.constexpr = gl.SliceLayout(1, over_step)
    nothing = gl.zeros([ROWS, STEP], gl.float32, over_step)
    wide = gl.load(Q + _places(start, ROWS, D, over_depth)).to(gl.float32)
    top = gl.convert_layout(gl.sqrt(gl.sum(wide * wide, 1) * largest) * gl.abs(scale), line)
    s = warpgroup_mma(q, keys.index(0).slice(0, STEP).permute((1, 0)), nothing, use_acc=False) * scale
    distance = gl.max(top - gl.max(s, 1), 0)
    is_near = distance < (SAFE_BITS_FLOAT16 if q.dtype == gl.float16 else SAFE_BITS)
    if not is_near:
        top = gl.full([ROWS], float("-inf"), gl.float32, line)
        for block in range(BLOCKS):
            for part in gl.static_range(ROWS // STEP):
                k = keys.index(block).slice(part * STEP, STEP).permute((1, 0))
                s = warpgroup_mma(q, k, nothing, use_acc=False) * scale
                top = gl.maximum(top, gl.max(s, 1))
    return top


@gluon.jit
def _update(
    total, n, block, givers, w_z, w_g, Z, ZOUT, R, GOUT,
    BLOCKS: gl.constexpr, ROWS: gl.constexpr, H: gl.constexpr, C: gl.constexpr,
    over_hidden: gl.constexpr, over_channels: gl.constexpr, SAVES: gl.constexpr, HAS_NEXT,
):  # fmt: skip
    """The end of a sub-block for ROWS rows: R, the new state, and the next g beside the present one."""
    own = givers.index((n % 2) * BLOCKS + block).load(over_hidden)
    change = (total - own.to(gl.float32)).to(own.dtype)
    start = block * ROWS
    if SAVES:
        gl.store(R + _places(start, ROWS, H, over_hidden), change)
    places = _places(start, ROWS, C, over_channels)
    z = gl.load(Z + places).to(gl.float32)
    left = gl.convert_layout(change, gl.DotOperandLayout(0, over_channels, 2))
    z = warpgroup_mma(left, w_z.permute((1, 0)), z).to(own.dtype)
    gl.store(ZOUT + places, z)
    if HAS_NEXT:
        state = gl.convert_layout(z, gl.DotOperandLayout(0, over_hidden, 2))
        nothing = gl.zeros([ROWS, H], gl.float32, over_hidden)
        g = warpgroup_mma(state, w_g.permute((1, 0)), nothing, use_acc=False).to(own.dtype)
        givers.index(((n + 1) % 2) * BLOCKS + block).store(g)
        if SAVES:
            gl.store(GOUT + _places(start, ROWS, H, over_hidden), g)


@gluon.jit
def _sub_block(
    n, Q, LSE, STATE, Z, R, G, WZ, WG, keys, givers, w_z, w_g, largest, scale, z_stride, g_stride,
    M: gl.constexpr, D: gl.constexpr, H: gl.constexpr, C: gl.constexpr, N: gl.constexpr, ROOMS: gl.constexpr,
    ROWS: gl.constexpr, STEP: gl.constexpr, SAVES: gl.constexpr, num_warps: gl.constexpr, FIRST: gl.constexpr,
):  # fmt: skip
    BLOCKS: gl.constexpr = M // ROWS
    over_step: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, STEP, 16])
    over_hidden: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, H, 16])
    over_depth: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, D, 16])
    over_channels: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, C, 16])
    by_hidden: gl.constexpr = gl.BlockedLayout([1, 8], [256 // H, H // 8], [num_warps, 1], [1, 0])
    by_channels: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [num_warps, 1], [1, 0])
    line: gl.constexpr = gl.SliceLayout(1, over_step)
    gl.thread_barrier()
    async_copy.async_copy_global_to_shared(w_z, WZ + n * C * H + _places(0, C, H, by_hidden))
    if n + 1 < N:
        async_copy.async_copy_global_to_shared(w_g, WG + (n + 1) * C * H + _places(0, H, C, by_channels))
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()
    for block in range(BLOCKS):
        rows = block * ROWS + gl.arange(0, ROWS, layout=line)
        q = gl.load(Q + _places(block * ROWS, ROWS, D, gl.DotOperandLayout(0, over_step, 2)))
        base = (n % 2) * BLOCKS
        if FIRST:
            shift = _row_bound(
                q, Q, block * ROWS, keys, largest, scale, BLOCKS, ROWS, STEP, D, over_step, over_depth
            )
        else:
            shift = gl.load(LSE + rows)
        total, mass = _product(
            q, keys, givers, base, shift, scale, BLOCKS, ROWS, STEP, H, over_step, over_hidden, FIRST
        )
        if FIRST:
            share = gl.convert_layout(1.0 / mass, gl.SliceLayout(1, over_hidden))
            total = total * share[:, None]
            gl.store(LSE + rows, shift + gl.log2(mass))
        _update(
            total, n, block, givers, w_z, w_g, STATE, Z + n % ROOMS * z_stride, R + n * g_stride,
            G + (n + 1) * g_stride, BLOCKS, ROWS, H, C, over_hidden, over_channels, SAVES, n + 1 < N,
        )  # fmt: skip


@gluon.jit
def resident_forward_kernel(
    Q, K, X, WZ, WG, Z, G, R, LSE, scale, z_stride, g_stride,
    M: gl.constexpr, D: gl.constexpr, H: gl.constexpr, C: gl.constexpr, N: gl.constexpr, ROOMS: gl.constexpr,
    ROWS: gl.constexpr, STEP: gl.constexpr, SAVES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Z^N from X [B, M, C]: Z [ROOMS, B, M, C], G and R [N, B, M, H], LSE [B, M] are kept for the way back."""
    sample = gl.program_id(0).to(gl.int64)
    dtype: gl.constexpr = Q.dtype.element_ty
    BLOCKS: gl.constexpr = M // ROWS
    over_hidden: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, H, 16])
    depth_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    hidden_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, H], dtype)
    outer_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([C, H], dtype)
    inner_shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([H, C], dtype)
    by_depth: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [num_warps, 1], [1, 0])
    by_channels: gl.constexpr = gl.BlockedLayout([1, 8], [256 // C, C // 8], [num_warps, 1], [1, 0])
    Q += sample * M * D
    K += sample * M * D
    X += sample * M * C
    Z += sample * M * C
    LSE += sample * M
    if SAVES:
        G += sample * M * H
        R += sample * M * H

    keys = gl.allocate_shared_memory(dtype, [BLOCKS, ROWS, D], depth_shared)
    givers = gl.allocate_shared_memory(dtype, [2 * BLOCKS, ROWS, H], hidden_shared)
    w_z = gl.allocate_shared_memory(dtype, [C, H], outer_shared)
    w_g = gl.allocate_shared_memory(dtype, [H, C], inner_shared)
    for block in range(BLOCKS):
        async_copy.async_copy_global_to_shared(
            keys.index(block), K + _places(block * ROWS, ROWS, D, by_depth)
        )
    async_copy.async_copy_global_to_shared(w_g, WG + _places(0, H, C, by_channels))
    async_copy.commit_group()
    largest = 0.0
    for block in range(BLOCKS):
        k = gl.load(K + _places(block * ROWS, ROWS, D, by_depth)).to(gl.float32)
        largest = gl.maximum(largest, gl.max(gl.sum(k * k, 1), 0))
    async_copy.wait_group(0)
    gl.thread_barrier()
    fence_async_shared()
    for block in range(BLOCKS):
        left = gl.load(X + _places(block * ROWS, ROWS, C, gl.DotOperandLayout(0, over_hidden, 2)))
        nothing = gl.zeros([ROWS, H], gl.float32, over_hidden)
        g = warpgroup_mma(left, w_g.permute((1, 0)), nothing, use_acc=False).to(dtype)
        givers.index(block).store(g)
        if SAVES:
            gl.store(G + _places(block * ROWS, ROWS, H, over_hidden), g)
    _sub_block(
        0, Q, LSE, X, Z, R, G, WZ, WG, keys, givers, w_z, w_g, largest, scale, z_stride, g_stride,
        M, D, H, C, N, ROOMS, ROWS, STEP, SAVES, num_warps, True,
    )  # fmt: skip
    for n in range(1, N):
        _sub_block(
            n, Q, LSE, Z + (n - 1) % ROOMS * z_stride, Z, R, G, WZ, WG, keys, givers, w_z, w_g, largest, scale,
            z_stride, g_stride, M, D, H, C, N, ROOMS, ROWS, STEP, SAVES, num_warps, False,
        )  # fmt: skip
