"""NormReLU: batch normalisation and the ReLU after it as one module, fused on CUDA."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonloc._lazy import triton_module
from nonloc._torch_compat import NormBase, needs_plain_torch

FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_CHANNELS = 1024


class NormReLU(nn.BatchNorm2d):
    """relu(BN(x)) for features [B, C, H, W], with the parameters, buffers and names of `nn.BatchNorm2d`.

    On CUDA, for channels-last features of at most 1024 channels, it is two launches forward and two backward
    (`norm_relu_kernels`), with sums in float32 and the same result every time; elsewhere it is plain torch.
    `torch.compile` gets the plain form, which it fuses by itself.

    fused  False keeps to plain torch on CUDA too, which can be differentiated twice
    """

    fused: bool = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fuses(x):
            return self.sum_and_activation(x)[1]
        return super().forward(x).relu()

    def sum_and_activation(
        self, x: Tensor, added: Tensor | None = None, stride: int = 1
    ) -> tuple[Tensor, Tensor]:
        """(x + added, relu(BN(x + added)) at every stride-th pixel), without a pass over the features for either.

        What BN does depends on all pixels, also with a stride.
        """
        is_alike = added is None or (added.shape == x.shape and added.dtype == x.dtype and self.fuses(added))
        if is_alike and self.fuses(x):
            if added is not None and not self.training:
                x, added = x + added, None
            with torch.cuda.device(x.device):
                total, out = _Fused.apply(x, added, self.weight, self.bias, self, stride)
            return x if added is None else total, out
        x = x if added is None else x + added
        return x, self(x)[:, :, ::stride, ::stride]

    def fuses(self, x: Tensor) -> bool:
        """Whether x is normalised by the fused kernels."""
        if not (self.fused and x.is_cuda) or needs_plain_torch() or _launches() is None:
            return False
        state = (self.weight, self.bias, self.running_mean, self.running_var)
        return (
            x.dim() == 4
            and x.dtype in FUSED_DTYPES
            and x.is_contiguous(memory_format=torch.channels_last)
            and self.num_features == x.shape[1] <= MAX_CHANNELS
            and 2 * x.shape[1] <= x.numel() < 2**31
            and self.momentum is not None
            and all(value is not None and value.dtype == torch.float32 for value in state)
        )


def activated(norm: nn.Module, x: Tensor) -> Tensor:
    """relu(norm(x)): of a NormReLU, or of a plain norm that was put in its place.

    `nn.SyncBatchNorm.convert_sync_batchnorm`, and others that know a BatchNorm2d by its class, leave the ReLU behind.
    """
    y = norm(x)
    is_plain = isinstance(norm, (NormBase, nn.GroupNorm)) and not isinstance(norm, NormReLU)
    return y.relu() if is_plain else y


class _Fused(torch.autograd.Function):
    """(the sum, None if there is nothing to add; the activation)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        norm: NormReLU,
        stride: int,
    ) -> tuple[Tensor | None, Tensor]:
        launch = _launches()
        assert launch is not None
        mean, variance = norm.running_mean, norm.running_var
        ctx.set_materialize_grads(False)
        ctx.is_training, ctx.epsilon, ctx.stride = norm.training, norm.eps, stride
        ctx.has_added = added is not None
        if norm.training:
            buffers = (mean, variance, norm.num_batches_tracked)
            x, out, mean, inverse = launch.moments_and_activation(
                x, weight, bias, *buffers, norm.momentum, norm.eps, added=added, stride=stride
            )
            torch.autograd.graph.increment_version([buffer for buffer in buffers if buffer is not None])
            ctx.save_for_backward(x, weight, bias, mean, inverse)
        else:
            out = launch.activation(x, weight, bias, mean, variance, norm.eps, stride=stride)
            ctx.save_for_backward(x, weight, bias, mean, variance)
        return (x if added is not None else None), out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, more: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        launch = _launches()
        assert launch is not None
        if grad is None:
            return more, more if ctx.has_added else None, None, None, None, None
        x, weight, bias, mean, spread = ctx.saved_tensors
        inverse = spread if ctx.is_training else (spread + ctx.epsilon).rsqrt()
        grad_x, grad_weight, grad_bias = launch.gradients(
            x,
            grad.contiguous(memory_format=torch.channels_last),
            weight,
            bias,
            mean,
            inverse,
            through_statistics=ctx.is_training,
            more=None if more is None else more.contiguous(memory_format=torch.channels_last),
            stride=ctx.stride,
        )
        return grad_x, grad_x if ctx.has_added else None, grad_weight, grad_bias, None, None


def _launches() -> ModuleType | None:
    return triton_module("nonloc_paper.fast.norm_relu_launch")
