"""Compiles the convolutions of the paper's networks with their norms inside, and prints what each takes as JSON."""

import json

import torch

from compiled import compile_launch
from nonloc_paper.fast import convolution_kernels as kernels

# (kernel, channels in and out, size of the images), of batches of 128.
SHAPES = [
    (1, 64, 16, 32), (3, 16, 16, 32), (1, 16, 64, 32), (1, 128, 32, 16), (3, 32, 32, 16), (1, 32, 128, 16),
    (1, 256, 64, 8), (3, 64, 64, 8), (1, 64, 256, 8),
]  # fmt: skip


class Recorded:
    """In the place of a kernel: a launch is compiled only."""

    def __init__(self, kernel, results):
        self.kernel, self.results = kernel, results

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, **constants):
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
        self.results.append(compile_launch(self.kernel, arguments, constants, {"num_warps": 4} | options))


def last(*shape):
    return torch.empty(shape, dtype=torch.bfloat16).to(memory_format=torch.channels_last)


def main():
    found = {}
    plain = {name: kernel for name, kernel in vars(kernels).items() if name.endswith("_kernel")}
    for kernel, channels, out_channels, size in SHAPES:
        results = found[f"{kernel}×{kernel} {channels} to {out_channels}"] = []
        for name, one in plain.items():
            setattr(kernels, name, Recorded(one, results))
        x, grad = last(128, channels, size, size), last(128, out_channels, size, size)
        weight = last(out_channels, channels, kernel, kernel)
        norm = kernels.Norm(*(torch.empty(channels) for _ in range(4)))
        kernels.convolve(x, weight, norm=norm if kernel == 1 else None, added=grad, has_moments=True)
        kernels.weight_gradient(x, grad, weight)
        if kernel == 1:
            kernels.pointwise_gradients(grad, weight, norm, x)
            kernels.feature_gradient(grad, weight, norm, x, torch.empty(2, channels), added=x)
        else:
            kernels.input_gradient(grad, weight, norm=norm, features=x)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
