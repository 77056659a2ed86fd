"""accelerate: run a PreResNet or a Restorer through Triton kernels on CUDA.

The networks are plain torch. `accelerate` replaces the classes of their modules by subclasses with another forward,
which computes the same function with fewer and faster launches:

- batch norm and ReLU are one operation, and add the two terms of the residual block before them;
- convolutions of few channels have their own kernels;
- before a strided 1×1 convolution, only the pixels that it reads are activated.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from nonloc._torch_compat import is_untouched
from nonloc_paper.fast.convolution import run_convolution
from nonloc_paper.fast.norm_relu import run_norm_relu, run_sum_norm_relu
from nonloc_paper.networks.preresnet import PreResNet
from nonloc_paper.networks.residual import ResidualBlock, Trunk
from nonloc_paper.networks.restorer import Restorer

_M = TypeVar("_M", bound=nn.Module)


def accelerate(model: _M) -> _M:
    """Make every PreResNet, Restorer, Trunk and ResidualBlock in `model` use the kernels, in place; return `model`.

    Parameters, buffers, their names and all hooks stay. A module with hooks is called, and so is a module that took
    the place of a norm or a convolution. Where the kernels do not apply (on the CPU, under `torch.compile` and
    `torch.func`, for gradients in eval mode), the network computes exactly what it did before.
    """
    for module in model.modules():
        if type(module) in _FAST:
            module.__class__ = _FAST[type(module)]
    return model


class FastResidualBlock(ResidualBlock):
    """ResidualBlock that can take its input, and return its output, as two terms of a sum."""

    def forward(self, x: Tensor) -> Tensor:
        y, shortcut = self.terms(x)
        return y + shortcut

    def terms(self, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return F and the shortcut of x, or of x + added; the output of the block is their sum.

        On CUDA the batch norm that follows adds them while it computes its statistics.
        """
        norm, first, shortcut = self.norms[0], self.convolutions[0], self.shortcut
        # The stride, if both modules that read the first activation step over pixels.
        stride = 1
        if is_untouched(first, nn.Conv2d) and is_untouched(shortcut, nn.Conv2d):
            stride = first.stride[0] if first.kernel_size == (1, 1) else 1
        x, active = run_sum_norm_relu(norm, x, added, stride)
        is_thinned = active.shape[2:] != x.shape[2:]
        y = run_convolution(first, active, is_thinned=is_thinned)
        if shortcut is None:
            other = x
        elif self.is_public:
            other = run_convolution(shortcut, x)
        else:
            other = run_convolution(shortcut, active, is_thinned=is_thinned)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:], strict=True):
            y = run_convolution(convolution, run_norm_relu(norm, y))
        return y, other


class FastTrunk(Trunk):
    """Trunk that passes the output of a block to the next block as two terms, and adds them for a stage."""

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor | None = None
        for number, block in enumerate(self.blocks, start=1):
            if is_untouched(block, FastResidualBlock):
                x, added = block.terms(x, added)
            else:
                x, added = block(x if added is None else x + added), None
            if str(number) in self.stages:
                x, added = self.stages[str(number)](x if added is None else x + added), None
        return x if added is None else x + added


class FastPreResNet(PreResNet):
    """PreResNet with a fast stem and a fast last norm."""

    def forward(self, x: Tensor) -> Tensor:
        features = run_norm_relu(self.norm, self.trunk(run_convolution(self.stem, x)))
        return self.head(features.mean((2, 3)))


class FastRestorer(Restorer):
    """Restorer with a fast last norm."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.head(run_norm_relu(self.norm, self.trunk(self.stem(x))))


_FAST: dict[type[nn.Module], type[nn.Module]] = {
    PreResNet: FastPreResNet,
    ResidualBlock: FastResidualBlock,
    Restorer: FastRestorer,
    Trunk: FastTrunk,
}
