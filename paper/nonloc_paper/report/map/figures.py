"""Figures of the trainability map, readable without their colours, each with its caption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from nonloc.nn.options import FORMS
from nonloc.plots import INK, NEGATIVE, style
from nonloc_paper.report.figures import SHADES, WIDTH, plain_numbers
from nonloc_paper.report.map.cells import (
    CHANCE_LOSS,
    TRAINS_BELOW,
    Cell,
    TrainabilityMap,
    has_all_seeds,
    largest,
    sort_inits,
)
from nonloc_paper.report.map.tables import BACK, by_affinity, spread_of
from nonloc_paper.report.table1_runs import AFFINITIES, ONE, ORIGINAL

BROKEN = "#4a4f55"
SHOWN_RUNS = 6  # of each form
LINES = {"original": "--", "diffusive": "-", "stable": "-."}
MARKERS = {"original": "s", "diffusive": "o", "stable": "^"}
STAGES = {ORIGINAL: " (the original stage)", ONE: " (the paper's stage)"}

HEAT_CAPTION = (
    "Number: training loss over the last 50 steps, mean of the seeds left (guessing is 2.30). ✕ and dark: all seeds "
    "diverged, with the step of the first. Hatched, ✕ 1/2: one seed of two diverged. ○ 1/2: one of two ended no better "
    "than guessing. n: seeds recorded, where some are missing. Empty: not run."
)
BEFORE_CAPTION = (
    f"The last steps of runs that diverged within ten epochs, the first {SHOWN_RUNS} of each form. Loss; largest "
    "spread of the logits in a row of a kernel; growth factor by `certify`; ‖stage(x)‖ / ‖x‖ of the worst of 32 "
    "images; eigenvalue of sym(W) of largest magnitude. Dotted: 1, above which a stage enlarges, and 0."
)
CORNERS_CAPTION = (
    "Ten epochs at the paper's rate. ✕: how many seeds diverged; below: median test error (%) of the others. Left, "
    "every block computes its own affinity; right, one is computed for all. The forms were run with different numbers "
    "of blocks."
)
LOGITS_CAPTION = (
    "The largest difference of two logits in a row, of the image of 32 that the stage enlarges most; one mark a run of "
    f"ten epochs. ○ after the last step; ✕ {BACK} steps before a run diverged."
)


def heat_map(trained: TrainabilityMap, rate: float) -> Figure:
    """Draw initialisation by number of blocks, original and diffusive, at one rate."""
    cells = [cell for cell in trained.one_epoch if cell.rate == rate]
    starts = sort_inits(cell.init for cell in cells)
    forms = [form for form in FORMS if any(cell.form == form for cell in cells)]
    losses = [cell.loss for cell in trained.one_epoch if cell.loss is not None]
    colours = ScalarMappable(Normalize(min([*losses, TRAINS_BELOW]), CHANCE_LOSS), colormaps["viridis_r"])
    blocks = {form: sorted({cell.blocks for cell in cells if cell.form == form}) for form in forms}
    with style():
        figure = Figure(figsize=(WIDTH, 1.1 + 0.42 * len(starts)), layout="constrained")
        ratios = [len(blocks[form]) for form in forms]
        all_axes = figure.subplots(1, len(forms), squeeze=False, sharey=True, width_ratios=ratios)[0]
        for axes, form in zip(all_axes, forms, strict=True):
            for cell in cells:
                if cell.form == form:
                    _square(axes, blocks[form].index(cell.blocks), starts.index(cell.init), cell, colours)
            frame_squares(axes, [str(number) for number in blocks[form]], starts)
            axes.set(title=f"{form}, rate {rate:g}", xlabel="blocks")
        figure.colorbar(colours, ax=list(all_axes), label="training loss (nats)", fraction=0.03, pad=0.01)
    return figure


def frame_squares(axes: Axes, columns: Sequence[str], lines: Sequence[str]) -> None:
    """Name the columns and lines of squares, the first line on top, without a frame."""
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(lines) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(lines)), lines)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def before_divergence(cells: Sequence[Cell]) -> Figure | None:
    """Draw loss, logits, growth, amplification and eigenvalue over the last steps; None if nothing diverged."""
    gone = [(cell, line) for cell in cells for line in cell.diverged if line["before"]]
    if not gone:
        return None
    panels = (
        ("loss (nats)", lambda moment: moment["loss"]),
        ("spread of the logits", lambda moment: largest(moment, "logit_spread")),
        ("growth factor", lambda moment: largest(moment, "growth")),
        ("‖stage(x)‖ / ‖x‖", lambda moment: largest(moment, "amplification")),
        ("eigenvalue of largest magnitude", _eigenvalue),
    )
    with style():
        figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
        *all_axes, corner = figure.subplots(2, 3).flatten()
        for form in dict.fromkeys(cell.form for cell, _ in gone):
            shades = SHADES["original" if form == "original" else "diffusive"]
            look: dict[str, Any] = {"linestyle": LINES[form], "marker": MARKERS[form], "markersize": 3}
            runs = [one for one in gone if one[0].form == form][:SHOWN_RUNS]
            for index, (cell, line) in enumerate(runs):
                look["color"] = shades[index % len(shades)]
                look["label"] = f"{form} {cell.blocks}, {cell.init}, seed {line['seed']}, step {line['step']}"
                for axes, (_, measure) in zip(all_axes, panels, strict=True):
                    values = {moment["step"] - line["step"]: measure(moment) for moment in line["before"]}
                    known = {step: value for step, value in values.items() if value is not None}
                    axes.plot(list(known), list(known.values()), **look)
        for axes, (title, _) in zip(all_axes, panels, strict=True):
            axes.set(xlabel="steps to the end", ylabel=title)
        all_axes[1].set_yscale("log")
        for axes in all_axes[2:4]:
            axes.set_yscale("log")
            plain_numbers(axes)
            axes.axhline(1, color=INK, linestyle=":", linewidth=0.9)
        all_axes[4].axhline(0, color=INK, linestyle=":", linewidth=0.9)
        corner.axis("off")
        corner.legend(*all_axes[0].get_legend_handles_labels(), loc="center", fontsize=6.5, frameon=False)
    return figure


def corners_figure(trained: TrainabilityMap) -> Figure | None:
    """Draw start by number of blocks, a line for each form, a column for each affinity; None without a pair."""
    shown = by_affinity(trained)
    if not shown:
        return None
    starts = sort_inits(cell.init for one in shown for cell in one.cells[0])
    with style():
        figure = Figure(figsize=(WIDTH, 0.5 + (0.75 + 0.42 * len(starts)) * len(shown)), layout="constrained")
        grid = figure.subplots(len(shown), 2, squeeze=False)
        for line, one in zip(grid, shown, strict=True):
            blocks = sorted({cell.blocks for cell in one.cells[0]})
            for axes, kind, cells in zip(line, (one.first, one.second), one.cells, strict=True):
                for cell in cells:
                    _corner_square(axes, blocks.index(cell.blocks), starts.index(cell.init), cell)
                frame_squares(axes, [f"{number} blocks" for number in blocks], starts)
                axes.set(title=f"{kind[0]}, {AFFINITIES[kind[1]]}{STAGES.get(kind, '')}")
    return figure


def logits_figure(trained: TrainabilityMap) -> Figure | None:
    """Draw a column for each form and kernel, a mark for each run; None where no run was watched."""
    columns: list[tuple[str, str, list[tuple[float, bool]]]] = []
    for part, cells in trained.late:
        for form in dict.fromkeys(cell.form for cell in cells):
            marks = [
                (value, line["ending"] == "diverged")
                for cell in cells
                if cell.form == form
                for line in cell.runs
                if (value := spread_of(line)) is not None
            ]
            if marks:
                columns.append((form, f"{form}\n{part.sign}".rstrip(), marks))
    if not columns:
        return None
    with style():
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        for place, (form, _, marks) in enumerate(columns):
            # Next to one another in the order of their values, so that none hides another.
            for index, (value, diverged) in enumerate(sorted(marks, key=lambda mark: mark[0])):
                axes.plot(
                    place + 0.7 * ((index + 0.5) / len(marks) - 0.5),
                    value,
                    marker="x" if diverged else "o",
                    markersize=6 if diverged else 4,
                    markeredgewidth=1.8 if diverged else 1.0,
                    markerfacecolor="none",
                    color=SHADES["original" if form == "original" else "diffusive"][0],
                )
        axes.set_xticks(range(len(columns)), [name for _, name, _ in columns])
        axes.set(ylabel="spread of the logits", yscale="log", xlim=(-0.5, len(columns) - 0.5))
        axes.grid(False, axis="x")
        look: dict[str, Any] = {"color": INK, "linestyle": "none", "markerfacecolor": "none"}
        handles = [
            Line2D([], [], marker=marker, label=label, **look)
            for marker, label in (("o", "came to its end"), ("x", "diverged"))
        ]
        axes.legend(handles=handles, loc="upper center")
    return figure


def _square(axes: Axes, column: int, line: int, cell: Cell, colours: ScalarMappable) -> None:
    gone, left = len(cell.diverged), cell.loss
    face: Any = BROKEN if left is None else colours.to_rgba(np.asarray(left))
    _fill(axes, column, line, facecolor=face, edgecolor="none")
    if gone and left is not None:
        _fill(axes, column, line, fill=False, hatch="////", edgecolor=NEGATIVE, linewidth=1)
    is_dark = left is None or sum(face[:3]) < 1.5
    stuck = cell.n - gone - len(cell.trained)
    if left is None:
        lines = [f"✕ {cell.first_step}" if gone else "–"]
    else:
        lines = [f"{left:.2f}", f"○ {stuck}/{cell.n}" if stuck else "", f"✕ {gone}/{cell.n}" if gone else ""]
    lines.append("" if has_all_seeds(cell) else f"n = {cell.n}")
    box = {"boxstyle": "square,pad=0.15", "facecolor": face, "edgecolor": "none"}
    _write(axes, column, line, lines, is_dark, fontsize=7.5, linespacing=1.0, bbox=box)


def _eigenvalue(moment: dict[str, Any]) -> float | None:
    values = [
        weight["eigenvalue"]
        for stage in moment["stages"]
        for weight in stage.get("weights", [])
        if weight["eigenvalue"] is not None
    ]
    return max(values, key=abs, default=None)


def _corner_square(axes: Axes, column: int, line: int, cell: Cell) -> None:
    gone = len(cell.diverged)
    share = gone / cell.n
    face = colormaps["Greys"](0.1 + 0.7 * share)
    _fill(axes, column, line, facecolor=face, edgecolor="none")
    lines = [f"✕ {gone} of {cell.n}" if gone else "", "" if cell.error is None else f"{cell.error:.1f} %"]
    _write(axes, column, line, lines, share > 0.5, fontsize=8.5, linespacing=1.1)


def _fill(axes: Axes, column: int, line: int, **look: Any) -> None:
    axes.add_patch(Rectangle((column - 0.47, line - 0.45), 0.94, 0.9, **look))


def _write(axes: Axes, column: int, line: int, lines: list[str], is_dark: bool, **look: Any) -> None:
    """Write those of the lines that are not empty into the middle of a square."""
    colour = "white" if is_dark else "black"
    axes.text(column, line, "\n".join(filter(None, lines)), color=colour, ha="center", va="center", **look)
