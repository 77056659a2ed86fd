"""What Convolution is held to: torch's convolution and its gradients, in float64."""

import torch
import torch.nn.functional as F

PASSES = ("forward", "input_gradient", "weight_gradient")


def problem(kernel, channels, out_channels, batch, height, width, dtype):
    """Images, weights and a gradient to the output; channels-last, as convolutions meet them."""
    x = torch.randn(batch, channels, height, width)
    grad = torch.randn(batch, out_channels, height, width)
    weight = torch.randn(out_channels, channels, kernel, kernel) / (kernel * channels**0.5)
    return [t.to(dtype).contiguous(memory_format=torch.channels_last) for t in (x, weight, grad)]


def expected(x, weight, grad):
    """In float64: the convolution, the gradients to x and to the weights."""
    x, weight = (t.detach().double().requires_grad_() for t in (x, weight))
    out = F.conv2d(x, weight, padding=weight.shape[2] // 2)
    return [out.detach(), *torch.autograd.grad(out, [x, weight], grad.double())]


def worst(found, wanted):
    """The largest error, as a part of the largest entry."""
    return float((found.double() - wanted).abs().max() / wanted.abs().max())
