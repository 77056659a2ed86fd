"""A stage with K stored, for as many samples at a time as fit: where features are wide, computing K again costs more
than reading it.

The logits are one product, and so is K for each sub-block; backward, the gradient of K is one product for all
sub-blocks. These are 3 N + 3 products where attention needs 7 N, all of them the vendor's. Logits and their gradient
are float32, K has the features' dtype. Where K of the whole batch is large, it is computed again backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nonloc.ops.arithmetic import in_dtype
from nonloc.ops.fused.launch import LOG2_E, Settings, is_launching, launch_kernel, make_site

LARGEST_KERNEL = 2**27  # bytes of K that exist at one time; backward its gradients take three times as much
ALIGNED = 8  # numbers: the vendor's products are slow where rows do not begin on 16 bytes
WIDEST_ROW = 2**14  # positions: a program holds rows of K
NUMBERS_AT_ONCE = 4096  # of a program


def stage_forward(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    s: Settings,
    keeps: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return the last state, and K where it is small, G and R [B, M, N, r] and the states between for backward."""
    batch, positions, _ = query.shape
    blocks, _, hidden = w_z.shape
    # Without a gradient all sub-blocks write to the same places.
    buffers = blocks if keeps else 1
    state = x.new_empty(x.shape)
    between = x.new_empty(buffers - 1, *x.shape)
    g, r = (query.new_empty(batch, positions, buffers, hidden) for _ in range(2))
    kernel = new_kernel(query)
    outer, inner = w_z.mT.unbind(), w_g.mT.unbind()
    own = -1 if s.differs else 0  # of a position's own number, in K g − g
    for part in parts(query):
        k = store(_some(query, part), _some(key, part), _some(bias, part), kernel, s)
        given, given_rows = _by_block(_some(g, part))
        change, change_rows = _by_block(_some(r, part))
        z = _some(x, part).flatten(0, 1)
        targets = (*_states_between(between, part), _some(state, part).flatten(0, 1))
        for n in range(blocks):
            place = n if keeps else 0
            torch.mm(in_dtype(z, w_g.dtype), inner[n], out=given_rows[place])
            torch.baddbmm(given[place], k, given[place], beta=own, out=change[place])
            z = _added(z, change_rows[place], outer[n], targets[place])
    return state, kernel if keeps and len(kernel) == len(query) else None, g, r, between


