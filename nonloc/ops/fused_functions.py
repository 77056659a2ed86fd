"""The fused stage and the fused product as differentiable functions of q, k, b: what is kept, and the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nonloc.ops.fused_launch import Adjoint, Before, Launcher, Settings

SMALLEST = 16  # what a tensor core can multiply
SLOTS = 32  # partial sums of the weights' gradients, so that programs seldom add to the same place


class Stage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        x: Tensor,
        w_z: Tensor,
        w_g: Tensor,
        s: Settings,
    ) -> Tensor:
        blocks, channels, hidden = w_z.shape
        batch, positions, _ = query.shape
        keeps = s.records and any(ctx.needs_input_grad)
        kernels = Launcher(query, key, bias, hidden, channels, s)
        rooms = blocks if keeps else min(blocks, 2)
        # Each a tensor of its own: the last one is given away, and must not hold the others.
        states = [torch.empty_like(x) for _ in range(rooms)]
        g = x.new_empty(rooms, batch, positions, hidden)
        r = x.new_empty(blocks, batch, positions, hidden) if keeps else None
        lse = _room_for_sums(query)
        mean = _room_for_mean(ctx, key, s)
        norms = kernels.make_norms()
        kernels.begin(x, w_g[0], g[0], norms)
        state = x
        for n in range(blocks):
            is_last = n + 1 == blocks
            kernels.forward(
                lse, norms, n == 0, mean if n == 0 else None, g[n % rooms], None if r is None else r[n],
                state, w_z[n], None if is_last else w_g[n + 1],
                states[n % rooms], None if is_last else g[(n + 1) % rooms],
            )  # fmt: skip
            state = states[n % rooms]
        if keeps:
            ctx.save_for_backward(query, key, bias, w_z, w_g, g, r, lse, mean, x, *states[:-1])
            ctx.settings = s
        return state

    @staticmethod
    def backward(ctx: Any, d_state: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        query, key, bias, w_z, w_g, g, r, lse, mean, *states = ctx.saved_tensors
        blocks, channels, hidden = w_z.shape
        s: Settings = ctx.settings
        kernels = Launcher(query, key, bias, hidden, channels, s)
        d_state = d_state.contiguous()
        dr = torch.empty_like(g)
        delta = torch.empty_like(lse[0])
        rooms = blocks if s.deterministic else min(blocks, 2)
        dz = [torch.empty_like(d_state) for _ in range(rooms)]
        dg = torch.empty_like(g) if s.deterministic else None
        dw = None if s.deterministic else g.new_zeros(blocks, SLOTS, 2, channels, hidden, dtype=torch.float32)
        kernels.turn(lse, d_state, dr[-1], delta, r[-1], g=g[-1], w_z=w_z[-1])
        after, afters = d_state, [d_state] * blocks
        for n in reversed(range(blocks)):
            afters[n] = after
            step = Adjoint(
                dr[n], r[n], after, w_g[n], dz[n % rooms],
                None if dg is None else dg[n], states[n], None if dw is None else dw[n],
            )  # fmt: skip
            if n > 0:
                kernels.adjoint(lse, step, Before(w_z[n - 1], r[n - 1], g[n - 1], dr[n - 1], delta))
            after = dz[n % rooms]
        dq, dk, db = _first(kernels, lse, mean, delta, dr, g, step)
        if dw is not None:
            sums = dw.sum(1)
            d_wg, d_wz = sums[:, 0].mT, sums[:, 1]
        else:
            assert dg is not None
            d_wg = torch.stack([_outer(dg[n], states[n]) for n in range(blocks)])
            d_wz = torch.stack([_outer(afters[n], r[n]) for n in range(blocks)])
        return dq, dk, db, after, d_wz.to(w_z.dtype), d_wg.to(w_g.dtype), None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings) -> Tensor:
        kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, s)
        result = torch.empty_like(g, dtype=torch.float32)
        lse = _room_for_sums(query)
        mean = _room_for_mean(ctx, key, s)
        norms = kernels.make_norms()
        if norms is not None:
            kernels.begin(None, None, None, norms)
        kernels.forward(lse, norms, True, mean, g, result)
        ctx.save_for_backward(query, key, bias, g, result, lse, mean)
        ctx.settings = s
        return result

    @staticmethod
    def backward(ctx: Any, d_result: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        query, key, bias, g, result, lse, mean = ctx.saved_tensors
        kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, ctx.settings)
        delta = torch.empty_like(lse[0])
        dr, dg = torch.empty_like(g), torch.empty_like(g)
        kernels.turn(lse, d_result.contiguous(), dr, delta, result)
        dq, dk, db = _first(kernels, lse, mean, delta, dr[None], g[None], Adjoint(dr, dg=dg))
        return dq, dk, db, dg, None


def _room_for_sums(query: Tensor) -> Tensor:
    """For LSE and RATIO, one after the other [2, B, M]."""
    return torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)


def _room_for_mean(ctx: Any, key: Tensor, s: Settings) -> Tensor | None:
    """For K k, which the affinity's gradient needs; None where nobody can ask for that."""
    return torch.empty_like(key) if s.records and any(ctx.needs_input_grad[:3]) else None


def _first(
    kernels: Launcher, lse: Tensor, mean: Tensor | None, delta: Tensor, dr: Tensor, g: Tensor, step: Adjoint
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first sub-block backward, and where it is asked for the affinity's gradient with it: dq, dk, db."""
    if mean is not None:
        return kernels.affinity_gradient(lse, mean, delta, dr, g, step)
    kernels.adjoint(lse, step)
    return None, None, None


def _check_first_derivative() -> None:
    # With `once_differentiable`, what is missing from a second derivative would be missing without a word where
    # other terms have one.
    if torch.is_grad_enabled():
        raise ValueError(
            'backend="fused" has no second derivative, which create_graph=True asks for; use backend="reference"'
        )


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Σ over samples and positions of a bᵀ, in float32."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.einsum("bmi,bmj->ij", a.float(), b.float())
