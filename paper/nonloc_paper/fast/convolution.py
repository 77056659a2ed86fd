"""Run an `nn.Conv2d` through Triton kernels where few channels leave cuDNN idle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonloc._torch_compat import is_untouched, needs_plain_torch, triton_module

DTYPES = (torch.bfloat16, torch.float16)

# The most channels for which the kernels do a pass, as measured on an H200 with batches of 128. For a 3×3 kernel the
# larger of input and output channels counts; for a 1×1 kernel, which is a product of matrices, the smaller.
MOST_CHANNELS = {
    "forward": {1: 32, 3: 128},
    "input_gradient": {1: 32, 3: 128},
    "weight_gradient": {1: 256, 3: 128},
}


def run_convolution(layer: Any, x: Tensor, *, is_thinned: bool = False) -> Tensor:
    """Return layer(x), through the kernels where they apply, else by plain torch.

    The kernels take channels-last images on CUDA in half precision, also by autocast. The layer is an `nn.Conv2d`
    without bias or hooks that keeps the size of the images, 1×1 or 3×3. They sum in float32 and are deterministic.

    is_thinned  x has only the pixels that the stride of a 1×1 layer selects
    """
    if _is_fast(layer, x) and (is_thinned or layer.stride == (1, 1)):
        with torch.cuda.device(x.device):
            return FastConvolution.apply(x.to(_dtype(x)), layer.weight.to(_dtype(layer.weight)))
    return F.conv2d(x, layer.weight, layer.bias, groups=layer.groups) if is_thinned else layer(x)


def is_own(name: str, weight: Tensor) -> bool:
    """Return whether the kernels do the pass `name` for weights [O, C, K, K]."""
    out_channels, channels, kernel, _ = weight.shape
    count = min(channels, out_channels) if kernel == 1 else max(channels, out_channels)
    return count <= MOST_CHANNELS[name].get(kernel, 0)


class FastConvolution(torch.autograd.Function):
    """The convolution with stride 1; each pass by the kernels or by torch, as `is_own` says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if is_own("forward", weight):
            return _kernels().convolve(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[2] // 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = grad_weight = None
        if needs_x and is_own("input_gradient", weight):
            grad_x = _kernels().input_gradient(grad, weight)
        if needs_weight and is_own("weight_gradient", weight):
            grad_weight = _kernels().weight_gradient(x, grad, weight)
        missing = [needs_x and grad_x is None, needs_weight and grad_weight is None]
        if any(missing):
            padding = [weight.shape[2] // 2] * 2
            others = torch.ops.aten.convolution_backward(
                grad, x, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1, [*missing, False]
            )
            grad_x = others[0] if missing[0] else grad_x
            grad_weight = others[1] if missing[1] else grad_weight
        return grad_x, grad_weight


def _is_fast(layer: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels do at least one pass of `layer` at stride 1."""
    if not x.is_cuda or needs_plain_torch() or _kernels() is None or not is_untouched(layer, nn.Conv2d):
        return False
    weight, (kernel, other) = layer.weight, layer.kernel_size
    pad = kernel // 2
    options = (layer.padding, layer.padding_mode, layer.dilation, layer.groups)
    if layer.bias is not None or kernel != other or options != ((pad, pad), "zeros", (1, 1), 1):
        return False
    return (
        x.dim() == 4
        and x.shape[1] == layer.in_channels
        and x.device == weight.device
        and _dtype(x) == _dtype(weight) in DTYPES
        and x.is_contiguous(memory_format=torch.channels_last)
        and 0 < x.numel() // layer.in_channels * max(layer.in_channels, layer.out_channels) < 2**31
        and _has_own_pass(weight, x)
    )


def _has_own_pass(weight: Tensor, x: Tensor) -> bool:
    if is_own("forward", weight):
        return True
    return torch.is_grad_enabled() and (
        (x.requires_grad and is_own("input_gradient", weight))
        or (weight.requires_grad and is_own("weight_gradient", weight))
    )


def _dtype(value: Tensor) -> torch.dtype:
    """Return the dtype in which `torch.conv2d` would compute: autocast casts every float narrower than float64."""
    is_cast = value.is_floating_point() and value.dtype != torch.float64
    if is_cast and torch.is_autocast_enabled(value.device.type):
        return torch.get_autocast_dtype(value.device.type)
    return value.dtype


def _kernels() -> Any:
    """Return the module with the kernels, or None where Triton is not installed."""
    return triton_module("nonloc_paper.fast.convolution_kernels")
