"""The picture at the head of the README: some test images, clean, noisy and restored, and where a stage looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nonloc.plots import png, style
from nonloc_paper.report.pictures import to_pixels
from nonloc_paper.report.records import RowRecord, collect
from nonloc_paper.runs import write_atomically


def write_cover(folder: str | os.PathLike[str], path: Path, count: int = 3) -> None:
    """Draw the first `count` observed images of the runs in `folder`; the large starts are left to the report."""
    rows = [row for row in collect(folder).rows if "large start" not in row.label]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, png(cover(rows, count)))


def cover(rows: list[RowRecord], count: int) -> Figure:
    """Columns: clean, noisy, one for each row's first seed, and the affinity of one position in the last row's."""
    examples = [(row.label, row.example) for row in rows if row.example is not None]
    runs = [(label, run) for label, run in examples if run.tensors.keys() >= {"images", "noisy", "restored"}]
    maps_of = [
        (stage, run.tensors[name])
        for _, run in runs
        for stage in run.observations["affinity"][:1]
        if (name := f"affinity.{stage['stage']}") in run.tensors
    ]
    if not maps_of:
        raise ValueError(
            "there is no restored image with an affinity to draw; run `nonloc reproduce demo` first"
        )
    first, (stage, maps) = runs[0][1], maps_of[-1]
    if not 1 <= count <= len(maps):
        raise ValueError(
            f"count must be between 1 and the {len(maps)} images that were observed, got {count}"
        )
    with style():
        figure = Figure(figsize=(1.45 * (len(runs) + 3), 1.62 * count), layout="constrained")
        grid = figure.subplots(count, len(runs) + 3, squeeze=False)
        for number, axes in enumerate(grid):
            _show(axes[0], first.tensors["images"][number], "")
            _show(axes[1], to_pixels(first.tensors["noisy"][number]), _dB(first, "noisy", number))
            for at, (_, run) in zip(axes[2:-1], runs, strict=True):
                _show(at, to_pixels(run.tensors["restored"][number]), _dB(run, "restored", number))
            _show_map(axes[-1], maps[number], stage["position"])
        for at, title in zip(
            grid[0], ["clean", "noisy", *(label for label, _ in runs), "affinity of □"], strict=True
        ):
            at.set_title(title, fontsize=9)
    return figure


def _show(axes: Axes, pixels: NDArray[Any], below: str) -> None:
    axes.imshow(np.moveaxis(pixels, 0, -1), interpolation="nearest")
    axes.set_xlabel(below, fontsize=8)
    axes.set(xticks=[], yticks=[])


def _show_map(axes: Axes, values: NDArray[Any], position: list[int]) -> None:
    others = values.copy()
    others[tuple(position)] = 0  # a position's weight on itself would outshine its copies
    axes.imshow(values, vmin=0, vmax=float(others.max()), interpolation="nearest")
    axes.plot(position[1], position[0], "s", markersize=9, markerfacecolor="none", markeredgecolor="white")
    axes.set(xticks=[], yticks=[])


def _dB(run: Any, which: str, number: int) -> str:
    value = run.observations["psnr"][which][number]
    return "" if value is None else f"{value:.1f} dB"
