"""Figures of runs: curves, spectra, affinity maps, features; each takes records and returns a matplotlib figure."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from nonloc.plots import CHANCE, NEGATIVE, POSITIVE, style
from nonloc.plots.look import clear_axes
from nonloc_paper.report.records import RowRecord, score_name
from nonloc_paper.report.signs import TOP, Weight, count_negative, negative_share, top

WIDTH = 9.2  # inches
NARROW = 5.4  # on a phone the text is three quarters as large
MAPS_IN_LINE = 6
SPECTRA_IN_LINE = 4
SHADES = {
    None: ("#8f969e", "#70777f"),
    "original": ("#d9772b", "#e3a02c", "#c4513d", "#a8682a", "#e58a76", "#94701c"),
    "diffusive": ("#2f7fc1", "#2fa39a", "#6a6fd0", "#54a3e0", "#1f6f8b", "#8fa3f0"),
}
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))

Panel = tuple[str, Sequence[Weight]]  # title, one W of each seed

CURVES_CAPTION = (
    "Training curves, one line for each seed. Left: the loss on the training batches, averaged between two "
    "evaluations. Right: the score on the test images. A cross marks the step at which a run diverged, at "
    "the height of its last evaluation, or at the upper edge if it had none."
)
AFFINITY_CAPTION = (
    "Where the marked position looks: the row of the normalised kernel K of the stage's first sub-block, on a test "
    "image as the networks saw it, for the first seed's network. Each map has its own scale, from 0 (dark) to the "
    "largest weight on another position (bright), written below it with the weight that the position "
    "gives itself."
)
FEATURES_CAPTION = (
    "What the sub-blocks do to the features that reach them, on one batch of test images: norm (root mean square "
    "of ‖Z‖), variance over positions, and Dirichlet energy ½ Σ K_ij |Z_i − Z_j|² under each sub-block's own "
    "kernel. A line is broken where the kernel changes from block to block, and between the stages of a network. W "
    "along the features: ⟨g, ΔZ⟩ / ⟨g, g⟩ of each sub-block, with ΔZ what it adds and g what the kernel brings, "
    "Σ_j K_ij (Z_j − Z_i), or Σ_j K_ij Z_j in the original form: the mean eigenvalue of sym(W), weighted by what the "
    "features have in each direction."
)


def row_looks(rows: Sequence[RowRecord]) -> dict[str, dict[str, Any]]:
    """Return a colour and a dash for each row by label: the hue shows the form, the dash the group of the table."""
    groups = list(dict.fromkeys(row.group for row in rows))
    counts = Counter[tuple[str | None, str]]()
    looks = {}
    for row in rows:
        form = row.recipe.form
        shades = SHADES[form]
        looks[row.label] = {
            "color": shades[counts[form, row.group] % len(shades)],
            "linestyle": DASHES[groups.index(row.group) % len(DASHES)],
        }
        counts[form, row.group] += 1
    return looks


def curves(rows: Sequence[RowRecord]) -> Figure:
    """Draw training loss and score over the steps; rows must have one task."""
    looks = row_looks(rows)
    score = score_name(rows[0].recipe)
    loss, test = (
        ("mean squared error", "PSNR on test images (dB)")
        if score == "psnr"
        else ("cross-entropy (nats)", "error on test images (%)")
    )
    with style():
        figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        for row in rows:
            for number, run in enumerate(row.started):
                label = row.label if number == 0 else None
                for axes, name in ((left, "train_loss"), (right, score)):
                    steps, values = run.curve(name)
                    axes.plot(
                        steps,
                        values,
                        **looks[row.label],
                        label=label,
                        alpha=0.9,
                        marker="o" if len(steps) == 1 else None,
                    )
                    if run.diverged_at is not None:
                        mark_divergence(axes, run.diverged_at, values, looks[row.label]["color"])
        left.set(xlabel="step", ylabel=f"training loss ({loss})", yscale="log")
        plain_numbers(left)
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        right.set(xlabel="step", ylabel=test)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(rows), 3))
    return figure


def spectra(lines: Sequence[tuple[str, Sequence[Panel]]]) -> Figure | None:
    """Draw lines of panels, (label, panels), on one scale with 0 in the middle; None without a panel."""
    lines = [(label, panels) for label, panels in lines if panels]
    if not lines:
        return None
    columns = max(3, *(len(panels) for _, panels in lines))
    values = [top(one) for _, panels in lines for _, some in panels for one in some]
    largest = max(abs(one[0]) for one in values)
    with style():
        figure = Figure(figsize=(NARROW, 0.4 + 1.75 * len(lines)), layout="constrained")
        grid = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey=True)
        for (label, panels), row in zip(lines, grid, strict=True):
            row[0].set_ylabel(label)
            for axes in row[len(panels) :]:
                axes.set_axis_off()
            for axes, (title, weights) in zip(row, panels, strict=False):
                _spectrum(axes, weights)
                axes.set_title(title, fontsize=9)
        for axes, below in zip(grid[:-1].flat, grid[1:].flat, strict=True):
            axes.tick_params(labelbottom=not below.axison)
        # A scale without any eigenvalue but 0 has no middle.
        grid[0, 0].set(
            xlim=(0, max(map(len, values)) + 1), ylim=(-1.1 * (largest or 1), 1.1 * (largest or 1))
        )
        grid[0, 0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
        grid[0, 0].yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
        figure.supxlabel("order by magnitude", fontsize=9.5)
        figure.supylabel("eigenvalue", fontsize=9.5)
    return figure


def stage_spectra(stages: Sequence[dict[str, Any]]) -> Figure | None:
    """Draw every W of a network, whose stages spectrum.json has; None if there is no W."""
    panels = [
        (f"{stage['name']}\nblock {number}" if len(stages) > 1 else f"block {number}", [weight])
        for stage in stages
        for number, weight in enumerate(stage["weights"], start=1)
    ]
    starts = range(0, len(panels), SPECTRA_IN_LINE)
    return spectra([("", panels[start : start + SPECTRA_IN_LINE]) for start in starts])


def affinity(
    image: NDArray[Any], noisy: NDArray[Any] | None, maps: Sequence[tuple[str, Sequence[int], NDArray[Any]]]
) -> Figure:
    """Draw an image with one position marked, its noisy version, and where each network looks from there.

    image  uint8 [3, H, W]
    noisy  uint8 [3, H, W], or None where the networks saw the image itself
    maps   (label, (row, column), K's row [h, w]) of each network
    """
    pictures = [("image", image)] if noisy is None else [("clean", image), ("noisy", noisy)]
    count = len(pictures) + len(maps)
    lines = math.ceil(count / MAPS_IN_LINE)
    with style():
        height = lines * (0.95 + 0.95 * WIDTH / MAPS_IN_LINE)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        all_axes = figure.subplots(lines, MAPS_IN_LINE, squeeze=False).flatten()
        for axes in all_axes:
            clear_axes(axes)
        for axes in all_axes[count:]:
            axes.set_axis_off()
        for axes, (label, pixels) in zip(all_axes, pictures, strict=False):
            axes.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
            axes.set_title(label, fontsize=9)
        _mark(all_axes[0], maps[0][1], image.shape[1] / maps[0][2].shape[0])
        for axes, one in zip(all_axes[len(pictures) : count], maps, strict=True):
            _affinity(axes, *one)
    return figure


def features(rows: Sequence[RowRecord]) -> Figure | None:
    """Draw norm, variance and Dirichlet energy through the sub-blocks, and W along the features where recorded.

    None if nothing was traced.
    """
    shown = [(row, row.example) for row in rows if row.example and row.example.observations.get("features")]
    if not shown:
        return None
    looks = row_looks([row for row, _ in shown])
    traced = [
        (row.label, [block for stage in run.observations["features"] for block in stage["blocks"]])
        for row, run in shown
    ]
    has_quotients = any(block.get("quotient") is not None for _, blocks in traced for block in blocks)
    titles = {
        "norm": "norm of the features",
        "variance": "variance over positions",
        "energy": "Dirichlet energy",
    }
    with style():
        figure = Figure(figsize=(WIDTH, 5.4 if has_quotients else 3.1), layout="constrained")
        all_axes = figure.subplots(*((2, 2) if has_quotients else (1, 3))).flatten()
        for axes, (name, title) in zip(all_axes, titles.items(), strict=False):
            for label, blocks in traced:
                steps, values = _segments(blocks, name)
                axes.plot(steps, values, **looks[label], label=label, marker="o", markersize=3.5)
            axes.set(yscale="log", xlabel="sub-blocks passed", ylabel=title)
            plain_numbers(axes)
        for axes in all_axes[3:]:
            axes.axhline(0, color=CHANCE, linewidth=0.8)
            for label, blocks in traced:
                values = [_number(block.get("quotient")) for block in blocks]
                axes.plot(range(1, len(values) + 1), values, **looks[label], marker="o", markersize=3.5)
            axes.set(xlabel="sub-block", ylabel="W along the features")
        for axes in all_axes:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = all_axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=min(len(traced), 3))
    return figure


def plain_numbers(axes: Axes) -> None:
    """Write plain numbers on a logarithmic scale."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def mark_divergence(axes: Axes, x: float, values: Sequence[float], color: str) -> None:
    """Draw a cross at the height of the last of the values; at the upper edge if there is none."""
    edge: dict[str, Any] = {} if values else {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot([x], values[-1:] or [1], "x", color=color, markersize=8, **edge)


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


def _affinity(axes: Axes, label: str, position: Sequence[int], values: NDArray[Any]) -> None:
    others = values.copy()
    others[tuple(position)] = 0
    largest = float(others.max())
    axes.imshow(values, cmap="viridis", vmin=0, vmax=max(largest, 1e-30), interpolation="nearest")
    axes.set_title(textwrap.fill(label, 19), fontsize=9)
    axes.set_xlabel(f"others ≤ {largest:.2g}\nitself {values[tuple(position)]:.2g}", fontsize=8)
    _mark(axes, position, 1)


def _mark(axes: Axes, position: Sequence[int], scale: float) -> None:
    row, column = position
    corner = (column * scale - 0.5, row * scale - 0.5)
    axes.add_patch(Rectangle(corner, scale, scale, fill=False, edgecolor="white", linewidth=3))
    axes.add_patch(Rectangle(corner, scale, scale, fill=False, edgecolor="#e0115f", linewidth=1.6))


def _segments(blocks: Sequence[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """The line through before and after of every sub-block, broken where one's after is not the next one's before."""
    steps: list[float] = []
    values: list[float] = []
    for number, block in enumerate(blocks):
        before, after = (block[side][name] for side in ("before", "after"))
        if values and not math.isclose(values[-1], _number(before), rel_tol=1e-9):
            steps.append(math.nan)
            values.append(math.nan)
        steps += [number, number + 1]
        values += [_number(before), _number(after)]
    return steps, values


def _number(value: float | None) -> float:
    return math.nan if value is None else value
