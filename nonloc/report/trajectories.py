"""Figures of a simulation: its numbers over time, and a strip of its states where they are images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nonloc.report.style import NEGATIVE, POSITIVE, style

WIDTH = 8.2
LARGEST = 1e250


def numbers(series: dict[str, Any]) -> Figure:
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


def strip(images: Sequence[NDArray[Any]], titles: Sequence[str]) -> Figure:
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
