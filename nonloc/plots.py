"""Pictures of simulations, in one look for all figures, and ways to save them. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Text and axes are drawn in this colour; inside a page it becomes the page's own, light or dark.
INK = "#202428"
POSITIVE, NEGATIVE, CHANCE = "#2f7fc1", "#d9772b", "#8f969e"

WIDTH = 8.2
LARGEST = 1e250

STYLE: Any = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": "#808890",
    "grid.linewidth": 0.6,
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
    """A context in which figures have the house's look."""
    return matplotlib.rc_context(STYLE)


def svg(figure: Figure) -> bytes:
    """A file of its own, in ink on white."""
    return save_figure(figure, "svg", facecolor="white")


def png(figure: Figure) -> bytes:
    """A file of its own, in ink on white."""
    return save_figure(figure, "png", facecolor="white", dpi=160)


def save_figure(figure: Figure, kind: str, *, salt: str = "nonloc", **keywords: Any) -> bytes:
    """The figure as the bytes of a file of this kind, the same bytes whatever was saved before.

    salt  tells the ids inside an SVG apart from those of other figures in one page
    """
    if figure.get_layout_engine() is not None:
        # Every save would move the axes a little; one layout counts for all files.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure.savefig(buffer, format=kind, metadata=metadata, **keywords)
    return buffer.getvalue()


def plot_trajectory(series: dict[str, Any]) -> Figure:
    """What a trajectory measured, over time: means, variance, Dirichlet energy; averages over channels.

    series  "times" and, each of the same length or None: "mean", "weighted_mean", "variance", "energy"; a number
            that overflowed is None
    """
    times = series["times"]
    series = {
        name: None if values is None else np.asarray(values, dtype=float) for name, values in series.items()
    }
    shown = [("variance", "variance over positions")]
    if series.get("energy") is not None:
        shown.append(("energy", "Dirichlet energy"))
    with style():
        figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
        panels = figure.subplots(1, 1 + len(shown))
        panels[0].plot(times, _moderate(series["mean"]), color=NEGATIVE, label="plain mean")
        if series.get("weighted_mean") is not None:
            panels[0].plot(
                times, series["weighted_mean"], color=POSITIVE, linestyle="--", label="mean under π"
            )
        panels[0].set(xlabel="time", ylabel="mean of the signal")
        panels[0].legend()
        for axes, (name, label) in zip(panels[1:], shown, strict=True):
            values = _moderate(series[name])
            axes.plot(times, values, color=POSITIVE)
            # A straight line on this scale is exponential decay or growth.
            if np.nanmin(values) > 0:
                axes.set_yscale("log")
            axes.set(xlabel="time", ylabel=label)
    return figure


def plot_states(images: Sequence[NDArray[Any]], titles: Sequence[str]) -> Figure:
    """States side by side: [H, W, 3] in [0, 1] as colours, [H, W] as a map with its own scale."""
    with style():
        figure = Figure(figsize=(1.6 * len(images), 1.9), layout="constrained")
        for axes, image, title in zip(
            figure.subplots(1, len(images), squeeze=False)[0], images, titles, strict=True
        ):
            axes.imshow(np.clip(image, 0, 1) if image.ndim == 3 else image, interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
    return figure


def _moderate(values: NDArray[Any]) -> NDArray[Any]:
    """Without the values near the end of the number range, where matplotlib's own arithmetic overflows."""
    return np.where(np.abs(values) < LARGEST, values, np.nan)
