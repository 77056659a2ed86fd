"""The Triton kernels of the fused stage. K_ij = exp(s_ij − lse_i), s_ij = scale · q_i·k_j + b_j, is never stored.

Logarithms are to base 2 throughout: `scale` and `BIAS` arrive multiplied by log₂ e, and LSE is log₂ Σ_j 2^s_ij, as near
as float32 has it. Where logits are large that is not near enough for rows that sum to 1, so K_ij is
2^(s_ij − LSE_i) RATIO_i.
Backward the ratio is a factor of dR_i instead, which is stored with it: Kᵀ dR, dK and δ need no other.

Shapes: Q, K, MEAN [B, M, D]; G, R, dR [N, B, M, H]; Z, dZ [B, M, C]; WZ [C, H]; WG [H, C]; THETA, PHI [D, C]; BIAS,
LSE, RATIO, DELTA [B, M]. Z, dZ and the weights may be float32 where the others are narrower.
A program holds BLOCK positions of one sample and goes over all the others, STEP at a time. D, H, CHUNK, BLOCK and STEP
are powers of two, and CHUNK divides C. EVEN: BLOCK and STEP divide M, so that nothing needs a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

# How far a bound may lie above the largest s_ij: 2^(s − bound) must stay well inside the range of the dtype that
# multiplies it. bfloat16 has float32's range, float16 has not.
SAFE_BITS = tl.constexpr(100.0)
SAFE_BITS_FLOAT16 = tl.constexpr(6.0)


@triton.jit
def _load(base, rows, columns, WIDTH: tl.constexpr, M, EVEN: tl.constexpr):
    """The tile [rows, columns] of a matrix [M, WIDTH]; zeros beyond its end."""
    pointers = base + rows[:, None] * WIDTH + columns[None, :]
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=rows[:, None] < M, other=0.0)


@triton.jit
def _store(base, rows, columns, value, WIDTH: tl.constexpr, M, EVEN: tl.constexpr):
    pointers = base + rows[:, None] * WIDTH + columns[None, :]
    value = value.to(base.dtype.element_ty)
    if EVEN:
        tl.store(pointers, value)
    else:
        tl.store(pointers, value, mask=rows[:, None] < M)


@triton.jit
def _load_vector(base, rows, M, other: tl.constexpr, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(base + rows)
    else:
        return tl.load(base + rows, mask=rows < M, other=other)


@triton.jit
def _store_vector(base, rows, value, M, EVEN: tl.constexpr):
    if EVEN:
        tl.store(base + rows, value)
    else:
        tl.store(base + rows, value, mask=rows < M)


@triton.jit
def _load_all(
    base, rows, START: tl.constexpr, WIDTH: tl.constexpr, stride, H: tl.constexpr, M, EVEN: tl.constexpr
):
    """Columns START … START + WIDTH of the N matrices [M, H], `stride` apart, laid side by side."""
    columns = START + tl.arange(0, WIDTH)
    pointers = base + rows[:, None] * H + ((columns // H) * stride + columns % H)[None, :]
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=rows[:, None] < M, other=0.0)


@triton.jit
def begin_kernel(
    X, WG, THETA, PHI, Q, K, G, KNORM, M,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    NORMS: tl.constexpr, PROJECTS: tl.constexpr, EMBEDS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """G = X WGᵀ, and the largest |k_j|² of the block. EMBEDS: also Q = X THETAᵀ and K = X PHIᵀ."""
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    if PROJECTS:
        hidden = tl.arange(0, H)
        g = tl.zeros([BLOCK, H], tl.float32)
        if EMBEDS:
            q = tl.zeros([BLOCK, D], tl.float32)
            k = tl.zeros([BLOCK, D], tl.float32)
        for start in tl.static_range(0, C, CHUNK):
            channels = start + tl.arange(0, CHUNK)
            x = _load(X + sample * M * C, rows, channels, C, M, EVEN).to(G.dtype.element_ty)
            w = tl.load(WG + hidden[None, :] * C + channels[:, None]).to(x.dtype)
            g = tl.dot(x, w, g, input_precision=PRECISION)
            if EMBEDS:
                w = tl.load(THETA + depth[None, :] * C + channels[:, None]).to(x.dtype)
                q = tl.dot(x, w, q, input_precision=PRECISION)
                w = tl.load(PHI + depth[None, :] * C + channels[:, None]).to(x.dtype)
                k = tl.dot(x, w, k, input_precision=PRECISION)
        _store(G + sample * M * H, rows, hidden, g, H, M, EVEN)
    if EMBEDS:
        _store(Q + sample * M * D, rows, depth, q, D, M, EVEN)
        k = k.to(K.dtype.element_ty)
        _store(K + sample * M * D, rows, depth, k, D, M, EVEN)
    elif NORMS:
        k = _load(K + sample * M * D, rows, depth, D, M, EVEN)
    if NORMS:
        k = k.to(tl.float32)
        largest = tl.max(tl.sum(k * k, 1), 0)
        tl.store(KNORM + sample * tl.num_programs(0) + tl.program_id(0), largest)


@triton.jit
def _row_bound(
    q, K, BIAS, KNORM, sample, M, scale, blocks,
    D: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, NORM_BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Something ≥ every s_ij of the row, and near enough that no row's sum of 2^(s − bound) vanishes.

    By Cauchy–Schwarz where that is near enough, by looking at every s_ij elsewhere.
    """
    is_near = False
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    depth = tl.arange(0, D)
    if not HAS_BIAS:
        lanes = tl.arange(0, NORM_BLOCKS)
        largest = tl.max(tl.load(KNORM + sample * blocks + lanes, mask=lanes < blocks, other=0.0), 0)
        wide = q.to(tl.float32)
        bound = tl.sqrt(tl.sum(wide * wide, 1) * largest) * tl.abs(scale)
        # A row's largest s is no less than its largest among the first columns.
        columns = tl.arange(0, STEP)
        s = tl.dot(q, tl.trans(_load(K, columns, depth, D, M, EVEN)), input_precision=PRECISION) * scale
        if not EVEN:
            s = tl.where(columns[None, :] < M, s, float("-inf"))
        distance = tl.max(bound - tl.max(s, 1), 0)
        # A NaN compares false and takes the long way, where it stays a NaN.
        is_near = distance < (SAFE_BITS_FLOAT16 if K.dtype.element_ty == tl.float16 else SAFE_BITS)
        if is_near:
            top = bound
    if not is_near:
        for start in range(0, M, STEP):
            columns = start + tl.arange(0, STEP)
            k = _load(K, columns, depth, D, M, EVEN)
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            if HAS_BIAS:
                s += _load_vector(BIAS, columns, M, float("-inf"), EVEN)[None, :]
            elif not EVEN:
                s = tl.where(columns[None, :] < M, s, float("-inf"))
            top = tl.maximum(top, tl.max(s, 1))
    return top


