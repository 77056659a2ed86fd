"""What NormReLU is held to: batch normalisation and ReLU in float64."""

import torch
import torch.nn.functional as F
from torch import nn

from nonloc_paper.fast.norm_relu import NormReLU

EPSILON = 1e-5
MOMENTUM = 0.1


def problem(shape, dtype, mean=0.0, deviation=1.0):
    """Features, and what BN knows: weight and bias, running mean and variance."""
    x = (mean + deviation * torch.randn(shape)).to(dtype)
    channels = shape[1]
    return x, (torch.randn(channels), torch.randn(channels)), (torch.randn(channels), torch.rand(channels))


def expected(x, grad, affine, running, *, training=True, more=None, stride=1):
    """In float64: the activation, the three gradients, and the running statistics afterwards."""
    leaves = [t.detach().double().requires_grad_() for t in (x, *affine)]
    mean, var = (t.double().clone() for t in running)
    out = F.batch_norm(leaves[0], mean, var, *leaves[1:], training, MOMENTUM, EPSILON).relu()
    out = out[:, :, ::stride, ::stride]
    loss = (out * grad.double()).sum() + (0 if more is None else (leaves[0] * more.double()).sum())
    return [out.detach(), *torch.autograd.grad(loss, leaves), mean, var]


def worst(found, wanted):
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


NAMES = ("out", "x", "weight", "bias", "running_mean", "running_var")


def check(found, wanted, dtype, tolerance):
    """Each within `tolerance`, by dtype, of the largest entry."""
    for name, one, other in zip(NAMES, found, wanted, strict=False):
        # Of two pixels the gradient to x is a difference of equals.
        scale = 1 if name == "x" and other.numel() == 2 else float(other.abs().max())
        allowed = tolerance[dtype if one.dtype == dtype else torch.float32]
        assert float((one.double() - other).abs().max()) <= allowed * scale, name


def twins(channels, **options):
    torch.manual_seed(4)
    module = NormReLU(channels, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    plain = nn.BatchNorm2d(channels, **options)
    plain.load_state_dict(module.state_dict())
    return module, plain
