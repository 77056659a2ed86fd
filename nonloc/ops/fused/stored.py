"""A stage with K stored, for as many samples at a time as fit: where features are wide, computing K again costs more
than reading it.

The logits are one product, and so is K for each sub-block; backward, the gradient of K is one product for all
sub-blocks. These are 3 N + 3 products where attention needs 7 N, all of them the vendor's. Logits and their gradient
are float32, K has the features' dtype. Where K of the whole batch is large, it is computed again backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nonloc.ops.fused.launch import LOG2_E, Settings, is_launching, launch_kernel

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
    blocks, _, hidden = w_z.shape
    state = torch.empty_like(x)
    between = x.new_empty(blocks - 1, *x.shape) if keeps else None
    g, r = (query.new_empty(*query.shape[:2], blocks, hidden) if keeps else None for _ in range(2))
    kernel = new_kernel(query)
    for part in parts(query):
        k = store(query[part], key[part], None if bias is None else bias[part], kernel, s)
        z = x[part]
        for n in range(blocks):
            given = _product(z, w_g[n].t(), out=None if g is None else g[part, :, n])
            change = torch.baddbmm(
                given, k, given, beta=-1 if s.differs else 0, out=None if r is None else r[part, :, n]
            )
            last = state[part] if n == blocks - 1 else None if between is None else between[n, part]
            z = _added(z, change, w_z[n].t(), out=last)
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
    between: Tensor,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, b, where they are asked for, and of x, W_Z and W_g."""
    blocks = len(w_z)
    d_state = d_state.contiguous()
    d_x = torch.empty_like(d_state)
    dr = torch.empty_like(g)
    d_wz, d_wg = torch.empty_like(w_z), torch.empty_like(w_g)
    gradients = _AffinityGradients(query, key, bias, kernel, s)
    for part in parts(query):
        k = gradients.kernel(part)
        is_first = part.start == 0
        dz = d_state[part]
        for n in reversed(range(blocks)):
            z = x[part] if n == 0 else between[n - 1, part]
            d_change = _product(dz, w_z[n], out=dr[part, :, n])
            dg = torch.baddbmm(d_change, k.transpose(1, 2), d_change, beta=-1 if s.differs else 0)
            _outer(dz, r[part, :, n], d_wz[n], is_first)
            _outer(dg, z, d_wg[n], is_first)
            dz = _added(dz, dg, w_g[n], out=d_x[part] if n == 0 else None)
        gradients.add(part, k, dr[part].flatten(2), g[part].flatten(2))
    return *gradients.results, d_x, d_wz, d_wg


def product_forward(
    query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    """Return K g in float32, and K where it is small."""
    kernel = new_kernel(query)
    result = torch.empty_like(g, dtype=torch.float32)
    for part in parts(query):
        k = store(query[part], key[part], None if bias is None else bias[part], kernel, s)
        result[part] = _wide_product(k, g[part])
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
        dg[part] = torch.bmm(k.transpose(1, 2), d_result[part])
        gradients.add(part, k, d_result[part], g[part])
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

    def kernel(self, part: slice) -> Tensor:
        if self.kept is not None:
            return self.kept[:, :, : self.query.shape[1]]
        bias = None if self.bias is None else self.bias[part]
        return store(self.query[part], self.key[part], bias, self.buffer, self.s)

    def add(self, part: slice, k: Tensor, dr: Tensor, g: Tensor) -> None:
        """From dR and G [b, M, N·r]: dK = dR Gᵀ."""
        dq, dk, db = self.results
        if dq is None or dk is None:
            return
        batch, positions = dr.shape[:2]
        d_kernel = _wide_product(dr, g.transpose(1, 2))
        out = self.d_logits
        _launch_rows("softmax_gradient_kernel", d_kernel, k, d_kernel, out, positions, out.shape[-1])
        ds, scale = out[:batch, :, :positions], self.s.scale
        torch.baddbmm(dq[part], ds, _centred(self.key[part]), beta=0, alpha=scale, out=dq[part])
        torch.baddbmm(dk[part], ds.transpose(1, 2), self.query[part], beta=0, alpha=scale, out=dk[part])
        if db is not None:
            db[part] = ds.sum(1, dtype=torch.float32)


def parts(query: Tensor) -> Iterator[slice]:
    """The samples whose K exist at one time."""
    count = _samples_at_once(query)
    for start in range(0, len(query), count):
        yield slice(start, min(start + count, len(query)))


def new_kernel(query: Tensor) -> Tensor:
    """Room for K of as many samples as exist at one time [b, M, LD]."""
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
    return out[:batch, :, :positions]


def _centred(key: Tensor) -> Tensor:
    """The keys without their mean. A row of the logits' gradient sums to 0 but for rounding, which this keeps small."""
    return key - key.mean(1, keepdim=True)


def _launch_rows(name: str, like: Tensor, *arguments: Any, **constants: Any) -> None:
    if not is_launching():
        return
    from nonloc.ops.fused import stored_kernels

    batch, positions, _ = like.shape
    width = 1 << (_aligned(positions) - 1).bit_length()
    rows = max(1, NUMBERS_AT_ONCE // width)
    constants |= {"ROWS": rows, "WIDTH": width}
    grid = (-(-positions // rows), batch)
    launch_kernel(
        getattr(stored_kernels, name), grid, arguments, constants, {"num_warps": 4 if rows > 1 else 8}
    )


def _aligned(positions: int) -> int:
    return -(-positions // ALIGNED) * ALIGNED


def _product(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """x w [b, M, r] of x [b, M, C] and w [C, r], in w's dtype."""
    flat = None if out is None else out.flatten(0, 1)
    result = torch.mm(x.flatten(0, 1).to(w.dtype), w, out=flat)
    return result.view(*x.shape[:2], -1) if out is None else out


def _added(z: Tensor, change: Tensor, w: Tensor, out: Tensor | None) -> Tensor:
    """z + change w [b, M, C]; z may be wider than the others."""
    flat = None if out is None else out.flatten(0, 1)
    if z.dtype == w.dtype:
        result = torch.addmm(z.flatten(0, 1), change.flatten(0, 1), w, out=flat)
    else:
        result = torch.add(z.flatten(0, 1), torch.mm(change.flatten(0, 1), w), out=flat)
    return result.view_as(z)


def _outer(a: Tensor, b: Tensor, out: Tensor, is_first: bool) -> None:
    """Set `out` to Σ over samples and positions of a bᵀ, in its dtype; add to it where that is not the first."""
    a, b = a.flatten(0, 1).to(out.dtype).t(), b.flatten(0, 1).to(out.dtype)
    torch.addmm(out, a, b, beta=0 if is_first else 1, out=out)


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32."""
    if a.dtype == torch.float32:
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())