def stage_backward(
    d_state: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    kernel: Tensor | None,
    g: Tensor,
    r: Tensor,
    between: Tensor | None,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, b, where they are asked for, and of x, W_Z and W_g."""
    d_state = d_state.contiguous()
    d_x = torch.empty_like(d_state)
    dr = torch.empty_like(g)
    d_wz, d_wg = torch.empty_like(w_z), torch.empty_like(w_g)
    outer, inner, d_outer, d_inner = w_z.unbind(), w_g.unbind(), d_wz.unbind(), d_wg.unbind()
    own = -1 if s.differs else 0
    gradients = _AffinityGradients(query, key, bias, kernel, s)
    for part in parts(query):
        k = gradients.kernel(part)
        transposed = k.transpose(1, 2)
        change_rows = _some(r, part).flatten(0, 1).unbind(1)
        some_dr = _some(dr, part)
        d_change, d_change_rows = _by_block(some_dr)
        states = (_some(x, part).flatten(0, 1), *_states_between(between, part))
        dz, target = _some(d_state, part).flatten(0, 1), _some(d_x, part).flatten(0, 1)
        adds = part is not None and part[0] > 0
        for n in reversed(range(len(outer))):
            narrow = in_dtype(dz, w_z.dtype)
            torch.mm(narrow, outer[n], out=d_change_rows[n])
            dg = torch.baddbmm(d_change[n], transposed, d_change[n], beta=own).flatten(0, 1)
            _outer(narrow, change_rows[n], d_outer[n], adds)
            _outer(dg, in_dtype(states[n], w_g.dtype), d_inner[n], adds)
            dz = _added(dz, dg, inner[n], target)
        gradients.add(part, k, some_dr.flatten(2), _some(g, part).flatten(2))
    return *gradients.results, d_x, d_wz, d_wg


def product_forward(
    query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    """Return K g in float32, and K where it is small."""
    kernel = new_kernel(query)
    result = torch.empty_like(g, dtype=torch.float32)
    for part in parts(query):
        k = store(_some(query, part), _some(key, part), _some(bias, part), kernel, s)
        _some(result, part).copy_(_wide_product(k, _some(g, part)))
    return result, kernel if keeps and len(kernel) == len(query) else None


def product_backward(
    d_result: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    g: Tensor,
    kernel: Tensor | None,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Return the gradients of q, k, b, where they are asked for, and of g."""
    gradients = _AffinityGradients(query, key, bias, kernel, s)
    d_result, dg = d_result.to(g.dtype), torch.empty_like(g)
    for part in parts(query):
        k = gradients.kernel(part)
        d_some = _some(d_result, part)
        torch.bmm(k.transpose(1, 2), d_some, out=_some(dg, part))
        gradients.add(part, k, d_some, _some(g, part))
    return *gradients.results, dg


class _AffinityGradients:
    """The gradients of q, k and b, part by part; None where they are not asked for."""

    def __init__(
        self, query: Tensor, key: Tensor, bias: Tensor | None, kernel: Tensor | None, s: Settings
    ) -> None:
        self.query, self.key, self.bias, self.kept, self.s = query, key, bias, kernel, s
        self.buffer = new_kernel(query) if kernel is None else kernel
        self.results: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        if s.has_gradient:
            self.d_logits = torch.empty_like(self.buffer)
            db = None if bias is None else torch.empty_like(bias)
            self.results = (torch.empty_like(query), torch.empty_like(key), db)

    def kernel(self, part: Part) -> Tensor:
        if self.kept is not None:
            return _filled(self.kept, *self.query.shape[:2])
        q, k, b = (_some(one, part) for one in (self.query, self.key, self.bias))
        return store(q, k, b, self.buffer, self.s)

    def add(self, part: Part, k: Tensor, dr: Tensor, g: Tensor) -> None:
        """From dR and G [b, M, N·r]: dK = dR Gᵀ."""
        if not self.s.has_gradient:
            return
        dq, dk, db = (_some(one, part) for one in self.results)
        batch, positions = dr.shape[:2]
        d_kernel = _wide_product(dr, g.transpose(1, 2))
        out, scale = self.d_logits, self.s.scale
        _launch_rows("softmax_gradient_kernel", d_kernel, k, d_kernel, out, positions, out.shape[-1])
        ds = _filled(out, batch, positions)
        torch.baddbmm(dq, ds, _centred(_some(self.key, part)), beta=0, alpha=scale, out=dq)
        torch.baddbmm(dk, ds.transpose(1, 2), _some(self.query, part), beta=0, alpha=scale, out=dk)
        if db is not None:
            torch.sum(ds, 1, dtype=torch.float32, out=db)


Part = tuple[int, int] | None
"""The first of some samples and their number; None: all of them."""


def parts(query: Tensor) -> Iterator[Part]:
    """The samples whose K exist at one time."""
    batch, count = len(query), _samples_at_once(query)
    if count == batch:
        yield None
    else:
        yield from ((start, min(count, batch - start)) for start in range(0, batch, count))


def _some(x: Any, part: Part, dim: int = 0) -> Any:
    """x, or None, of these samples; the view is left out where it would be x."""
    return x if x is None or part is None else x.narrow(dim, *part)


def _filled(kernel: Tensor, batch: int, positions: int) -> Tensor:
    """K [b, M, M], which is a part of its buffer [≥ b, M, LD]."""
    shape = (batch, positions, positions)
    return kernel if kernel.shape == shape else kernel[:batch, :, :positions]


def _by_block(x: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Of x [b, M, N, r], for each sub-block [b, M, r], and the same as [b·M, r]."""
    return x.unbind(2), x.flatten(0, 1).unbind(1)


def _states_between(between: Tensor | None, part: Part) -> Sequence[Tensor]:
    """Each as [b·M, C]; a single sub-block has none."""
    return () if between is None else _some(between, part, 1).flatten(1, 2).unbind()


def new_kernel(query: Tensor) -> Tensor:
    """A buffer for K of as many samples as exist at one time [b, M, LD]."""
    positions = query.shape[1]
    return query.new_empty(_samples_at_once(query), positions, _aligned(positions))


def _samples_at_once(query: Tensor) -> int:
    batch, positions, _ = query.shape
    return max(1, min(batch, LARGEST_KERNEL // (positions * positions * query.element_size())))


def store(query: Tensor, key: Tensor, bias: Tensor | None, out: Tensor, s: Settings) -> Tensor:
    """K [b, M, M] of a few samples, in `out` [≥ b, M, LD]."""
    batch, positions, _ = query.shape
    logits = _wide_product(query, key.transpose(1, 2))
    _launch_rows(
        "softmax_kernel", logits, logits, None if bias is None else (bias * LOG2_E).contiguous(), out, positions,
        out.shape[-1], s.scale * LOG2_E, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return _filled(out, batch, positions)


def _centred(key: Tensor) -> Tensor:
    """The keys without their mean. A row of the logits' gradient sums to 0 but for rounding, which this keeps small."""
    return key - key.mean(1, keepdim=True)


def _launch_rows(name: str, like: Tensor, *arguments: Any, **constants: Any) -> None:
    if not is_launching():
        return

    def describe() -> tuple[Any, ...]:
        from nonloc.ops.fused import stored_kernels

        batch, positions, _ = like.shape
        width = 1 << (_aligned(positions) - 1).bit_length()
        rows = max(1, NUMBERS_AT_ONCE // width)
        sizes, options = constants | {"ROWS": rows, "WIDTH": width}, {"num_warps": 4 if rows > 1 else 8}
        return getattr(stored_kernels, name), (-(-positions // rows), batch), sizes, options

    tensors = [one for one in arguments if one is None or isinstance(one, Tensor)]
    launch_kernel((*make_site(like, *tensors), name), describe, arguments)


def _aligned(positions: int) -> int:
    return -(-positions // ALIGNED) * ALIGNED


def _added(z: Tensor, change: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """z + change w [b·M, C], in `out`, which may be z; z may be wider than the others."""
    if z.dtype == w.dtype:
        return torch.addmm(z, change, w, out=out)
    return torch.add(z, torch.mm(change, w), out=out)


def _outer(a: Tensor, b: Tensor, out: Tensor, adds: bool) -> None:
    """Set `out` to aᵀ b, or add that to it."""
    if adds:
        out.addmm_(a.t(), b)
    else:
        torch.mm(a.t(), b, out=out)


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())
