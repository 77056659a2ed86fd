"""Figures of the trainability map: heat maps, readable without their colours, and the steps before a divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nonloc.nn.options import FORMS
from nonloc.plots import INK, NEGATIVE, style
from nonloc_paper.report.figures import WIDTH, plain_numbers
from nonloc_paper.report.style import SHADES
from nonloc_paper.report.trainability import (
    CHANCE_LOSS,
    TRAINS_BELOW,
    Cell,
    TrainabilityMap,
    has_all_seeds,
    inits,
    largest,
)

BROKEN = "#4a4f55"
SHOWN_RUNS = 6  # of each form
LINES = {"original": "--", "diffusive": "-", "stable": "-."}
MARKERS = {"original": "s", "diffusive": "o", "stable": "^"}

HEAT_CAPTION = (
    "Which stages train for one epoch at this rate. Number: the training loss over the last 50 steps, the mean of the "
    "seeds that were left (guessing is 2.30). ✕ and dark: all seeds diverged, with the step of the first. Hatched with "
    "✕ 1/2: one seed of two diverged. ○ 1/2: one of two came to the end no better than guessing. n: where seeds are "
    "missing, how many there are. Empty: not run."
)
BEFORE_CAPTION = (
    "The last steps of runs that diverged within ten epochs, as they were watched: one line a run, of each form "
    f"the first {SHOWN_RUNS} of the table above. The loss; the largest spread of the logits in a row of a kernel; the "
    "growth factor that `certify` gives the stage with the kernel of an image, where it has one; by how much the stage "
    "really enlarges the features of the worst of 32 images; the eigenvalue of sym(W) of largest magnitude over the "
    "sub-blocks. Dotted: 1, above which a stage enlarges, and 0. Steps are counted back from the divergence."
)


def heat_map(found: TrainabilityMap, rate: float) -> Figure:
    """Initialisation by number of blocks, original beside diffusive, at one rate."""
    cells = [cell for cell in found.one_epoch if cell.rate == rate]
    starts = inits(cell.init for cell in cells)
    forms = [form for form in FORMS if any(cell.form == form for cell in cells)]
    losses = [cell.loss for cell in found.one_epoch if cell.loss is not None]
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
    """Names for the columns and lines of squares, the first line above, and nothing else around them."""
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(lines) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(lines)), lines)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def before_divergence(cells: Sequence[Cell]) -> Figure | None:
    """Loss, logits, growth, amplification and largest eigenvalue against the steps that are left; None if nothing
    diverged."""
    gone = [(cell, line) for cell in cells for line in cell.diverged if line.get("before")]
    families = list(dict.fromkeys(cell.form for cell, _ in gone))
    shown = {name: [one for one in gone if one[0].form == name][:SHOWN_RUNS] for name in families}
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
        for name, runs in shown.items():
            shades = SHADES["original" if name == "original" else "diffusive"]
            for index, (cell, line) in enumerate(runs):
                look: dict[str, Any] = {
                    "color": shades[index % len(shades)],
                    "linestyle": LINES[name],
                    "marker": MARKERS[name],
                    "markersize": 3,
                }
                label = f"{name} {cell.blocks}, {cell.init}, seed {line['seed']}, step {line['step']}"
                for axes, (_, measure) in zip(all_axes, panels, strict=True):
                    points = [
                        (moment["step"] - line["step"], value)
                        for moment in line["before"]
                        if (value := measure(moment)) is not None
                    ]
                    axes.plot(
                        [step for step, _ in points], [value for _, value in points], **look, label=label
                    )
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


def _square(axes: Axes, column: int, line: int, cell: Cell, colours: ScalarMappable) -> None:
    gone, left = len(cell.diverged), cell.loss
    face: Any = BROKEN if left is None else colours.to_rgba(np.asarray(left))
    corner = (column - 0.47, line - 0.45)
    axes.add_patch(Rectangle(corner, 0.94, 0.9, facecolor=face, edgecolor="none"))
    if gone and left is not None:
        axes.add_patch(
            Rectangle(corner, 0.94, 0.9, fill=False, hatch="////", edgecolor=NEGATIVE, linewidth=1)
        )
    is_dark = left is None or sum(face[:3]) < 1.5
    stuck = cell.n - gone - len(cell.trained)
    if left is None:
        lines = [f"✕ {cell.first_step}" if gone else "–"]
    else:
        lines = [f"{left:.2f}", f"○ {stuck}/{cell.n}" if stuck else "", f"✕ {gone}/{cell.n}" if gone else ""]
    lines.append("" if has_all_seeds(cell) else f"n = {cell.n}")
    text = "\n".join(line for line in lines if line)
    axes.text(
        column,
        line,
        text,
        ha="center",
        va="center",
        fontsize=7.5,
        color="white" if is_dark else "black",
        linespacing=1.0,
        bbox={"boxstyle": "square,pad=0.15", "facecolor": face, "edgecolor": "none"},
    )


def _eigenvalue(moment: dict[str, Any]) -> float | None:
    values = [
        weight["eigenvalue"]
        for stage in moment["stages"]
        for weight in stage.get("weights", [])
        if weight["eigenvalue"] is not None
    ]
    return max(values, key=abs, default=None)
