"""Figures of runs: curves, spectra, affinity maps, features; each takes records and returns a matplotlib figure."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from nonloc.plots import CHANCE, NEGATIVE, POSITIVE, style
from nonloc.plots.look import clear_axes
from nonloc_paper.report.records import RowRecord, RunRecord, score_name
from nonloc_paper.report.signs import TOP

WIDTH = 9.2  # inches
MAPS_IN_LINE = 6
SPECTRA_IN_LINE = 6
SHADES = {
    None: ("#8f969e", "#70777f"),
    "original": ("#d9772b", "#e3a02c", "#c4513d", "#a8682a", "#e58a76", "#94701c"),
    "diffusive": ("#2f7fc1", "#2fa39a", "#6a6fd0", "#54a3e0", "#1f6f8b", "#8fa3f0"),
}
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)))

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


def spectra(rows: Sequence[tuple[str, dict[str, Any]]]) -> Figure | None:
    """Draw a panel for every W of every network: (label, content of spectrum.json); None if there is no W."""
    lines = [(label, _titled(spectrum.get("stages", []))) for label, spectrum in rows]
    lines = [(label, weights) for label, weights in lines if weights]
    if not lines:
        return None
    columns = min(max(3, *(len(weights) for _, weights in lines)), SPECTRA_IN_LINE)
    starts = [0, *itertools.accumulate(math.ceil(len(weights) / columns) for _, weights in lines)]
    with style():
        figure = Figure(figsize=(WIDTH, 0.5 + 1.75 * starts[-1]), layout="constrained")
        grid = figure.subplots(starts[-1], columns, squeeze=False)
        for (label, weights), (start, end) in zip(lines, itertools.pairwise(starts), strict=True):
            all_axes = grid[start:end].flatten()
            for axes in all_axes[len(weights) :]:
                axes.set_axis_off()
            for (title, weight), axes in zip(weights, all_axes, strict=False):
                _spectrum(axes, weight)
                axes.set_title(f"\n{title}" if axes is all_axes[0] else title, fontsize=9)
            # On the empty line above the first panel, and left out of the layout: a label may be wider than a panel.
            height = 17 + 11 * weights[0][0].count("\n")
            above = all_axes[0].annotate(
                label, (0, 1), (0, height), xycoords="axes fraction", textcoords="offset points", fontsize=9
            )
            above.set_in_layout(False)
        figure.supxlabel("order by magnitude", fontsize=9.5)
        figure.supylabel("eigenvalue", fontsize=9.5)
    return figure


def _titled(stages: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Every W with its title: the block's number in its stage and, where there are several stages, the stage's name."""
    return [
        (f"{stage['name']}\nblock {number}" if len(stages) > 1 else f"block {number}", weight)
        for stage in stages
        for number, weight in enumerate(stage["weights"], start=1)
    ]


def epochs(run: RunRecord, chosen: Sequence[int]) -> Figure | None:
    """Draw the spectra of the first W after some epochs, as recorded while training."""
    lines = [line for line in run.spectra if line["epoch"] in chosen]
    if not lines:
        return None
    with style():
        figure = Figure(figsize=(WIDTH, 2.1), layout="constrained")
        for axes, line in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines, strict=True):
            _spectrum(axes, line["stages"][0]["weights"][0])
            axes.set_title(f"epoch {line['epoch']}", fontsize=9)
        figure.supxlabel("order by magnitude", fontsize=9.5)
        figure.supylabel("eigenvalue", fontsize=9.5)
    return figure


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


def _spectrum(axes: Axes, weight: dict[str, Any]) -> None:
    values = np.asarray(weight["eigenvalues"][:TOP])
    order = np.arange(1, len(values) + 1)
    if "band" in weight:
        low, high = (np.asarray(weight["band"][side][:TOP]) for side in ("low", "high"))
        axes.fill_between(order, low, high, step="mid", color=CHANCE, alpha=0.3, linewidth=0)
    axes.bar(order, values, width=0.72, color=np.where(values > 0, POSITIVE, NEGATIVE))
    axes.axhline(0, color=CHANCE, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))


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
