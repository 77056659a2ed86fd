"""plot_affinity: where positions look, over the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from torch import Tensor

from nonloc._checks import check_whole, is_whole, shown
from nonloc._evaluation import evaluating
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.ops import Affinity, SparseAffinity, apply_adjoint
from nonloc.plots.look import COLORS, check_size, clear_axes, make_axes

MOST_OPAQUE = 0.9
NOTHING = 1e-6  # relative: smaller differences are rounding
INCHES = 4.2
Position = int | tuple[int, int]


def plot_affinity(
    subject: Affinity | SparseAffinity | NonlocalModule,
    x: Tensor | None = None,
    *,
    position: Position | Sequence[Position],
    image: Any = None,
    size: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    block: int = 1,
    sample: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw where a position looks: its row of the normalised kernel K, as colour over the image.

    subject, x  an affinity; or a stage and its input, as `nonloc.nn.stage_inputs` gives them
    position    (row, column) on the grid of positions, or a number; several, in a list, get a colour each
    image       [3, H, W], [1, H, W] or [H, W] of any size, drawn in grey below; or a batch of one for each sample
    size        (height, width) of an affinity's positions; the input of a stage has its own
    mask        of the stage's input, as the stage takes it
    block       the sub-block, from 1
    sample      which one of the batch, from 0

    The colour begins at the smallest weight on another position, and is full at the largest: the legend has both. A
    stage that is not trained gives almost equal weights. Memory is linear in the number of positions.

    >>> from nonloc import Affinity
    >>> from nonloc.plots import plot_affinity
    >>> x = torch.arange(6.0).view(1, 6, 1)
    >>> ax = plot_affinity(Affinity(x, x, "heat"), position=(0, 1), size=(2, 3))
    >>> ax.get_legend().texts[0].get_text()
    '(0, 1): others 0 to 0.21, itself 0.57'
    """
    affinity, size = _unpacked(subject, x, mask, block, size)
    positions = [_number(one, size) for one in (position if isinstance(position, list) else [position])]
    if not positions or len(positions) > len(COLORS):
        raise ValueError(f"position must be 1 to {len(COLORS)} positions, got {len(positions)}")
    check_whole("sample", sample, least=0, most=affinity.batch - 1)
    valid = affinity.mask
    for number in positions:
        if valid is not None and not valid[sample, number]:
            raise ValueError(
                f"position {divmod(number, size[1])} is masked in sample {sample}, so it looks nowhere; "
                "choose one where the mask is True"
            )
    rows = _kernel_rows(affinity, positions, sample).reshape(len(positions), *size)
    ax = make_axes(ax, (INCHES, 0.3 + 0.2 * len(positions) + INCHES * min(size[0] / size[1], 2)))
    clear_axes(ax)
    extent = (-0.5, size[1] - 0.5, size[0] - 0.5, -0.5)
    if image is not None:
        grey = _grey(image, sample, affinity.batch)
        # Black would hide the colours.
        darkest = grey.min() - 0.5 * (grey.max() - grey.min())
        ax.imshow(grey, cmap="gray", vmin=darkest, extent=extent, interpolation="nearest")
    handles, shares = [], []
    for row, number, color in zip(rows, positions, COLORS, strict=False):
        place = divmod(number, size[1])
        others = np.delete(row.flatten(), number)
        low, high = (float(others.min()), float(others.max())) if len(others) else (0.0, 1.0)
        if image is None and len(positions) == 1:
            drawn = ax.imshow(row, vmin=low, vmax=high, extent=extent, interpolation="nearest")
            ax.figure.colorbar(drawn, ax=ax, label="weight", fraction=0.04)
        else:
            share = (row - low) / (high - low) if high - low > NOTHING * abs(high) else np.zeros(size)
            shares.append(np.clip(share, 0, 1))
        corner = (place[1] - 0.5, place[0] - 0.5)
        for edge, width in (("white", 3.5), (color, 2.0)):
            ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=edge, linewidth=width))
        least = f"{low:.3g}" if abs(low) > 1e-3 * abs(high) else "0"
        label = f"{place}: others {least} to {high:.3g}, itself {row[place]:.3g}"
        handles.append(Patch(facecolor=color, label=label))
    if shares:
        ax.imshow(_mixed(np.stack(shares)), extent=extent, interpolation="nearest")
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False, fontsize="small"
    )
    return ax


