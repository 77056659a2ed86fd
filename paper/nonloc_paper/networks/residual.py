"""Pre-activation residual blocks, and the trunk: blocks in a row with nonlocal stages between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

StageFactory = Callable[[int], nn.Module]
"""channels -> the module that follows a residual block with that many output channels"""


class ResidualBlock(nn.Module):
    """x + F(x), with batch norm and ReLU before every convolution of F; no convolution has a bias.

    Where the shape changes, the shortcut is a 1×1 convolution without batch norm. It takes the first activation of F,
    as in He's code for CIFAR. Where the shape does not change, the shortcut is x.

    plan       the convolutions of F: (kernel size, output channels)
    stride     of one convolution and of the shortcut
    is_public  False: the first convolution has the stride. True, as in the public PyTorch code: the second convolution
               has it, and the shortcut takes x, not its activation
    """

    def __init__(
        self, channels: int, plan: Sequence[tuple[int, int]], stride: int = 1, *, is_public: bool = False
    ) -> None:
        super().__init__()
        norms, convolutions, width = [], [], channels
        for n, (kernel, out) in enumerate(plan):
            norms.append(nn.BatchNorm2d(width))
            step = stride if n == int(is_public) else 1
            convolutions.append(nn.Conv2d(width, out, kernel, stride=step, padding=kernel // 2, bias=False))
            width = out
        self.out_channels = width
        self.is_public = is_public
        self.norms = nn.ModuleList(norms)
        self.convolutions = nn.ModuleList(convolutions)
        changes = stride != 1 or channels != width
        self.shortcut = nn.Conv2d(channels, width, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norms[0](x))
        y = self.convolutions[0](active)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:], strict=True):
            y = convolution(F.relu(norm(y)))
        if self.shortcut is None:
            return y + x
        return y + self.shortcut(x if self.is_public else active)


def bottleneck(
    channels: int, width: int, out: int, stride: int = 1, *, is_public: bool = False
) -> ResidualBlock:
    """Return a block of three convolutions: 1×1 to `width`, 3×3, 1×1 to `out`."""
    return ResidualBlock(channels, [(1, width), (3, width), (1, out)], stride, is_public=is_public)


def basic(channels: int, out: int, stride: int = 1) -> ResidualBlock:
    """Return a block of two convolutions: 3×3 to `out`, 3×3."""
    return ResidualBlock(channels, [(3, out), (3, out)], stride)


class Trunk(nn.Module):
    """Residual blocks in a row, each followed by its nonlocal stage, if it has one.

    stages  {number of a residual block, from 1: factory channels -> module}

    Blocks are named "blocks.0…" and stages "stages.2…": a baseline and its nonlocal variants share the blocks' names.
    """

    def __init__(self, blocks: Sequence[ResidualBlock], stages: Mapping[int, StageFactory]) -> None:
        super().__init__()
        for place in stages:
            if not 1 <= place <= len(blocks):
                raise ValueError(f"stages has place {place}; residual blocks go from 1 to {len(blocks)}")
        self.blocks = nn.ModuleList(blocks)
        self.stages = nn.ModuleDict(
            {str(place): stages[place](blocks[place - 1].out_channels) for place in sorted(stages)}
        )

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks, start=1):
            x = block(x)
            if str(number) in self.stages:
                x = self.stages[str(number)](x)
        return x


def initialize_convolutions(module: nn.Module) -> None:
    """Initialise every convolution in `module` by He's normal rule with fan-out, in place."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
