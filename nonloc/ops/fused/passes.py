"""Forward and backward of a fused stage, and of one product; what backward needs is kept where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nonloc.ops.arithmetic import in_dtype
from nonloc.ops.fused.launch import Adjoint, Before, Embedding, Launcher, Settings, Turn

SMALLEST = 16  # what a tensor core can multiply
SLOTS = 32  # partial sums of the weights' gradients, so that programs seldom add to the same place


def stage_forward(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    s: Settings,
    keeps: bool,
    embedding: Embedding = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None, Tensor]:
    """Return the last state, and G, R, LSE and RATIO, K k and the states between, which backward needs.

    embedding  θ and φ: q and k are then outputs
    """
    blocks, channels, hidden = w_z.shape
    batch, positions, _ = query.shape
    kernels = Launcher(query, key, bias, hidden, channels, blocks, s, x, w_z, w_g, *(embedding or ()))
    buffers = blocks if keeps else min(blocks, 2)
    # The caller gets the last state, which must not share storage with the others.
    last = torch.empty_like(x)
    between = x.new_empty(blocks - 1 if keeps else min(blocks - 1, 1), *x.shape)
    g = query.new_empty(buffers, batch, positions, hidden)
    r = query.new_empty(blocks, batch, positions, hidden) if keeps else None
    lse = torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)
    mean = torch.empty_like(key) if s.has_gradient else None
    norms = kernels.make_norms(embedding)
    sums, given, outer, inner = lse.unbind(), _by_block(g), _by_block(w_z), _by_block(w_g)
    change = [None] * blocks if r is None else _by_block(r)
    kernels.begin(x, inner[0], given[0], norms, embedding)
    state = x
    for n in range(blocks):
        left = blocks - 1 - n
        # Without a gradient two states take turns, the last of them at the end.
        target = last if left == 0 or (not keeps and left % 2 == 0) else between[n if keeps else 0]
        kernels.forward(
            sums, norms, n == 0, mean if n == 0 else None, given[n % buffers], change[n],
            state, outer[n], None if left == 0 else inner[n + 1],
            target, None if left == 0 else given[(n + 1) % buffers],
        )  # fmt: skip
        state = target
    return state, g, r, lse, mean, between


def stage_backward(
    d_state: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    g: Tensor,
    r: Tensor,
    lse: Tensor,
    mean: Tensor | None,
    between: Tensor | None,
    s: Settings,
    embedding: Embedding = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, b, where `mean` was kept, and of x, W_Z and W_g.

    embedding  θ and φ: their gradients are then in the place of those of q and k
    """
    blocks, channels, hidden = w_z.shape
    states = [x] if between is None else [x, *between.unbind()]
    d_state = d_state.contiguous()
    others = (d_state, x, w_z, w_g, g, r, lse, mean, between, *(embedding or ()))
    kernels = Launcher(query, key, bias, hidden, channels, blocks, s, *others)
    dr = torch.empty_like(g)
    sums = lse.unbind()
    delta = torch.empty_like(sums[0])
    buffers = blocks if s.deterministic else min(blocks, 2)
    dz = [torch.empty_like(d_state) for _ in range(buffers)]
    dg = torch.empty_like(g) if s.deterministic else None
    sets = blocks if embedding is None else blocks + 1
    dw = None
    if not s.deterministic:
        dw = g.new_zeros(sets, SLOTS, 2, channels * hidden, dtype=torch.float32)
    outer, inner, given, change, d_change = map(_by_block, (w_z, w_g, g, r, dr))
    d_weights = [None] * sets if dw is None else _by_block(dw)
    turn = Turn(d_state, outer[-1], change[-1])
    turn_later = kernels.turn(
        sums, turn, d_change[-1], delta, given[-1], may_wait=blocks == 1 and mean is not None
    )
    after, afters = d_state, [d_state] * blocks
    for n in reversed(range(blocks)):
        afters[n] = after
        step = Adjoint(
            d_change[n], change[n], after, inner[n], dz[n % buffers],
            None if dg is None else dg[n], states[n], d_weights[n],
        )  # fmt: skip
        if n > 0:
            kernels.adjoint(
                sums, step, Before(outer[n - 1], change[n - 1], given[n - 1], d_change[n - 1], delta)
            )
        after = dz[n % buffers]
    dq, dk, db = None, None, None
    if mean is None:
        kernels.adjoint(sums, step)
    else:
        dq, dk, db = kernels.affinity_gradient(
            sums, mean, delta, d_change, given, step, turn_later, embedding, d_weights[-1]
        )
    if dw is not None:
        total = dw.sum(1)
        d_wg, d_wz = total[:blocks, 0].view_as(w_g), total[:blocks, 1].view_as(w_z)
    else:
        assert dg is not None
        d_wg = torch.stack([_outer(dg[n], states[n]) for n in range(blocks)])
        d_wz = torch.stack([_outer(afters[n], r[n]) for n in range(blocks)])
    if embedding is not None and dq is not None and dk is not None:
        found = (_outer(dq, x), _outer(dk, x)) if dw is None else total[-1]
        dq, dk = (
            in_dtype(one.view_as(weight), weight.dtype) for one, weight in zip(found, embedding, strict=True)
        )
    return dq, dk, db, after, in_dtype(d_wz, w_z.dtype), in_dtype(d_wg, w_g.dtype)