def _mixed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """One layer [H, W, 4] of the shares [P, H, W], each in its colour: where several look, the colours mix."""
    colors = np.array([to_rgb(color) for color in COLORS[: len(shares)]])
    total = np.maximum(shares.sum(0), np.finfo(float).tiny)
    layer = np.empty((*shares.shape[1:], 4))
    layer[..., :3] = np.einsum("phw,pc->hwc", shares, colors) / total[..., None]
    layer[..., 3] = MOST_OPAQUE * np.sqrt(shares.max(0))
    return np.clip(layer, 0, 1)


def _unpacked(
    subject: Any, x: Any, mask: Any, block: int, size: tuple[int, int] | None
) -> tuple[Affinity | SparseAffinity, tuple[int, int]]:
    """The affinity, and the height and width of the grid of its positions."""
    if isinstance(subject, NonlocalModule):
        if not isinstance(x, Tensor):
            raise ValueError(f"x must be the input of the stage, a tensor, got {type(x).__name__}")
        check_whole("block", block, most=subject.num_blocks)
        with evaluating(subject):
            affinity = subject.affinities(x, mask)[block - 1]
        spatial = x.shape[1:-1] if subject.layout == "positions" else x.shape[2:]
        if size is None and len(spatial) <= 2:
            size = (1, spatial[0]) if len(spatial) == 1 else (spatial[0], spatial[1])
        subject = affinity
    if not isinstance(subject, (Affinity, SparseAffinity)):
        raise ValueError(
            f"subject must be an affinity, or a stage with its input x, got {type(subject).__name__}; of a network, "
            "nonloc.nn.stage_inputs(network, images) has both"
        )
    if isinstance(subject, Affinity) and not subject.is_square:
        raise ValueError("the keys of this stage are sub-sampled, so its rows are no maps of positions")
    return subject, check_size(size, subject.positions)


def _number(position: Any, size: tuple[int, int]) -> int:
    """The number of a position that is given as one, or as (row, column)."""
    height, width = size
    if is_whole(position) and 0 <= position < height * width:
        return int(position)
    if isinstance(position, tuple) and len(position) == 2 and all(is_whole(one) for one in position):
        row, column = position
        if 0 <= row < height and 0 <= column < width:
            return int(row * width + column)
    raise ValueError(
        f"position must be (row, column) on the grid of {height} × {width}, a number below {height * width}, "
        f"or a list of these, got {shown(position)}"
    )


def _kernel_rows(
    affinity: Affinity | SparseAffinity, positions: Sequence[int], sample: int
) -> NDArray[np.float64]:
    """Rows of K [P, M]: Kᵀ times unit vectors."""
    like = affinity.matrix if isinstance(affinity, SparseAffinity) else affinity.left
    units = torch.zeros(affinity.batch, affinity.positions, len(positions), dtype=torch.float64)
    units[:, positions, range(len(positions))] = 1
    with torch.no_grad():
        rows = apply_adjoint(affinity, units.to(like.device))[sample].mT.double().cpu().numpy()
    if not np.isfinite(rows).all():
        raise ValueError(
            "the affinity has weights that are not finite; look for NaN in the features, or mask them"
        )
    return rows


def _grey(image: Any, sample: int, batch: int) -> NDArray[Any]:
    try:
        pixels = np.asarray(
            image.detach().cpu().double() if isinstance(image, Tensor) else image, dtype=float
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"image must be an array or a tensor of pixels, got {shown(image)}; of a file, "
            "np.asarray(PIL.Image.open(path).convert('L')) has them"
        ) from None
    if pixels.ndim == 4:
        if len(pixels) not in (1, batch):
            raise ValueError(
                f"image is a batch of {len(pixels)}, and there are {batch} samples; give one, or one for each"
            )
        pixels = pixels[sample if len(pixels) > 1 else 0]
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.mean(0)
    if pixels.ndim != 2:
        raise ValueError(
            f"image must be [3, H, W], [1, H, W] or [H, W], got {list(pixels.shape)}; channels come first"
        )
    return pixels
