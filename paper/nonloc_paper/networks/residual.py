"""Pre-activation residual blocks, and the trunk that has nonlocal stages between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from nonloc._torch_compat import is_untouched
from nonloc_paper.fast.convolution import Convolution
from nonloc_paper.fast.norm_relu import NormReLU, activated

StageFactory = Callable[[int], nn.Module]
"""channels -> the module that stands after a residual block with that many channels"""


class ResidualBlock(nn.Module):
    """x + F(x), with BN and ReLU before every convolution of F; no convolution has a bias.

    Where the shape changes, the shortcut is a 1×1 convolution without BN. It and F then share the first
    BN-ReLU, as in He's code for CIFAR; where it does not change, the shortcut is x itself, untouched.

    plan       the convolutions of F: (kernel size, output channels)
    stride     of one convolution and of the shortcut
    is_public  False: the first convolution has the stride. True, the layout of the public PyTorch code: the second
               one has it, and the shortcut is taken from x itself, not from its activation
    """

    def __init__(
        self, channels: int, plan: Sequence[tuple[int, int]], stride: int = 1, *, is_public: bool = False
    ) -> None:
        super().__init__()
        norms, convolutions, width = [], [], channels
        for n, (kernel, out) in enumerate(plan):
            norms.append(NormReLU(width))
            step = stride if n == int(is_public) else 1
            convolutions.append(Convolution(width, out, kernel, stride=step, padding=kernel // 2, bias=False))
            width = out
        self.out_channels = width
        self.is_public = is_public
        self.norms = nn.ModuleList(norms)
        self.convolutions = nn.ModuleList(convolutions)
        changes = stride != 1 or channels != width
        self.shortcut = Convolution(channels, width, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y, shortcut = self.terms(x)
        return y + shortcut

    def terms(self, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """F and the shortcut, of x or of x + added: the block's output is their sum, for whoever comes next to add.

        On CUDA the next BN adds them while it computes its statistics, and what a 1×1 convolution would step over
        is never activated.
        """
        norm, first = self.norms[0], self.convolutions[0]
        if is_untouched(norm, NormReLU) and norm.fuses(x):
            x, active = norm.sum_and_activation(x, added, self._stepped_over())
        else:
            x = x if added is None else x + added
            active = activated(norm, x)
        y = _convolve(first, x, active)
        if self.shortcut is None:
            shortcut = x
        else:
            shortcut = self.shortcut(x) if self.is_public else _convolve(self.shortcut, x, active)
        for norm, convolution in zip(self.norms[1:], self.convolutions[1:], strict=True):
            y = convolution(activated(norm, y))
        return y, shortcut

    def _stepped_over(self) -> int:
        """Every how many pixels the first activation is looked at, by all who look at it."""
        first, shortcut = self.convolutions[0], self.shortcut
        if not (is_untouched(first, Convolution) and is_untouched(shortcut, Convolution)):
            return 1
        return first.stride[0] if first.kernel_size == (1, 1) else 1


def _convolve(convolution: nn.Module, x: Tensor, active: Tensor) -> Tensor:
    """`convolution` of what was activated of x: all of it, or those pixels alone that it does not step over."""
    if active.shape[2:] == x.shape[2:]:
        return convolution(active)
    assert isinstance(convolution, Convolution)
    return convolution.without_stride(active)


def bottleneck(
    channels: int, width: int, out: int, stride: int = 1, *, is_public: bool = False
) -> ResidualBlock:
    """1×1 to `width`, 3×3, 1×1 to `out`."""
    return ResidualBlock(channels, [(1, width), (3, width), (1, out)], stride, is_public=is_public)


def basic(channels: int, out: int, stride: int = 1) -> ResidualBlock:
    """3×3 to `out`, 3×3."""
    return ResidualBlock(channels, [(3, out), (3, out)], stride)


class Trunk(nn.Module):
    """Residual blocks in a row, each followed by the stage that is made for it, if any.

    stages  {number of a residual block, from 1: factory channels -> module}. Blocks are named apart from stages
            ("blocks.0…", "stages.2…"), so a baseline and its nonlocal variants share the names of the blocks.
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
        added: Tensor | None = None
        for number, block in enumerate(self.blocks, start=1):
            if is_untouched(block, ResidualBlock):
                x, added = block.terms(x, added)
            else:
                x, added = block(x if added is None else x + added), None
            if str(number) in self.stages:
                x, added = self.stages[str(number)](x if added is None else x + added), None
        return x if added is None else x + added


def initialize_convolutions(module: nn.Module) -> None:
    """He's normal initialisation by fan-out of every convolution in `module`, in place."""
    for child in module.modules():
        if isinstance(child, nn.Conv2d):
            nn.init.kaiming_normal_(child.weight, mode="fan_out", nonlinearity="relu")