@triton.jit
def forward_kernel(
    Q, K, BIAS, KNORM, LSE, RATIO, MEAN, G, Z, WZ, WG, ZOUT, GOUT, R, M, scale, blocks,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, NORM_BLOCKS: tl.constexpr,
    FIRST: tl.constexpr, MEANS: tl.constexpr, UPDATES: tl.constexpr, DIFFERS: tl.constexpr, HAS_NEXT: tl.constexpr,
    SAVES: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sub-block: R = K G − G, ZOUT = Z + R WZᵀ, GOUT = ZOUT WGᵀ; the first one also finds LSE and RATIO.

    Without DIFFERS R is K G, and without UPDATES it is all that is written. MEANS: MEAN = K k, for `query_kernel`.
    """
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    hidden = tl.arange(0, H)
    K += sample * M * D
    G += sample * M * H
    if HAS_BIAS:
        BIAS += sample * M
    q = _load(Q + sample * M * D, rows, depth, D, M, EVEN)
    total = tl.zeros([BLOCK, H], tl.float32)
    if FIRST:
        shift = _row_bound(
            q, K, BIAS, KNORM, sample, M, scale, blocks,
            D, BLOCK, STEP, NORM_BLOCKS, HAS_BIAS, EVEN, PRECISION,
        )  # fmt: skip
        mass = tl.zeros([BLOCK], tl.float32)
        if MEANS:
            mean = tl.zeros([BLOCK, D], tl.float32)
    else:
        shift = _load_vector(LSE + sample * M, rows, M, 0.0, EVEN)
    for start in range(0, M, STEP):
        columns = start + tl.arange(0, STEP)
        k = _load(K, columns, depth, D, M, EVEN)
        g = _load(G, columns, hidden, H, M, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - shift[:, None]
        if HAS_BIAS:
            s += _load_vector(BIAS, columns, M, float("-inf"), EVEN)[None, :]
        p = tl.exp2(s)
        if not EVEN:
            p = tl.where(columns[None, :] < M, p, 0.0)
        if FIRST:
            mass += tl.sum(p, 1)
        p = p.to(g.dtype)
        total = tl.dot(p, g, total, input_precision=PRECISION)
        if MEANS:
            mean = tl.dot(p, k, mean, input_precision=PRECISION)
    if FIRST:
        total = total / mass[:, None]
        if MEANS:
            _store(MEAN + sample * M * D, rows, depth, mean / mass[:, None], D, M, EVEN)
        logarithm = tl.log2(mass)
        lse = shift + logarithm
        _store_vector(LSE + sample * M, rows, lse, M, EVEN)
        # What the sum above has lost is known exactly: the difference of neighbours does not round.
        _store_vector(RATIO + sample * M, rows, tl.exp2((lse - shift) - logarithm), M, EVEN)
    else:
        total *= _load_vector(RATIO + sample * M, rows, M, 1.0, EVEN)[:, None]
    if UPDATES:
        if DIFFERS:
            total -= _load(G, rows, hidden, H, M, EVEN).to(tl.float32)
        change = total.to(G.dtype.element_ty)
        if SAVES:
            _store(R + sample * M * H, rows, hidden, change, H, M, EVEN)
        following = tl.zeros([BLOCK, H], tl.float32)
        for start in tl.static_range(0, C, CHUNK):
            channels = start + tl.arange(0, CHUNK)
            z = _load(Z + sample * M * C, rows, channels, C, M, EVEN)
            w = tl.load(WZ + channels[None, :] * H + hidden[:, None]).to(change.dtype)
            z = (z.to(tl.float32) + tl.dot(change, w, input_precision=PRECISION)).to(z.dtype)
            _store(ZOUT + sample * M * C, rows, channels, z, C, M, EVEN)
            if HAS_NEXT:
                w = tl.load(WG + hidden[None, :] * C + channels[:, None]).to(change.dtype)
                following = tl.dot(z.to(w.dtype), w, following, input_precision=PRECISION)
        if HAS_NEXT:
            _store(GOUT + sample * M * H, rows, hidden, following, H, M, EVEN)
    else:
        _store(R + sample * M * H, rows, hidden, total, H, M, EVEN)


@triton.jit
def _turn(
    DZ, WZ, R, G, RATIO, DR, rows, M,
    H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr,
    UPDATES: tl.constexpr, DIFFERS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dR = dZ WZ, or dZ itself without UPDATES, which is stored, and its δ_i = dR_i · (K G)_i."""
    sample = tl.program_id(1).to(tl.int64)
    hidden = tl.arange(0, H)
    output = _load(R + sample * M * H, rows, hidden, H, M, EVEN).to(tl.float32)
    if DIFFERS:
        output += _load(G + sample * M * H, rows, hidden, H, M, EVEN).to(tl.float32)
    if UPDATES:
        dr = tl.zeros([rows.shape[0], H], tl.float32)
        for start in tl.static_range(0, C, CHUNK):
            channels = start + tl.arange(0, CHUNK)
            dz = _load(DZ + sample * M * C, rows, channels, C, M, EVEN)
            w = tl.load(WZ + channels[:, None] * H + hidden[None, :]).to(DR.dtype.element_ty)
            dr = tl.dot(dz.to(w.dtype), w, dr, input_precision=PRECISION)
    else:
        dr = _load(DZ + sample * M * H, rows, hidden, H, M, EVEN).to(tl.float32)
    dr *= _load_vector(RATIO + sample * M, rows, M, 1.0, EVEN)[:, None]
    dr = dr.to(DR.dtype.element_ty)
    _store(DR + sample * M * H, rows, hidden, dr, H, M, EVEN)
    return dr, tl.sum(dr.to(tl.float32) * output, 1)


@triton.jit
def turn_kernel(
    DZ, WZ, R, G, RATIO, DR, DELTA, M,
    H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    UPDATES: tl.constexpr, DIFFERS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Where backward begins: dR and δ of the last sub-block."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _, delta = _turn(DZ, WZ, R, G, RATIO, DR, rows, M, H, C, CHUNK, UPDATES, DIFFERS, EVEN, PRECISION)
    _store_vector(DELTA + tl.program_id(1).to(tl.int64) * M, rows, delta, M, EVEN)


@triton.jit
def _adjoint_update(
    dg, RATIO, R, DZ, WG, DZOUT, Z, DW, WZ_BEFORE, R_BEFORE, G_BEFORE, DR_BEFORE, DELTA,
    dq, dk, THETA, PHI, DE, rows, M,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, SLOTS: tl.constexpr,
    DIFFERS: tl.constexpr, HAS_PREVIOUS: tl.constexpr, EMBEDS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What follows dG: the weights' gradients, and of the sub-block before dZ, dR and its part of δ.

    EMBEDS: dZ has the part of dQ and dK, too. DW is [SLOTS, 2, C · H]: of WG and WZ; DE [SLOTS, 2, C · D]: of THETA and
    PHI; each matrix as the weight has it.
    """
    sample = tl.program_id(1).to(tl.int64)
    depth = tl.arange(0, D)
    hidden = tl.arange(0, H)
    before = tl.zeros([rows.shape[0], H], tl.float32)
    for start in tl.static_range(0, C, CHUNK):
        channels = start + tl.arange(0, CHUNK)
        dz = _load(DZ + sample * M * C, rows, channels, C, M, EVEN)
        w = tl.load(WG + hidden[:, None] * C + channels[None, :]).to(dg.dtype)
        added = tl.dot(dg, w, input_precision=PRECISION)
        if EMBEDS:
            w = tl.load(THETA + depth[:, None] * C + channels[None, :]).to(dg.dtype)
            added = tl.dot(dq, w, added, input_precision=PRECISION)
            w = tl.load(PHI + depth[:, None] * C + channels[None, :]).to(dg.dtype)
            added = tl.dot(dk, w, added, input_precision=PRECISION)
        dz = (dz.to(tl.float32) + added).to(dz.dtype)
        _store(DZOUT + sample * M * C, rows, channels, dz, C, M, EVEN)
        if HAS_PREVIOUS:
            w = tl.load(WZ_BEFORE + channels[:, None] * H + hidden[None, :]).to(dg.dtype)
            before = tl.dot(dz.to(w.dtype), w, before, input_precision=PRECISION)
    if HAS_PREVIOUS:
        before *= _load_vector(RATIO + sample * M, rows, M, 1.0, EVEN)[:, None]
        before = before.to(dg.dtype)
        _store(DR_BEFORE + sample * M * H, rows, hidden, before, H, M, EVEN)
        output = _load(R_BEFORE + sample * M * H, rows, hidden, H, M, EVEN).to(tl.float32)
        if DIFFERS:
            output += _load(G_BEFORE + sample * M * H, rows, hidden, H, M, EVEN).to(tl.float32)
        delta = _load_vector(DELTA + sample * M, rows, M, 0.0, EVEN)
        delta += tl.sum(before.to(tl.float32) * output, 1)
        _store_vector(DELTA + sample * M, rows, delta, M, EVEN)
    if SLOTS > 0:
        # Last: with products after atomic additions, Triton 3.6 makes code that reads shared memory out of bounds.
        slot = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) % SLOTS
        change = _load(R + sample * M * H, rows, hidden, H, M, EVEN)
        for start in tl.static_range(0, C, CHUNK):
            channels = start + tl.arange(0, CHUNK)
            z = _load(Z + sample * M * C, rows, channels, C, M, EVEN).to(dg.dtype)
            dz = _load(DZ + sample * M * C, rows, channels, C, M, EVEN).to(change.dtype)
            d_inner = tl.dot(tl.trans(z), dg, input_precision=PRECISION)
            # Transposed twice: of dzᵀ change Triton 3.6 makes wrong code, where dz is float32 and z is used again.
            d_outer = tl.trans(tl.dot(tl.trans(change), dz, input_precision=PRECISION))
            place = DW + slot * (2 * C * H)
            if EMBEDS:
                d_theta = tl.dot(tl.trans(z), dq, input_precision=PRECISION)
                d_phi = tl.dot(tl.trans(z), dk, input_precision=PRECISION)
                embedding = DE + slot * (2 * C * D) + depth[None, :] * C + channels[:, None]
                tl.atomic_add(embedding, d_theta, sem="relaxed")
                tl.atomic_add(embedding + C * D, d_phi, sem="relaxed")
            tl.atomic_add(place + hidden[None, :] * C + channels[:, None], d_inner, sem="relaxed")
            tl.atomic_add(place + C * H + channels[:, None] * H + hidden[None, :], d_outer, sem="relaxed")


@triton.jit
def _less_own(total, DR, RATIO, rows, M, H: tl.constexpr, DIFFERS: tl.constexpr, EVEN: tl.constexpr):
    """dG = Kᵀ dR − dR, or Kᵀ dR; zeros beyond the end."""
    if DIFFERS:
        own = _load(DR, rows, tl.arange(0, H), H, M, EVEN).to(tl.float32)
        total -= own / _load_vector(RATIO, rows, M, 1.0, EVEN)[:, None]
    if not EVEN:
        total = tl.where(rows[:, None] < M, total, 0.0)
    return total.to(DR.dtype.element_ty)


@triton.jit
def adjoint_kernel(
    Q, K, BIAS, LSE, RATIO, DR, R, DZ, WG, DZOUT, DG, Z, DW, WZ_BEFORE, R_BEFORE, G_BEFORE, DR_BEFORE, DELTA, M, scale,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, SLOTS: tl.constexpr,
    UPDATES: tl.constexpr, DIFFERS: tl.constexpr, HAS_PREVIOUS: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sub-block backward, without the gradient of the affinity: dG = Kᵀ dR − dR and what follows from it.

    Without UPDATES only DG = Kᵀ dR is written.
    """
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    hidden = tl.arange(0, H)
    k = _load(K + sample * M * D, rows, depth, D, M, EVEN)
    if HAS_BIAS:
        bias = _load_vector(BIAS + sample * M, rows, M, 0.0, EVEN)
    total = tl.zeros([BLOCK, H], tl.float32)
    for start in range(0, M, STEP):
        columns = start + tl.arange(0, STEP)
        q = _load(Q + sample * M * D, columns, depth, D, M, EVEN)
        dr = _load(DR + sample * M * H, columns, hidden, H, M, EVEN)
        lse = _load_vector(LSE + sample * M, columns, M, float("inf"), EVEN)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - lse[None, :]
        if HAS_BIAS:
            s += bias[:, None]
        total = tl.dot(tl.exp2(s).to(dr.dtype), dr, total, input_precision=PRECISION)
    dg = _less_own(total, DR + sample * M * H, RATIO + sample * M, rows, M, H, DIFFERS, EVEN)
    if SLOTS == 0:
        _store(DG + sample * M * H, rows, hidden, dg, H, M, EVEN)
    if UPDATES:
        _adjoint_update(
            dg, RATIO, R, DZ, WG, DZOUT, Z, DW, WZ_BEFORE, R_BEFORE, G_BEFORE, DR_BEFORE, DELTA,
            None, None, None, None, None, rows, M,
            D, H, C, CHUNK, SLOTS, DIFFERS, HAS_PREVIOUS, False, EVEN, PRECISION,
        )  # fmt: skip


@triton.jit
def finish_kernel(
    DG, R, DZ, WG, DZOUT, Z, DW, DQ, DK, THETA, PHI, DE, M,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
    EMBEDS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The rest of the first sub-block backward, after `key_kernel` has computed its dG."""
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dg = _load(DG + sample * M * H, rows, tl.arange(0, H), H, M, EVEN)
    dq = None
    dk = None
    if EMBEDS:
        dq = _load(DQ + sample * M * D, rows, tl.arange(0, D), D, M, EVEN)
        dk = _load(DK + sample * M * D, rows, tl.arange(0, D), D, M, EVEN)
    _adjoint_update(
        dg, None, R, DZ, WG, DZOUT, Z, DW, None, None, None, None, None, dq, dk, THETA, PHI, DE, rows, M,
        D, H, C, CHUNK, SLOTS, False, False, EMBEDS, EVEN, PRECISION,
    )  # fmt: skip


@triton.jit
def key_kernel(
    Q, K, BIAS, LSE, RATIO, DELTA, DR, G, DK, DBIAS, DG, R, DZ, WG, DZOUT, Z, DW, DQ, THETA, PHI, DE,
    M, stride, scale, factor,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, SLOTS: tl.constexpr,
    ADDS: tl.constexpr, TRANSPOSES: tl.constexpr, FINISHES: tl.constexpr, EMBEDS: tl.constexpr,
    DIFFERS: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The columns' share of the affinity's gradient, for several sub-blocks at once.

    Σ_n dR_n,i · G_n,j is one product with inner dimension WIDE + REST = n·H. ADDS: add to what is there, and leave δ
    out, which belongs to the first sub-blocks alone. TRANSPOSES: find dG of the first of them, too, which is the last
    thing that backward needs Kᵀ for. FINISHES: and all that `finish_kernel` does.
    """
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    G += sample * M * H
    sample_dr = DR + sample * M * H
    k = _load(K + sample * M * D, rows, depth, D, M, EVEN)
    g = _load_all(G, rows, 0, WIDE, stride, H, M, EVEN)
    if REST > 0:
        g_rest = _load_all(G, rows, WIDE, REST, stride, H, M, EVEN)
    if HAS_BIAS:
        bias = _load_vector(BIAS + sample * M, rows, M, 0.0, EVEN)
        d_bias = tl.zeros([BLOCK], tl.float32)
    dk = tl.zeros([BLOCK, D], tl.float32)
    total = tl.zeros([BLOCK, H], tl.float32)
    for start in range(0, M, STEP):
        columns = start + tl.arange(0, STEP)
        q = _load(Q + sample * M * D, columns, depth, D, M, EVEN)
        dr = _load_all(sample_dr, columns, 0, WIDE, stride, H, M, EVEN)
        lse = _load_vector(LSE + sample * M, columns, M, float("inf"), EVEN)
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale - lse[None, :]
        if HAS_BIAS:
            s += bias[:, None]
        p = tl.exp2(s)
        dp = tl.dot(g, tl.trans(dr), input_precision=PRECISION)
        if REST > 0:
            dr_rest = _load_all(sample_dr, columns, WIDE, REST, stride, H, M, EVEN)
            dp = tl.dot(g_rest, tl.trans(dr_rest), dp, input_precision=PRECISION)
        if not ADDS:
            dp -= _load_vector(DELTA + sample * M, columns, M, 0.0, EVEN)[None, :]
        ds = p * dp
        if HAS_BIAS:
            d_bias += tl.sum(ds, 1)
        ds = ds.to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision=PRECISION)
        if TRANSPOSES:
            first = dr if H == WIDE else _load(sample_dr, columns, tl.arange(0, H), H, M, EVEN)
            total = tl.dot(p.to(first.dtype), first, total, input_precision=PRECISION)
    dk *= factor
    if ADDS:
        dk += _load(DK + sample * M * D, rows, depth, D, M, EVEN)
    if not EMBEDS or SLOTS == 0:
        _store(DK + sample * M * D, rows, depth, dk, D, M, EVEN)
    if HAS_BIAS:
        if ADDS:
            d_bias += _load_vector(DBIAS + sample * M, rows, M, 0.0, EVEN)
        _store_vector(DBIAS + sample * M, rows, d_bias, M, EVEN)
    if TRANSPOSES:
        dg = _less_own(total, sample_dr, RATIO + sample * M, rows, M, H, DIFFERS, EVEN)
        if not FINISHES or SLOTS == 0:
            _store(DG + sample * M * H, rows, tl.arange(0, H), dg, H, M, EVEN)
    if FINISHES:
        dq = None
        if EMBEDS:
            dq = _load(DQ + sample * M * D, rows, depth, D, M, EVEN)
        _adjoint_update(
            dg, None, R, DZ, WG, DZOUT, Z, DW, None, None, None, None, None,
            dq, dk.to(dg.dtype), THETA, PHI, DE, rows, M,
            D, H, C, CHUNK, SLOTS, False, False, EMBEDS, EVEN, PRECISION,
        )  # fmt: skip


@triton.jit
def query_kernel(
    Q, K, BIAS, LSE, RATIO, MEAN, DELTA, LEFT, DR, G, DQ, DZ, WZ, R, M, stride, scale, factor,
    D: tl.constexpr, H: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, WIDE: tl.constexpr, REST: tl.constexpr,
    BLOCK: tl.constexpr, STEP: tl.constexpr, ADDS: tl.constexpr, LAST: tl.constexpr, ONES: tl.constexpr,
    TURNS: tl.constexpr, UPDATES: tl.constexpr, DIFFERS: tl.constexpr,
    HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The rows' share of the affinity's gradient, for several sub-blocks at once; ADDS as in `key_kernel`.

    A row of dS = K (dK − δ) sums to 0, but δ was made of rounded numbers: what is left of that sum, LEFT, would be a
    gradient that no loss has, as large as the keys. The LAST pass takes it out of DQ, and out of DELTA for the columns.
    ONES: the sum is a product with ones, which in half precision takes fewer instructions, and in float32 many more.
    TURNS: of the only sub-block; find its dR and δ first, as `turn_kernel` does.
    """
    sample = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    if TURNS:
        dr, delta = _turn(DZ, WZ, R, G, RATIO, DR, rows, M, H, C, CHUNK, UPDATES, DIFFERS, EVEN, PRECISION)
    G += sample * M * H
    DR += sample * M * H
    q = _load(Q + sample * M * D, rows, depth, D, M, EVEN)
    if not TURNS:
        dr = _load_all(DR, rows, 0, WIDE, stride, H, M, EVEN)
        delta = _load_vector(DELTA + sample * M, rows, M, 0.0, EVEN)
    if REST > 0:
        dr_rest = _load_all(DR, rows, WIDE, REST, stride, H, M, EVEN)
    lse = _load_vector(LSE + sample * M, rows, M, float("inf"), EVEN)
    dq = tl.zeros([BLOCK, D], tl.float32)
    if ONES:
        sums = tl.zeros([BLOCK, 16], tl.float32)  # 16 times the same, the fewest that a product can have
    else:
        left = tl.zeros([BLOCK], tl.float32)
    for start in range(0, M, STEP):
        columns = start + tl.arange(0, STEP)
        k = _load(K + sample * M * D, columns, depth, D, M, EVEN)
        g = _load_all(G, columns, 0, WIDE, stride, H, M, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale - lse[:, None]
        if HAS_BIAS:
            s += _load_vector(BIAS + sample * M, columns, M, float("-inf"), EVEN)[None, :]
        p = tl.exp2(s)
        if not EVEN:
            p = tl.where(columns[None, :] < M, p, 0.0)
        dp = tl.dot(dr, tl.trans(g), input_precision=PRECISION)
        if REST > 0:
            g_rest = _load_all(G, columns, WIDE, REST, stride, H, M, EVEN)
            dp = tl.dot(dr_rest, tl.trans(g_rest), dp, input_precision=PRECISION)
        if not ADDS:
            dp -= delta[:, None]
        ds = (p * dp).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision=PRECISION)
        if ONES:
            sums = tl.dot(ds, tl.full([STEP, 16], 1.0, tl.float32).to(ds.dtype), sums)
        else:
            left += tl.sum(ds, 1)
    if ONES:
        left = tl.max(sums, 1)
    if ADDS:
        left += _load_vector(LEFT + sample * M, rows, M, 0.0, EVEN)
    if LAST:
        dq -= left[:, None] * _load(MEAN + sample * M * D, rows, depth, D, M, EVEN).to(tl.float32)
        delta += left * _load_vector(RATIO + sample * M, rows, M, 1.0, EVEN)
        _store_vector(DELTA + sample * M, rows, delta, M, EVEN)
    else:
        _store_vector(LEFT + sample * M, rows, left, M, EVEN)
    dq *= factor
    if ADDS:
        dq += _load(DQ + sample * M * D, rows, depth, D, M, EVEN)
    _store(DQ + sample * M * D, rows, depth, dq, D, M, EVEN)
