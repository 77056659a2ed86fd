"""A local stage: each position gets something from its neighbours only, in a window.

    python examples/local_stage.py

Any module that returns an affinity can be the affinity of a stage. This one returns a graph that joins the pixels up to
a radius, with weights that fall with the distance: W is learned, the weights of the window are not. Its cost grows with
the number of pixels times the size of the window. (A kernel that is learned from the features has all positions.)
"""

import torch
from torch import nn

from nonloc import DiffusiveStage, SparseAffinity
from nonloc.processes import horizon


class Window(nn.Module):
    """The pixels of an image, each joined to those within the radius."""

    def __init__(self, height: int, width: int, radius: float) -> None:
        super().__init__()
        pixels = torch.cartesian_prod(torch.arange(float(height)), torch.arange(float(width)))
        self.register_buffer("matrix", horizon(pixels, radius, kernel="linear").matrix, persistent=False)

    def forward(self, x: torch.Tensor) -> SparseAffinity:
        return SparseAffinity(self.matrix, normalize="row")


def reached(stage: nn.Module, size: int) -> int:
    """How many pixels the pixel in the middle depends on."""
    x = torch.zeros(1, 8, size, size, requires_grad=True)
    middle = stage(x)[0, :, size // 2, size // 2].sum()
    (gradient,) = torch.autograd.grad(middle, x)
    return int((gradient.abs().sum(1) > 0).sum())


def main() -> None:
    torch.manual_seed(0)
    size = 32
    for blocks in (1, 2, 4):
        stage = DiffusiveStage(8, blocks, affinity=Window(size, size, radius=2.5), init_std=0.1)
        entries = stage.affinity(torch.zeros(1, 8, size, size)).matrix.values().numel()
        print(
            f"{blocks} sub-blocks: {entries:,} entries stored of {size**4:,}; "
            f"one pixel depends on {reached(stage, size)} of {size**2}"
        )


if __name__ == "__main__":
    main()
