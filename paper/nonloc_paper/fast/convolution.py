"""Run an `nn.Conv2d` through Triton kernels where few channels leave cuDNN idle."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonloc._torch_compat import is_untouched, needs_plain_torch, triton_module
from nonloc_paper.fast import norm_relu

DTYPES = (torch.bfloat16, torch.float16)

# The most channels for which the kernels do a pass, as measured on an H200 with batches of 128. For a 3×3 kernel the
# larger of input and output channels counts; for a 1×1 kernel, which is a product of matrices, the smaller.
MOST_CHANNELS = {
    "forward": {1: 32, 3: 128},
    "input_gradient": {1: 32, 3: 128},
    "weight_gradient": {1: 256, 3: 128},
}
# Of input and output channels, for which they do all passes with norms inside.
MOST_WITH_NORMS = {1: 256, 3: 128}


def run_convolution(layer: Any, x: Tensor, *, is_thinned: bool = False) -> Tensor:
    """Return layer(x), through the kernels where they apply, else by plain torch.

    The kernels take channels-last images on CUDA in half precision, also by autocast. The layer is an `nn.Conv2d`
    without bias or hooks that keeps the size of the images, 1×1 or 3×3. They sum in float32 and are deterministic.

    is_thinned  x has only the pixels that the stride of a 1×1 layer selects
    """
    if _is_fast(layer, x) and (is_thinned or layer.stride == (1, 1)):
        with torch.cuda.device(x.device):
            return FastConvolution.apply(x.to(_dtype(x)), layer.weight.to(_dtype(layer.weight)))[0]
    return F.conv2d(x, layer.weight, layer.bias, groups=layer.groups) if is_thinned else layer(x)


def is_own(name: str, weight: Tensor) -> bool:
    """Return whether the kernels do the pass `name` for weights [O, C, K, K]."""
    out_channels, channels, kernel, _ = weight.shape
    count = min(channels, out_channels) if kernel == 1 else max(channels, out_channels)
    return count <= MOST_CHANNELS[name].get(kernel, 0)


def run_norm_convolution(
    layer: nn.Conv2d,
    x: Tensor,
    *,
    norm: nn.BatchNorm2d | None = None,
    known: Tensor | None = None,
    added: Tensor | None = None,
    following: nn.BatchNorm2d | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return layer(relu(norm(x))) + added; the statistics of it for the norm that follows; and x.

    For what `can_fuse` and `takes_norms` accept, and plain norms in training.

    norm, known  None: x as it is. `known` is what this function returned as the statistics of x
    added        must be the x that this function returned, or no input of it, so that its gradient is added in passing
    """
    affine = (None, None) if norm is None else (norm.weight, norm.bias)
    with torch.cuda.device(x.device):
        return FastConvolution.apply(x, layer.weight.to(x.dtype), added, *affine, known, following)