def embedded_forward(
    x: Tensor, theta: Tensor, phi: Tensor, w_z: Tensor, w_g: Tensor, s: Settings, keeps: bool
) -> tuple[Tensor | None, ...]:
    """Of a stage with q = x θᵀ and k = x φᵀ: as `stage_forward`, and q and k for backward."""
    query, key = (torch.empty(*x.shape[:2], len(theta), dtype=s.dtype, device=x.device) for _ in range(2))
    return *stage_forward(query, key, None, x, w_z, w_g, s, keeps, (theta, phi)), query, key


def embedded_backward(
    d_state: Tensor, x: Tensor, theta: Tensor, phi: Tensor, w_z: Tensor, w_g: Tensor, *rest: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return the gradients of x, θ and φ, where K k was kept, and of W_Z and W_g.

    rest  what `embedded_forward` has kept, and the settings
    """
    g, r, lse, mean, between, query, key, s = rest
    d_theta, d_phi, _, dx, d_wz, d_wg = stage_backward(
        d_state, query, key, None, x, w_z, w_g, g, r, lse, mean, between, s, (theta, phi)
    )
    return None if mean is None else dx, d_theta, d_phi, d_wz, d_wg


def product_forward(
    query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings, keeps: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return K g in float32; and for backward LSE and RATIO, and K k."""
    kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, 1, s, g)
    result = torch.empty_like(g, dtype=torch.float32)
    lse = torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)
    mean = torch.empty_like(key) if s.has_gradient else None
    norms = kernels.make_norms()
    if norms is not None:
        kernels.begin(None, None, None, norms)
    kernels.forward(lse.unbind(), norms, True, mean, g, result)
    return result, lse, mean


def product_backward(
    d_result: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    g: Tensor,
    result: Tensor,
    lse: Tensor,
    mean: Tensor | None,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Return the gradients of q, k, b, where `mean` was kept, and of g."""
    d_result = d_result.contiguous()
    kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, 1, s, d_result, g, result, lse, mean)
    sums = lse.unbind()
    delta = torch.empty_like(sums[0])
    dr, dg = torch.empty_like(g), torch.empty_like(g)
    step, turn = Adjoint(dr, dg=dg), Turn(d_result, None, result)
    turn_later = kernels.turn(sums, turn, dr, delta, g, may_wait=mean is not None)
    if mean is not None:
        return *kernels.affinity_gradient(sums, mean, delta, (dr,), (g,), step, turn_later), dg
    kernels.adjoint(sums, step)
    return None, None, None, dg


def _by_block(x: Tensor) -> Sequence[Tensor]:
    """Of each sub-block; of a single one x itself, as kernels take nothing but its address."""
    return (x,) if len(x) == 1 else x.unbind()


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Σ over samples and positions of a bᵀ, in float32."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.einsum("bmi,bmj->ij", a.float(), b.float())
