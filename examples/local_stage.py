"""A local stage: each position gets something from its neighbours only, in a window.

    python examples/local_stage.py

Any module that returns an affinity can be the affinity of a stage. This one returns a graph that joins the pixels up to
a radius, with weights that fall with the distance: W is learned, the weights of the window are not. Its cost grows with
the number of pixels times the size of the window. (A kernel that is learned from the features has all positions.)
local_stage.png shows how far stages reach.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from nonloc import DiffusiveStage, SparseAffinity
from nonloc.plots import png, style
from nonloc.processes import horizon


class Window(nn.Module):
    """The pixels of an image, each joined to those within the radius."""

    def __init__(self, height: int, width: int, radius: float) -> None:
        super().__init__()
        pixels = torch.cartesian_prod(torch.arange(float(height)), torch.arange(float(width)))
        self.register_buffer("matrix", horizon(pixels, radius, kernel="linear").matrix, persistent=False)

    def forward(self, x: torch.Tensor) -> SparseAffinity:
        return SparseAffinity(self.matrix, normalize="row")


def influence(stage: nn.Module, size: int) -> Tensor:
    """How much the pixel in the middle depends on every pixel [size, size]."""
    x = torch.zeros(1, 8, size, size, requires_grad=True)
    middle = stage(x)[0, :, size // 2, size // 2].sum()
    (gradient,) = torch.autograd.grad(middle, x)
    return gradient.abs().sum((0, 1))


def main() -> None:
    torch.manual_seed(0)
    size, numbers = 32, (1, 2, 4)
    with style():
        figure = Figure(figsize=(6.6, 2.5), layout="constrained")
        panels = figure.subplots(1, len(numbers))
    for blocks, ax in zip(numbers, panels, strict=True):
        stage = DiffusiveStage(8, blocks, affinity=Window(size, size, radius=2.5), init_std=0.1)
        entries = stage.affinity(torch.zeros(1, 8, size, size)).matrix.values().numel()
        weights = influence(stage, size)
        reached = int((weights > 0).sum())
        print(
            f"{blocks} sub-blocks: {entries:,} entries stored of {size**4:,}; "
            f"one pixel depends on {reached} of {size**2}"
        )
        ax.imshow(torch.where(weights > 0, weights.log10(), float("nan")).numpy(), interpolation="nearest")
        ax.set_title(f"{blocks} sub-block{'s' if blocks > 1 else ''}: {reached} pixels")
        ax.set_axis_off()
    Path("local_stage.png").write_bytes(png(figure))
    print("local_stage.png")


if __name__ == "__main__":
    main()