class FastConvolution(torch.autograd.Function):
    """The convolution with stride 1; each pass by the kernels or by torch, as `is_own` says.

    With a norm before or after it the kernels do every pass. A 1×1 convolution then activates what it reads; a 3×3 one
    would do that nine times, so its activation is stored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        added: Tensor | None = None,
        norm_weight: Tensor | None = None,
        norm_bias: Tensor | None = None,
        known: Tensor | None = None,
        following: Any = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.has_norm, ctx.has_added = known is not None, added is not None
        active, inside = _activate(x, weight, norm_weight, norm_bias, known)
        ctx.save_for_backward(x, None if active is x else active, weight, norm_weight, norm_bias, known)
        if known is None and following is None and not is_own("forward", weight):
            return F.conv2d(x, weight, padding=weight.shape[2] // 2), None, None
        out, parts, part_rows = _kernels().convolve(
            active, weight, norm=inside, added=added, has_moments=following is not None
        )
        found = None
        if parts is not None:
            buffers = [following.running_mean, following.running_var, following.num_batches_tracked]
            found = norm_relu._kernels().merge_moments(
                parts, out[:, 0].numel(), part_rows, *buffers, following.momentum, following.eps
            )
            torch.autograd.graph.increment_version(buffers)
            ctx.mark_non_differentiable(found)
        return out, found, None if known is None else x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, _: Any, more: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return more, *[None] * 6
        x, active, weight, norm_weight, norm_bias, known = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grad = grad.contiguous(memory_format=torch.channels_last)
        added = grad if ctx.has_added else None
        if not ctx.has_norm:
            grads = _plain_gradients(x, weight, grad, needs_x, needs_weight)
            return *grads, added, None, None, None, None
        kernels = _kernels()
        norm = kernels.Norm(*known, norm_weight, norm_bias)
        more = None if more is None else more.contiguous(memory_format=torch.channels_last)
        if active is None:
            # A gradient to the activation that has more channels than `grad` is not worth storing.
            stores = weight.shape[0] >= weight.shape[1]
            grad_active, found, grad_weight = kernels.pointwise_gradients(
                grad, weight, norm, x, stores=stores
            )
        else:
            grad_active, found = kernels.input_gradient(grad, weight, norm=norm, features=x)
            grad_weight = kernels.weight_gradient(active, grad, weight) if needs_weight else None
        if grad_active is None:
            totals = norm_relu._kernels().merge_sums(found)
            grad_bias, grad_scale = totals
            grad_x = kernels.feature_gradient(grad, weight, norm, x, totals, added=more)
        else:
            grad_x, grad_scale, grad_bias = norm_relu._kernels().gradients(
                x, grad_active, norm_weight, norm_bias, *known, more=more, found=found
            )
        return grad_x, grad_weight, added, grad_scale, grad_bias, None, None


def _activate(
    x: Tensor, weight: Tensor, norm_weight: Tensor | None, norm_bias: Tensor | None, known: Tensor | None
) -> tuple[Tensor, Any]:
    """Return what the kernel reads, and the norm that it still has to go through."""
    if known is None:
        return x, None
    if weight.shape[2] == 1:
        return x, _kernels().Norm(*known, norm_weight, norm_bias)
    mean, inverse = known
    return norm_relu._kernels().activation(x, norm_weight, norm_bias, mean, None, 0.0, inverse=inverse), None


def _plain_gradients(
    x: Tensor, weight: Tensor, grad: Tensor, needs_x: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    grad_x = grad_weight = None
    if needs_x and is_own("input_gradient", weight):
        grad_x, _ = _kernels().input_gradient(grad, weight)
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
    if not is_plain_convolution(layer) or not _has_layout(x):
        return False
    weight = layer.weight
    return (
        x.shape[1] == layer.in_channels
        and x.device == weight.device
        and _dtype(x) == _dtype(weight) in DTYPES
        and 0 < x.numel() // layer.in_channels * max(layer.in_channels, layer.out_channels) < 2**31
        and _has_own_pass(weight, x)
    )


def is_plain_convolution(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether the kernels know this convolution, whatever its input and stride."""
    if not is_untouched(layer, nn.Conv2d) or layer.bias is not None:
        return False
    kernel, other = layer.kernel_size
    pad = kernel // 2
    options = (layer.padding, layer.padding_mode, layer.dilation, layer.groups)
    return kernel == other and options == ((pad, pad), "zeros", (1, 1), 1)


def takes_norms(layer: nn.Module, x: Tensor) -> bool:
    """Return whether the kernels do every pass of the layer, with norms inside, for features of x's kind."""
    if not is_plain_convolution(layer):
        return False
    count = max(layer.in_channels, layer.out_channels)
    return count <= MOST_WITH_NORMS.get(layer.kernel_size[0], 0) and _dtype(layer.weight) == x.dtype


def can_fuse(x: Tensor) -> bool:
    """Return whether norms can be inside convolutions of features like x."""
    return (
        _has_layout(x)
        and x.dtype == _dtype(x)
        and x.dtype in DTYPES
        # Enough for a variance, also after a stride of 2.
        and 8 <= x[:, :1].numel() < 2**31 // max(MOST_WITH_NORMS.values())
    )


def _has_layout(x: Tensor) -> bool:
    """Return whether x is where kernels can run, and images in channels-last order."""
    can_run = x.is_cuda and not needs_plain_torch() and _kernels() is not None
    return can_run and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


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
