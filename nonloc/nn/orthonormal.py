"""orthonormal_part: Q of the orthonormal columns of [V; I], which a CUDA graph can hold.

cuSOLVER, which torch's QR calls, does not promise that it can be captured. On CUDA a small V therefore goes through a
kernel of its own, a modified Gram–Schmidt in float64, whose loss of orthogonality, about 1e-16 σ(V), is far below a
rounding of float32.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nonloc._lazy import triton_module
from nonloc._torch_compat import needs_plain_torch

LARGEST_TILE = 2**14  # numbers that one program holds


def orthonormal_part(v: Tensor) -> Tensor:
    """Q [C, r] with [V; I] = [Q; P] R for V [C, r] in float32 or float64: QQᵀ = V (I + VᵀV)⁻¹ Vᵀ.

    R is upper triangular; the signs of its diagonal, and so those of Q's columns, depend on who computes it.
    """
    if v.is_cuda and v.dtype == torch.float32 and not needs_plain_torch() and _fits(v):
        return _Columns.apply(v)
    identity = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
    return torch.linalg.qr(torch.cat([v, identity])).Q[: v.shape[0]]


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        kernels = _kernels()
        assert kernels is not None
        q, p = kernels.columns(v)
        ctx.save_for_backward(q, p)
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor) -> Tensor:
        q, p = ctx.saved_tensors
        with torch.autocast(dq.device.type, enabled=False):
            return gradient(dq.to(q.dtype), q, p)


def gradient(dq: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """dV from dQ: that of a QR decomposition of [V; I] whose P and R nobody looks at, with P = R⁻¹."""
    lower = -(dq.mT @ q).tril()
    return (dq + q @ (lower + lower.tril(-1).mT)) @ p.mT


def _fits(v: Tensor) -> bool:
    rows, columns = (1 << (size - 1).bit_length() for size in (sum(v.shape), v.shape[1]))
    return v.numel() > 0 and rows * columns <= LARGEST_TILE and _kernels() is not None


def _kernels() -> ModuleType | None:
    return triton_module("nonloc.nn.orthonormal_kernel")
