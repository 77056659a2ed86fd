"""Figures 1 to 4 of the paper: spectra and training curves of every seed, panels on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nonloc.plots import CHANCE, COLORS, INK, NEGATIVE, POSITIVE, style
from nonloc_paper.report.figures import mark_divergence, plain_numbers
from nonloc_paper.report.records import RowRecord, RunRecord, score_name
from nonloc_paper.report.signs import TOP, Weight, count_negative, negative_share, top

WIDTH = 5.4  # inches: on a phone the text is three quarters as large

Panel = tuple[str, Sequence[Weight]]  # title, one W of each seed

CURVES_CAPTION = (
    "A line for each seed. Above: the loss on the training batches of each epoch. Below: the error on the test images. "
    "A cross marks where a run diverged."
)


def spectra(lines: Sequence[tuple[str, Sequence[Panel]]]) -> Figure | None:
    """Draw lines of panels, (label, panels), on one scale with 0 in the middle; None without a panel."""
    lines = [(label, panels) for label, panels in lines if panels]
    if not lines:
        return None
    columns = max(3, *(len(panels) for _, panels in lines))
    largest = max(
        abs(value) for _, panels in lines for _, some in panels for one in some for value in top(one)
    )
    with style():
        figure = Figure(figsize=(WIDTH, 0.4 + 1.75 * len(lines)), layout="constrained")
        grid = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey=True)
        for (label, panels), row in zip(lines, grid, strict=True):
            row[0].set_ylabel(label)
            for axes in row[len(panels) :]:
                axes.set_axis_off()
            for axes, (title, weights) in zip(row, panels, strict=False):
                _spectrum(axes, weights)
                axes.set_title(title, fontsize=9)
        # A scale without any eigenvalue but 0 has no middle.
        grid[0, 0].set(xlim=(0, TOP + 1), ylim=(-1.1 * (largest or 1), 1.1 * (largest or 1)))
        grid[0, 0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
        grid[0, 0].yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
        figure.supxlabel("order by magnitude", fontsize=9.5)
        figure.supylabel("eigenvalue", fontsize=9.5)
    return figure


def curves(columns: Mapping[str, Sequence[RowRecord]]) -> Figure | None:
    """Draw loss and error over the epochs, rows of runs by the title of their column; None without a run."""
    columns = {title: [row for row in rows if row.started] for title, rows in columns.items()}
    columns = {title: rows for title, rows in columns.items() if rows}
    if not columns:
        return None
    looks = _looks([row for rows in columns.values() for row in rows])
    with style():
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        grid = figure.subplots(2, len(columns), squeeze=False, sharex=True, sharey="row")
        for (above, below), (title, rows) in zip(grid.T, columns.items(), strict=True):
            for row in rows:
                for run in row.started:
                    _curve(above, run, "train_loss", looks[row.label])
                    _curve(below, run, score_name(run.recipe), looks[row.label])
            above.set_title(title)
            below.set_xlabel("epoch")
            for axes in (above, below):
                axes.set_yscale("log")
                plain_numbers(axes)
        grid[0, 0].set_ylabel("training loss (nats)")
        grid[1, 0].set_ylabel("error on test images (%)")
        grid[0, 0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        handles = [Line2D([], [], color=colour, label=label) for label, colour in looks.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _looks(rows: Sequence[RowRecord]) -> dict[str, str]:
    """A colour for each label: grey and black for networks without blocks, the others as different as can be."""
    looks: dict[str, str] = {}
    for row in rows:
        colours = [CHANCE, INK] if row.recipe.form is None else COLORS
        drawn = len([colour for colour in looks.values() if colour in colours])
        looks.setdefault(row.label, colours[drawn % len(colours)])
    return looks


def _curve(axes: Axes, run: RunRecord, name: str, colour: str) -> None:
    epochs, values = run.curve(name, over="epoch")
    axes.plot(
        epochs, values, color=colour, linewidth=0.9, alpha=0.8, marker="o" if len(values) == 1 else None
    )
    if run.diverged_at is not None:
        # The steps of an epoch are known once one has passed.
        steps = run.metrics[0]["step"] / run.metrics[0]["epoch"] if run.metrics else run.diverged_at
        mark_divergence(axes, run.diverged_at / steps, values, colour)


def _spectrum(axes: Axes, weights: Sequence[Weight]) -> None:
    """Draw the bars of all seeds side by side, the widest of their bands, and how much is negative."""
    bands = [weight["band"] for weight in weights if "band" in weight]
    if bands:
        low = np.min([band["low"][:TOP] for band in bands], axis=0)
        high = np.max([band["high"][:TOP] for band in bands], axis=0)
        axes.fill_between(
            np.arange(1, len(low) + 1), low, high, step="mid", color=CHANCE, alpha=0.3, linewidth=0
        )
    width = 0.8 / len(weights)
    for number, weight in enumerate(weights):
        values = np.asarray(top(weight))
        left = np.arange(1, len(values) + 1) - 0.4 + number * width
        for is_shown, colour in ((values > 0, POSITIVE), (values < 0, NEGATIVE)):
            _bars(axes, left[is_shown], values[is_shown], width, colour)
    axes.axhline(0, color=CHANCE, linewidth=0.8)
    shares = [share for weight in weights if (share := negative_share([weight])) is not None]
    text = f"{_span([count_negative([weight]) for weight in weights])} of {len(top(weights[0]))}"
    if shares:
        text = f"{_span([round(100 * share) for share in shares])} % < 0\n{text}"
    axes.text(0.98, 0.98, text, ha="right", va="top", fontsize=8, transform=axes.transAxes)


def _bars(axes: Axes, left: NDArray[Any], heights: NDArray[Any], width: float, colour: str) -> None:
    """Draw bars from 0 as one path: files stay small."""
    corners = [
        [(x, 0), (x, y), (x + width, y), (x + width, 0), (x, 0)] for x, y in zip(left, heights, strict=True)
    ]
    if corners:
        bars = Path.make_compound_path(*(Path(some, closed=True) for some in corners))
        axes.add_patch(PathPatch(bars, facecolor=colour, linewidth=0))


def _span(values: Sequence[int]) -> str:
    """Such as "88–91", or "88" where all are the same."""
    return "–".join(str(value) for value in sorted({min(values), max(values)}))
