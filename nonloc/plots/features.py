"""plot_features: what the sub-blocks of a model do to its features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nonloc._checks import check_choice, shown
from nonloc.plots.look import CHANCE, COLORS, make_axes, moderate, scale_by_log

LABELS = {
    "variance": "variance over positions",
    "norm": "norm of the features",
    "mean": "mean of the features",
    "energy": "Dirichlet energy",
    "quotient": "W along the features",
}
MARKERS = ("o", "s", "^", "D", "v", "P")


def plot_features(
    trace: Sequence[Mapping[str, Any]],
    what: str = "variance",
    *,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a measurement of the features from sub-block to sub-block, a line for each stage.

    trace  what `nonloc.feature_trace` returned
    what   "variance", "norm", "mean", "energy" or "quotient"
    label  of the lines in the legend; the names of the stages when left out. Call it again with the same `ax` and
           another label to compare two models

    A falling variance with a steady norm is smoothing; a falling norm is damping.

    >>> from nonloc import DiffusiveStage, feature_trace
    >>> from nonloc.plots import plot_features
    >>> trace = feature_trace(DiffusiveStage(4, 2), torch.ones(1, 4, 3, 3))
    >>> plot_features(trace, "norm").get_lines()[0].get_xdata().tolist()
    [0, 1, 2]
    """
    check_choice("what", what, LABELS)
    if not isinstance(trace, Sequence) or not trace or not all(_is_trace(stage) for stage in trace):
        raise ValueError(f"trace must be what nonloc.feature_trace returned, got {shown(trace)}")
    ax = make_axes(ax)
    seen = []
    for stage in trace:
        if what == "quotient":
            steps = [block["block"] for block in stage["blocks"]]
            values = [block["quotient"] for block in stage["blocks"]]
        else:
            first, *_ = stage["blocks"]
            steps = [0, *(block["block"] for block in stage["blocks"])]
            values = [first["before"][what], *(block["after"][what] for block in stage["blocks"])]
        line = moderate([math.nan if value is None else value for value in values])
        name = stage["name"] or "stage"
        text = name if label is None else label if len(trace) == 1 else f"{label}, {name}"
        drawn = sum(bool(other.get_marker() in MARKERS) for other in ax.get_lines()) % len(MARKERS)
        ax.plot(steps, line, color=COLORS[drawn], marker=MARKERS[drawn], markersize=4.5, label=text)
        seen.append(line)
    if what == "quotient":
        ax.axhline(0, color=CHANCE, linewidth=0.8, label="_zero")
    else:
        scale_by_log(ax, np.concatenate(seen))
    ax.set(xlabel="sub-block" if what == "quotient" else "sub-blocks passed", ylabel=LABELS[what])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False)
    return ax


def _is_trace(stage: Any) -> bool:
    return isinstance(stage, Mapping) and bool(stage.get("blocks")) and "name" in stage
