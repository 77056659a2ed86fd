"""Table 1 as a picture: every seed of every number of blocks beside the published number."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nonloc.plots import CHANCE, INK, style
from nonloc_paper.report.evidence import FAILED, NAMES
from nonloc_paper.report.figures import WIDTH
from nonloc_paper.report.kept import Kept, setting
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.style import SHADES

MARKS = {"original": "s", "diffusive": "o"}
APART = {"original": -0.13, "diffusive": 0.13}
LINE = 11  # points from one note at the upper edge to the next
Column = tuple[tuple[int, ...], int]  # places, and blocks in each
CAPTION = (
    "Error after the last epoch by the number of blocks after residual block 2, or one block after each of several: "
    "every seed, a bar at the median, and the published number as an empty diamond. At the top: ✕ how many seeds "
    "diverged, of how many; numbers that lie above the frame, ◇ published and ▲ measured. Line: the median baseline "
    "here; dotted: the published one. One panel for each start of the stage's maps."
)


def table_figure(kept: Kept) -> Figure | None:
    """One panel for each start; None where no row with blocks has a run."""
    panels = {}
    for start in (kept.start, *kept.starts):
        rows = _rows(kept, start)
        if rows:
            panels[start] = rows
    if not panels:
        return None
    baseline = kept.find(form=None)
    scores = [score for rows in panels.values() for row in rows.values() for score in row.scores]
    scores += baseline.scores if baseline is not None else []
    # A run that failed is written at the edge: it would press all others together.
    scores = [score for score in scores if score < FAILED]
    low, high = (min(scores), max(scores)) if scores else (7.0, 9.0)
    room = max(high - low, 0.5)
    limits = (min(low, 7.29) - 0.1 * room, max(high, 8.28) + 0.3 * room)
    with style():
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (start, rows) in zip(all_axes, panels.items(), strict=True):
            if baseline is not None and baseline.median is not None:
                axes.axhline(baseline.median, color=CHANCE, linewidth=1.2)
            if baseline is not None and baseline.published is not None:
                axes.axhline(baseline.published, color=CHANCE, linewidth=1.2, linestyle=":")
            columns = sorted({column for _, column in rows}, key=lambda one: (len(one[0]), one))
            for (form, column), row in rows.items():
                _row(axes, form, columns.index(column), row, limits[1])
            _notes(axes, rows, columns, limits[1])
            axes.set(title=f"start {start}", xlabel="blocks", xlim=(-0.6, len(columns) - 0.4), ylim=limits)
            axes.set_xticks(range(len(columns)), [_told(*column) for column in columns])
        all_axes[0].set_ylabel("error on test images (%)")
        handles = [
            Line2D([], [], color=SHADES[form][0], marker=MARKS[form], linestyle="", label=NAMES[form])
            for form in MARKS
        ]
        handles.append(
            Line2D([], [], color=INK, marker="D", markerfacecolor="none", linestyle="", label="published")
        )
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _rows(kept: Kept, start: str) -> Mapping[tuple[str, Column], RowRecord]:
    """The rows of one start at the protocol's rate: each form with its own affinity."""
    found: dict[tuple[str, Column], RowRecord] = {}
    for row in kept.rows:
        what = setting(row.recipe)
        column = what.places, what.blocks
        wanted = {"blocks": what.blocks, "places": what.places, "start": start}
        if what.form and row.started and what == kept.wanted(form=what.form, **wanted):
            found.setdefault((what.form, column), row)
    return found


def _told(places: tuple[int, ...], blocks: int) -> str:
    """Such as "4", or "3 after\n2, 4, 6" in different places."""
    if len(places) == 1:
        return str(blocks)
    return f"{blocks * len(places)} after\n{', '.join(map(str, places))}"


def _row(axes: Axes, form: str, middle: int, row: RowRecord, top: float) -> None:
    at, colour = middle + APART[form], SHADES[form][0]
    axes.plot([at] * len(row.scores), row.scores, MARKS[form], color=colour, markersize=4.5, alpha=0.85)
    if row.median is not None:
        axes.plot([at - 0.11, at + 0.11], [row.median] * 2, color=colour, linewidth=2)
    if row.published is not None and row.published <= top:
        axes.plot([at], [row.published], "D", color=colour, markerfacecolor="none", markersize=6)


def _notes(
    axes: Axes, rows: Mapping[tuple[str, Column], RowRecord], columns: list[Column], top: float
) -> None:
    """What has no place in the frame, at its upper edge: the forms of a column below each other, for they are close."""
    for middle, column in enumerate(columns):
        here = [(form, rows[form, column]) for form in MARKS if (form, column) in rows]
        notes = [(form, note) for form, row in here for note in _beyond(row, top)]
        for line, (form, note) in enumerate(notes):
            axes.annotate(
                note,
                (middle + APART[form], top),
                (0, -LINE * line),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
                color=SHADES[form][0],
            )


def _beyond(row: RowRecord, top: float) -> list[str]:
    notes = [f"✕ {len(row.diverged)}/{len(row.started)}"] if row.diverged else []
    notes += [f"▲ {score:.2f}" for score in row.scores if score > top]
    if row.published is not None and row.published > top:
        notes.append(f"◇ {row.published:.2f}")
    return notes
