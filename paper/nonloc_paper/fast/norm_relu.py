"""Run an `nn.BatchNorm2d` and the ReLU after it through Triton kernels, with the residual sum before them."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonloc._torch_compat import is_untouched, needs_plain_torch, triton_module

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 1024


def run_norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """Return relu(norm(x)), through the kernels where they apply, else by plain torch."""
    return run_sum_norm_relu(norm, x)[1]


def run_sum_norm_relu(
    norm: Any, x: Tensor, added: Tensor | None = None, stride: int = 1
) -> tuple[Tensor, Tensor]:
    """Return (x + added, relu(norm(x + added))), through the kernels where they apply, else by plain torch.

    The kernels take channels-last features on CUDA, and an `nn.BatchNorm2d` without hooks. In training they add inside
    the norm's first launch. They are deterministic.

    stride  the kernels activate only every stride-th pixel, in both directions; plain torch activates all
    """
    if added is not None:
        is_alike = added.shape == x.shape and added.dtype == x.dtype
        if not (is_alike and norm.training and _is_fast(norm, x) and _is_fast(norm, added)):
            x, added = x + added, None
    if not _is_fast(norm, x):
        return x, F.relu(norm(x))
    with torch.cuda.device(x.device):
        if norm.training:
            total, out = FastNormReLU.apply(x, added, norm.weight, norm.bias, norm, stride)
            return x if added is None else total, out
        state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        return x, _kernels().activation(x, *state, norm.eps, stride=stride)


class FastNormReLU(torch.autograd.Function):
    """Training: (the sum, or None if there is nothing to add; the activation)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, norm: Any, stride: int
    ) -> tuple[Tensor | None, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.stride, ctx.has_added = stride, added is not None
        buffers = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        x, out, mean, inverse = _kernels().moments_and_activation(
            x, weight, bias, *buffers, norm.momentum, norm.eps, added=added, stride=stride
        )
        torch.autograd.graph.increment_version(buffers)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return (x if added is not None else None), out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, more: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return more, more if ctx.has_added else None, None, None, None, None
        x, weight, bias, mean, inverse = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        more = None if more is None else more.contiguous(memory_format=torch.channels_last)
        grad_x, grad_weight, grad_bias = _kernels().gradients(
            x, grad, weight, bias, mean, inverse, more=more, stride=ctx.stride
        )
        return grad_x, grad_x if ctx.has_added else None, grad_weight, grad_bias, None, None


def _is_fast(norm: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels normalise x: for training, or for evaluation without gradients."""
    if not x.is_cuda or needs_plain_torch() or _kernels() is None or not is_plain_norm(norm):
        return False
    return (
        x.dim() == 4
        and x.dtype in DTYPES
        and x.is_contiguous(memory_format=torch.channels_last)
        and norm.num_features == x.shape[1]
        and 2 * x.shape[1] <= x.numel() < 2**31
        and (
            norm.training
            or not torch.is_grad_enabled()
            or not any(t.requires_grad for t in (x, norm.weight, norm.bias))
        )
    )


def is_plain_norm(norm: nn.Module) -> TypeGuard[nn.BatchNorm2d]:
    """Return whether the kernels know this norm, whatever its input."""
    if not is_untouched(norm, nn.BatchNorm2d) or norm.momentum is None or norm.num_features > MAX_CHANNELS:
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return all(value is not None and value.dtype == torch.float32 for value in state)


def _kernels() -> Any:
    """Return the module with the kernels, or None where Triton is not installed."""
    return triton_module("nonloc_paper.fast.norm_relu_kernels")
