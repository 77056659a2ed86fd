"""The look of all figures, axes to draw on, and ways to save them."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from nonloc._checks import is_whole, shown

# Text and axes are drawn in this colour; inside a page it becomes the page's own, light or dark.
INK = "#202428"
POSITIVE, NEGATIVE, CHANCE = "#2f7fc1", "#d9772b", "#8f969e"
# Different also for people who do not see all colours, and visible on white and on black.
COLORS = (POSITIVE, NEGATIVE, "#2fa39a", "#b85fa8", "#b08d1a", "#6a6fd0")
GRID: Any = {"alpha": 0.25, "color": "#808890", "linewidth": 0.6}

WIDTH = 8.2
LARGEST = 1e100  # drawn on an axis; its ticks may be far beyond

STYLE: Any = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    **{f"grid.{name}": value for name, value in GRID.items()},
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}


def style() -> Any:
    """A context in which figures have the look of nonloc's own.

    >>> from matplotlib.figure import Figure
    >>> from nonloc.plots import style
    >>> with style():
    ...     ax = Figure().subplots()
    >>> ax.spines["top"].get_visible()
    False
    """
    return matplotlib.rc_context(STYLE)


def make_axes(ax: Axes | None, size: tuple[float, float] = (5.2, 3.4)) -> Axes:
    """Return `ax`, or axes of a new figure of this size, with the user's colours of text and background."""
    if ax is not None:
        if not isinstance(ax, Axes):
            raise ValueError(
                f"ax must be matplotlib axes, got {type(ax).__name__}; `figure.subplots()` gives some"
            )
        return ax
    ax = Figure(figsize=size, layout="constrained").subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(**GRID)
    ax.set_axisbelow(True)
    ax.set_prop_cycle(color=COLORS)
    return ax


def check_size(size: Any, positions: int) -> tuple[int, int]:
    """Return `size`; ValueError unless it is the height and the width of a grid of so many positions."""
    is_pair = isinstance(size, (tuple, list)) and len(size) == 2
    is_pair = is_pair and all(is_whole(side) and side > 0 for side in size)
    if not is_pair or size[0] * size[1] != positions:
        raise ValueError(
            f"size must be (height, width) of the {positions:,} positions, got {shown(size)}; of a video, frames one "
            "below the other are (frames * height, width)"
        )
    return int(size[0]), int(size[1])


def clear_axes(ax: Axes) -> None:
    """Take ticks, grid and spines away, for pictures."""
    ax.grid(False)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def moderate(values: Any) -> NDArray[Any]:
    """Return numbers as an array without those near the end of their range, where matplotlib's arithmetic overflows."""
    values = np.asarray(values, dtype=float)
    return np.where(np.abs(values) < LARGEST, values, np.nan)


def scale_by_log(ax: Axes, values: Any) -> None:
    """Use a logarithmic scale if all values are positive and some differ by a factor of 2."""
    values = np.asarray(values)[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 2 * values.min():
        ax.set_yscale("log")
        write_plain_numbers(ax)


def write_plain_numbers(ax: Axes) -> None:
    """Write 0.5 and 20 on a logarithmic scale; powers of 10 where it is long, or far from 1."""
    low, high = ax.get_ylim()
    if high < 300 * low and low > 1e-3 and high < 1e5:
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def svg(figure: Figure) -> bytes:
    """A file of its own, in ink on white.

    >>> from matplotlib.figure import Figure
    >>> from nonloc.plots import svg
    >>> svg(Figure())[:5]
    b'<?xml'
    """
    return save_figure(figure, "svg", facecolor="white")


def png(figure: Figure) -> bytes:
    """A file of its own, in ink on white.

    >>> from matplotlib.figure import Figure
    >>> from nonloc.plots import png
    >>> png(Figure())[1:4]
    b'PNG'
    """
    return save_figure(figure, "png", facecolor="white", dpi=160)


def save_figure(figure: Figure, kind: str, *, salt: str = "nonloc", **keywords: Any) -> bytes:
    """The figure as the bytes of a file of this kind, the same bytes whatever was saved before.

    salt  tells the ids inside an SVG apart from those of other figures in one page

    >>> from matplotlib.figure import Figure
    >>> from nonloc.plots import save_figure
    >>> save_figure(Figure(), "pdf")[:4]
    b'%PDF'
    """
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine | None):
        # Every save would move the axes a little; one layout counts for all files.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    undated: dict[str, Any] = {
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure.savefig(buffer, format=kind, metadata=undated.get(kind, {"Software": None}), **keywords)
    return buffer.getvalue()
