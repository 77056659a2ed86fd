"""Convolution: an `nn.Conv2d` whose passes are our own kernels where few channels leave cuDNN idle."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonloc._lazy import triton_module
from nonloc._torch_compat import needs_plain_torch

OWN_DTYPES = (torch.bfloat16, torch.float16)

# As measured on an H200 with batches of 128: up to how many channels our own kernels do a pass. Of a 3×3 kernel the
# more of input and output count, of a 1×1 kernel, which is a mere product of matrices, the fewer.
MOST_CHANNELS = {
    "forward": {1: 32, 3: 128},
    "input_gradient": {1: 32, 3: 128},
    "weight_gradient": {1: 256, 3: 128},
}


def is_own(name: str, weight: Tensor) -> bool:
    """Whether our own kernels do the pass `name` for weights [O, C, K, K]."""
    out_channels, channels, kernel, _ = weight.shape
    count = min(channels, out_channels) if kernel == 1 else max(channels, out_channels)
    return count <= MOST_CHANNELS[name].get(kernel, 0)


class Convolution(nn.Conv2d):
    """A convolution of images [B, C, H, W], with the parameters, names and numbers of `nn.Conv2d`.

    On CUDA, in half precision (also by autocast), for channels-last images, a 1×1 or 3×3 kernel with stride 1 that
    keeps the images' size and has no bias goes through the kernels of `convolution_kernels`, pass by pass as
    `MOST_CHANNELS` says: sums in float32, and the same result every time. Everything else is plain torch, and so is
    `torch.compile`.

    fused  False keeps to plain torch on CUDA too, which can be differentiated twice
    """

    fused: bool = True

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == (1, 1) and self.fuses(x):
            return self._fused(x)
        return super().forward(x)

    def without_stride(self, x: Tensor) -> Tensor:
        """The same of images whose pixels that the stride steps over have been left out; the kernel is 1×1."""
        if self.fuses(x):
            return self._fused(x)
        return F.conv2d(x, self.weight, self.bias, groups=self.groups)

    def fuses(self, x: Tensor) -> bool:
        """Whether x, were the stride 1, is convolved by kernels of our own, or its gradient is found by them."""
        if not (self.fused and x.is_cuda) or needs_plain_torch() or _launches() is None:
            return False
        weight, kernel = self.weight, self.kernel_size[0]
        return (
            x.dim() == 4
            and x.shape[1] == self.in_channels
            and x.device == weight.device
            and _dtype_of(x) == _dtype_of(weight) in OWN_DTYPES
            and x.is_contiguous(memory_format=torch.channels_last)
            and self.kernel_size == (kernel, kernel)
            and self.padding == (kernel // 2, kernel // 2)
            and self.padding_mode == "zeros"
            and self.dilation == (1, 1)
            and self.groups == 1
            and self.bias is None
            and 0 < x.numel() // self.in_channels * max(self.in_channels, self.out_channels) < 2**31
            and self._has_own_pass(x)
        )

    def _has_own_pass(self, x: Tensor) -> bool:
        if is_own("forward", self.weight):
            return True
        return torch.is_grad_enabled() and (
            (x.requires_grad and is_own("input_gradient", self.weight))
            or (self.weight.requires_grad and is_own("weight_gradient", self.weight))
        )

    def _fused(self, x: Tensor) -> Tensor:
        with torch.cuda.device(x.device):
            return _Fused.apply(x.to(_dtype_of(x)), self.weight.to(_dtype_of(self.weight)))


def _dtype_of(value: Tensor) -> torch.dtype:
    """In what `torch.conv2d` would compute with it: under autocast all that is narrower than float64 becomes one."""
    is_cast = value.is_floating_point() and value.dtype != torch.float64
    if is_cast and torch.is_autocast_enabled(value.device.type):
        return torch.get_autocast_dtype(value.device.type)
    return value.dtype


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        launch = _launches()
        assert launch is not None
        ctx.save_for_backward(x, weight)
        if is_own("forward", weight):
            return launch.convolve(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[2] // 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        launch = _launches()
        assert launch is not None
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0] and is_own("input_gradient", weight):
            grad_x = launch.input_gradient(grad, weight)
        if ctx.needs_input_grad[1] and is_own("weight_gradient", weight):
            grad_weight = launch.weight_gradient(x, grad, weight)
        left = (ctx.needs_input_grad[0] and grad_x is None, ctx.needs_input_grad[1] and grad_weight is None)
        if any(left):
            others = torch_gradients(x, grad, weight, left)
            grad_x = others[0] if left[0] else grad_x
            grad_weight = others[1] if left[1] else grad_weight
        return grad_x, grad_weight


def torch_gradients(
    x: Tensor, grad: Tensor, weight: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients to x and to the weight that are wanted, by torch's own kernels; the images keep their size."""
    padding = [weight.shape[2] // 2] * 2
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, [*wanted, False]
    )
    return grad_x, grad_weight


def _launches() -> ModuleType | None:
    return triton_module("nonloc_paper.fast.convolution_launch")
