"""The vendor's attention in half precision: where a stage has few sub-blocks and wide features, nothing is faster."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from nonloc._torch_compat import attention_order
from nonloc.ops.affinity import Affinity
from nonloc.ops.arithmetic import in_dtype
from nonloc.ops.fused.operators import check_first_derivative

WIDEST = 256  # d of the features and r of the hidden channels
# cuDNN's is the fastest on an H200, where it applies (`docs/performance.md`).
KERNELS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


def propagate(
    affinity: Affinity, z: Tensor, pairs: Sequence[tuple[Tensor, Tensor | None]], differences: bool
) -> Tensor:
    """A whole stage, with products and maps in the features' dtype and the state in z's."""
    batch, positions, _ = z.shape
    dtype = affinity.left.dtype
    query, key = affinity.left.unsqueeze(1), affinity.right.unsqueeze(1)
    state = z.flatten(0, 1)
    with attention_order(KERNELS):
        for outer, inner in pairs:
            hidden = in_dtype(state, dtype)
            if inner is not None:
                hidden = torch.mm(hidden, in_dtype(inner, dtype).t())
            value = hidden.view(batch, 1, positions, hidden.shape[1])
            change = scaled_dot_product_attention(query, key, value, scale=affinity.scale).flatten(0, 2)
            if differences:
                change = change - hidden
            w = in_dtype(outer, dtype).t()
            state = torch.addmm(state, change, w) if state.dtype == dtype else state + torch.mm(change, w)
    return _guarded(state.view(z.shape))


def product(affinity: Affinity, z: Tensor) -> Tensor:
    """K z [B, M, C], in the features' dtype."""
    dtype = affinity.left.dtype
    query, key = affinity.left.unsqueeze(1), affinity.right.unsqueeze(1)
    with attention_order(KERNELS):
        pieces = [
            scaled_dot_product_attention(query, key, piece.to(dtype).unsqueeze(1), scale=affinity.scale)
            for piece in z.split(WIDEST, -1)
        ]
    return _guarded(pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)).squeeze(1)


def _guarded(x: Tensor) -> Tensor:
    """x; a second derivative, which torch's attention lacks, is an error that names the fix."""
    if not torch.compiler.is_compiling() and (node := x.grad_fn) is not None:
        node.register_prehook(lambda _: check_first_derivative())
    return x
