"""How far the logits of a kernel spread, run by run, before a divergence and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nonloc.plots import INK, style
from nonloc_paper.map.cells import MapPart
from nonloc_paper.report.figures import WIDTH
from nonloc_paper.report.style import SHADES
from nonloc_paper.report.trainability import Cell, Line, TrainabilityMap, largest

BACK = 50  # steps before a divergence: nearer to it, everything is large
CALM = 100

ABOUT = (
    "The largest difference of two logits in a row of a kernel; median and range over the runs. "
    f"{CALM} is a mark to count by, chosen when the first of these runs had been seen. Runs that diverge within a "
    "hundred steps are seen near their start here, or not at all. Signals grow before a divergence, too (largest "
    "growth, in the tables of ten epochs, where `certify` could tell); which is the cause, these runs do not tell."
)

CAPTION = (
    "How far the logits of a kernel spread: the largest difference of two logits in a row, for the image, of 32, that "
    "the stage enlarges most; one mark a run of ten epochs. ○ after the last step of a run that came to its end; "
    f"✕ {BACK} steps before a run diverged. A softmax whose logits differ by hundreds picks single positions, and a "
    "small step of θ picks others."
)


@dataclass(frozen=True)
class Spread:
    """Of one run: how far its logits spread at its end, or BACK steps before it diverged."""

    family: str
    value: float
    diverged: bool


def spreads(cells: Sequence[Cell]) -> list[Spread]:
    """Of all runs that were watched."""
    found = []
    for cell in cells:
        for line in cell.runs:
            value = _spread(line)
            if value is not None:
                found.append(Spread(cell.form, value, line["ending"] == "diverged"))
    return found


@dataclass(frozen=True)
class Watched:
    """Runs of a part of the map that ended alike.

    runs    how many there are
    values  how far the logits spread, of those that were watched then
    """

    part: MapPart
    diverged: bool
    runs: int
    values: tuple[float, ...]


def told(diverged: bool, runs: int, values: Sequence[float]) -> str:
    """How many runs, when, how far their logits spread, and in how many of them not far."""
    number = f"{runs} runs" if len(values) == runs else f"{len(values)} of {runs} runs"
    when = f"{BACK} steps before they diverged" if diverged else "at their end"
    calm = sum(value < CALM for value in values)
    return f"{number}, {when}: {range_of(values)}, below {CALM} in {calm} of them"


def watched(found: TrainabilityMap) -> list[Watched]:
    """Of every part of ten epochs those that diverged, and the others; where there are any."""
    groups = []
    for part, cells in found.late:
        seen = spreads(cells)
        for diverged in (True, False):
            runs = sum((line["ending"] == "diverged") is diverged for cell in cells for line in cell.runs)
            values = tuple(one.value for one in seen if one.diverged is diverged)
            groups += [Watched(part, diverged, runs, values)] if runs else []
    return groups


def logits_sentences(found: TrainabilityMap) -> list[str]:
    """The figure in words; empty where no run of ten epochs was watched."""
    return [
        f"{group.part.change[0].upper() + group.part.change[1:] if group.part.change else 'As they are'}: "
        f"{told(group.diverged, group.runs, group.values)}."
        for group in watched(found)
        if group.values
    ]


def range_of(values: Sequence[float]) -> str:
    """Such as "32,500 (138 to 1,430,000)": the median, and the range."""
    middle, low, high = (_written(value) for value in (median(values), min(values), max(values)))
    return f"{middle} (median; {low} to {high})"


def logits_figure(found: TrainabilityMap) -> Figure | None:
    """A column for each form and kernel, a mark for each run; None where no run was watched."""
    columns: list[tuple[str, list[Spread]]] = []
    for part, cells in found.late:
        seen = spreads(cells)
        for family in dict.fromkeys(one.family for one in seen):
            name = f"{family}\n{part.sign}".rstrip()
            columns.append((name, [one for one in seen if one.family == family]))
    if not columns:
        return None
    with style():
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        for place, (_, runs) in enumerate(columns):
            # Beside one another in the order of their values, so that none hides another.
            for index, one in enumerate(sorted(runs, key=lambda one: one.value)):
                axes.plot(
                    place + 0.7 * ((index + 0.5) / len(runs) - 0.5),
                    one.value,
                    marker="x" if one.diverged else "o",
                    markersize=6 if one.diverged else 4,
                    markeredgewidth=1.8 if one.diverged else 1.0,
                    markerfacecolor="none",
                    color=SHADES["original" if one.family == "original" else "diffusive"][0],
                )
        axes.set_xticks(range(len(columns)), [name for name, _ in columns])
        axes.set(ylabel="spread of the logits", yscale="log", xlim=(-0.5, len(columns) - 0.5))
        axes.grid(False, axis="x")
        marks = [_mark("o", "came to its end"), _mark("x", "diverged")]
        axes.legend(handles=marks, loc="upper center")
    return figure


def _written(value: float) -> str:
    """Three digits, and never an exponent: 32,500, 138, 9.33."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _mark(marker: str, label: str) -> Line2D:
    return Line2D([], [], color=INK, linestyle="none", marker=marker, markerfacecolor="none", label=label)


def _spread(line: Line) -> float | None:
    moment = line.get("after")
    if line["ending"] == "diverged":
        early = [one for one in line.get("before") or [] if one["step"] <= line["step"] - BACK]
        moment = early[-1] if early else None
    return largest(moment, "logit_spread") if moment else None
