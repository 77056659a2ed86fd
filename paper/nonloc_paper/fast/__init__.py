"""accelerate: run a PreResNet or a Restorer through Triton kernels on CUDA.

The networks are plain torch. `accelerate` replaces the classes of their modules by subclasses with another forward,
which computes the same function with fewer and faster launches:

- batch norm and ReLU are one operation, and add the two terms of the residual block before them;
- convolutions of few channels have their own kernels;
- before a strided 1×1 convolution, only the pixels that it reads are activated;
- in training a convolution finds the statistics for the norm that follows, adds the residual, and activates what it
  reads if it is 1×1; backward it finds the sums that the norm before it needs.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from nonloc._torch_compat import is_untouched
from nonloc_paper.fast.convolution import can_fuse, run_convolution, run_norm_convolution, takes_norms
from nonloc_paper.fast.norm_relu import is_plain_norm, run_norm_relu, run_sum_norm_relu
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
    """ResidualBlock that can take its input, and return its output, as two terms of a sum.

    In training, where the kernels know all its modules, each convolution finds the statistics for the norm that
    follows, and the last one adds the shortcut.
    """

    def forward(self, x: Tensor) -> Tensor:
        y, shortcut, _ = self.terms(x)
        return y if shortcut is None else y + shortcut

    def terms(
        self,
        x: Tensor,
        added: Tensor | None = None,
        known: Tensor | None = None,
        following: FastResidualBlock | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return F and the shortcut of x, or of x + added; the output of the block is their sum.

        On CUDA the batch norm that follows adds them while it computes its statistics. Or F has the shortcut already,
        and the second result is None; the third then has the statistics that the block `following` takes, if it does.

        known  the statistics of x, from the block before
        """
        norms: list[Any] = list(self.norms)
        convolutions: list[Any] = list(self.convolutions)
        is_fused = _is_fused(self, x)
        if known is not None:
            y, known, other = run_norm_convolution(
                convolutions[0], x, norm=norms[0], known=known, following=norms[1]
            )
        else:
            active, other, is_thinned = self._activate(x, added)
            if is_fused:
                y, known, _ = run_norm_convolution(convolutions[0], active, following=norms[1])
            else:
                y = run_convolution(convolutions[0], active, is_thinned=is_thinned)
        if not is_fused:
            for norm, convolution in zip(norms[1:], convolutions[1:], strict=True):
                y = run_convolution(convolution, run_norm_relu(norm, y))
            return y, other, None
        norms.append(None)
        if following is not None and following.shortcut is None and _is_fused(following, y):
            norms[-1] = following.norms[0]
        for n, convolution in enumerate(convolutions[1:], start=1):
            y, known, _ = run_norm_convolution(
                convolution,
                y,
                norm=norms[n],
                known=known,
                added=other if n == len(convolutions) - 1 else None,
                following=norms[n + 1],
            )
        return y, None, known

    def _activate(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor, bool]:
        """Return the first activation, the shortcut, and whether only the pixels that are read were activated."""
        first, shortcut = self.convolutions[0], self.shortcut
        # The stride, if both modules that read the first activation step over pixels.
        stride = 1
        if is_untouched(first, nn.Conv2d) and is_untouched(shortcut, nn.Conv2d):
            stride = first.stride[0] if first.kernel_size == (1, 1) else 1
        x, active = run_sum_norm_relu(self.norms[0], x, added, stride)
        is_thinned = active.shape[2:] != x.shape[2:]
        if shortcut is None:
            return active, x, is_thinned
        if self.is_public:
            return active, run_convolution(shortcut, x), is_thinned
        return active, run_convolution(shortcut, active, is_thinned=is_thinned), is_thinned


def _is_fused(block: FastResidualBlock, x: Tensor) -> bool:
    """Return whether the kernels know all norms and convolutions of the block, and features like x."""
    is_known = (
        can_fuse(x)
        and all(is_plain_norm(norm) and norm.training for norm in block.norms)
        and all(takes_norms(convolution, x) for convolution in block.convolutions)
    )
    if not is_known:
        return False
    first, *others = block.convolutions
    # A stride of the first one is no matter where the features are thinned for it.
    is_thinned = first.kernel_size == (1, 1) and is_untouched(block.shortcut, nn.Conv2d)
    return (first.stride == (1, 1) or is_thinned) and all(one.stride == (1, 1) for one in others)


class FastTrunk(Trunk):
    """Trunk that passes the output of a block to the next block as two terms, and adds them for a stage."""

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor | None = None
        known: Tensor | None = None
        blocks = [block if is_untouched(block, FastResidualBlock) else None for block in self.blocks]
        for number, block in enumerate(blocks, start=1):
            has_stage = str(number) in self.stages
            if block is not None:
                following = None if has_stage or number == len(blocks) else blocks[number]
                x, added, known = block.terms(x, added, known, following)
            else:
                x, added = self.blocks[number - 1](x if added is None else x + added), None
            if has_stage:
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
