"""Problems for the kernels, with their answers by plain torch in float64, and memory that is NaN until written."""

from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F

from nonloc_paper import fast
from nonloc_paper.fast import convolution, norm_relu

PASSES = ("forward", "input_gradient", "weight_gradient")
EPSILON, MOMENTUM = 1e-5, 0.1


def last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last)


def convolution_problem(kernel, channels, out_channels, batch, height, width, dtype):
    """Images, weights and a gradient to the output; channels-last."""
    x = torch.randn(batch, channels, height, width)
    grad = torch.randn(batch, out_channels, height, width)
    weight = torch.randn(out_channels, channels, kernel, kernel) / (kernel * channels**0.5)
    return [last(t.to(dtype)) for t in (x, weight, grad)]


def exact_convolution(x, weight, grad):
    """The convolution, and the gradients to x and to the weights."""
    x, weight = (t.detach().double().requires_grad_() for t in (x, weight))
    out = F.conv2d(x, weight, padding=weight.shape[2] // 2)
    return [out.detach(), *torch.autograd.grad(out, [x, weight], grad.double())]


def norm_problem(shape, dtype, mean=0.0, deviation=1.0):
    """Features; weight and bias; running mean and variance."""
    x = (mean + deviation * torch.randn(shape)).to(dtype)
    channels = shape[1]
    return x, (torch.randn(channels), torch.randn(channels)), (torch.randn(channels), torch.rand(channels))


def exact_norm(x, grad, affine, running, *, training=True, more=None, stride=1):
    """The activation, the gradients to x, weight and bias, and the running statistics afterwards."""
    leaves = [t.detach().double().requires_grad_() for t in (x, *affine)]
    mean, var = (t.double().clone() for t in running)
    out = F.batch_norm(leaves[0], mean, var, *leaves[1:], training, MOMENTUM, EPSILON).relu()
    out = out[:, :, ::stride, ::stride]
    loss = (out * grad.double()).sum() + (0 if more is None else (leaves[0] * more.double()).sum())
    return [out.detach(), *torch.autograd.grad(loss, leaves), mean, var]


def worst(found, exact):
    """The largest error, as a part of the largest entry."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def check_norm(found, exact, dtype, tolerance):
    """Assert that each result is within `tolerance`, by dtype, of its largest entry."""
    names = ("out", "x", "weight", "bias", "running_mean", "running_var")
    for name, one, other in zip(names, found, exact, strict=False):
        # With two pixels the gradient to x is a difference of equal numbers.
        scale = 1 if name == "x" and other.numel() == 2 else float(other.abs().max())
        allowed = tolerance[dtype if one.dtype == dtype else torch.float32]
        assert float((one.double() - other).abs().max()) <= allowed * scale, name


@contextmanager
def poisoned_memory():
    """Inside, new memory is NaN until it is written."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def surrounded(values):
    """The same numbers, channels-last, with NaN before and after them in memory."""
    batch, channels, height, width = values.shape
    room = torch.full((values.numel() + 4096,), torch.nan, dtype=values.dtype)
    inside = room[2048 : 2048 + values.numel()].view(batch, height, width, channels)
    return inside.permute(0, 3, 1, 2).copy_(values)


LAUNCHES = {
    convolution: ("convolve", *PASSES[1:], "pointwise_gradients", "feature_gradient"),
    norm_relu: ("moments_and_activation", "activation", "gradients"),
}


def record_launches(monkeypatch, kernels):
    """Return a list that gets the name of every launch; `kernels` {module: its module of kernels}."""
    names = []

    def record(name, launch):
        return lambda *arguments, **options: names.append(name) or launch(*arguments, **options)

    for module, launches in kernels.items():
        for name in LAUNCHES[module]:
            monkeypatch.setattr(launches, name, record(name, getattr(launches, name)))
    return names


def interpret_launches(monkeypatch, kernels):
    """Let channels-last features on the CPU go through `kernels`, which are interpreted; return the launches."""
    for module, launches in kernels.items():
        monkeypatch.setattr(module, "_kernels", lambda launches=launches: launches)
        monkeypatch.setattr(
            module, "_is_fast", lambda layer, x: x.is_contiguous(memory_format=torch.channels_last)
        )
    monkeypatch.setattr(fast, "can_fuse", lambda x: x.is_contiguous(memory_format=torch.channels_last))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return record_launches(monkeypatch, kernels)
