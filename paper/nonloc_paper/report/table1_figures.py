"""Table 1 as pictures: every seed by number of blocks, and the extra rows grouped by question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nonloc.plots import CHANCE, INK, style
from nonloc_paper.report.figures import SHADES, WIDTH
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.rules import FAILED
from nonloc_paper.report.table1_runs import DIVIDED, NAMES, Table1Runs, setting

MARKS = {"original": "s", "diffusive": "o"}
APART = {"original": -0.13, "diffusive": 0.13}
LINE = 11  # points from one note at the upper edge to the next
VARIANTS = (((), ""), (DIVIDED, ", logits / √d"))
Column = tuple[tuple[int, ...], int]  # places, and blocks in each

TABLE_CAPTION = (
    "Error after the last epoch by number of blocks: every seed, a bar at the median, the published number as an empty "
    "diamond. At the top: ✕ seeds that diverged, and numbers above the frame, ◇ published and ▲ measured. Line: the "
    "median baseline here; dotted: the published one. One panel for each start."
)
EXTRA_CAPTION = (
    "Extra rows, grouped by question, with the rows of Table 1 to compare them with: every seed, a bar at the median. "
    "At the right: ✕ seeds that diverged; ▲ errors beyond the frame. Line: the median baseline."
)


def table_figure(runs: Table1Runs) -> Figure | None:
    """Draw one panel for each start; None where no row with blocks has a run."""
    panels = {start: rows for start in (runs.start, *runs.starts) if (rows := _rows(runs, start))}
    if not panels:
        return None
    baseline = runs.find(form=None)
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
            _columns(axes, rows, columns, limits[1])
            axes.set(title=f"start {start}", xlabel="blocks", xlim=(-0.6, len(columns) - 0.4), ylim=limits)
            names = [
                str(blocks)
                if len(places) == 1
                else f"{blocks * len(places)} after\n{', '.join(map(str, places))}"
                for places, blocks in columns
            ]
            axes.set_xticks(range(len(columns)), names)
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


def _rows(runs: Table1Runs, start: str) -> Mapping[tuple[str, Column], RowRecord]:
    """The rows of one start at the protocol's rate, each form with its own affinity."""
    found: dict[tuple[str, Column], RowRecord] = {}
    for row in runs.recorded:
        what = setting(row.recipe)
        wanted = {"blocks": what.blocks, "places": what.places, "start": start}
        if what.form and what == runs.wanted(form=what.form, **wanted):
            found.setdefault((what.form, (what.places, what.blocks)), row)
    return found


def _columns(
    axes: Axes, rows: Mapping[tuple[str, Column], RowRecord], columns: list[Column], top: float
) -> None:
    """Draw the marks of every row, and at the upper edge, below each other, what lies above the frame."""
    for middle, column in enumerate(columns):
        notes = 0
        for form in MARKS:
            row = rows.get((form, column))
            if row is None:
                continue
            at, colour = middle + APART[form], SHADES[form][0]
            axes.plot(
                [at] * len(row.scores), row.scores, MARKS[form], color=colour, markersize=4.5, alpha=0.85
            )
            if row.median is not None:
                axes.plot([at - 0.11, at + 0.11], [row.median] * 2, color=colour, linewidth=2)
            beyond = [f"✕ {len(row.diverged)}/{len(row.started)}"] if row.diverged else []
            beyond += [f"▲ {score:.2f}" for score in row.scores if score > top]
            if row.published is not None and row.published <= top:
                axes.plot([at], [row.published], "D", color=colour, markerfacecolor="none", markersize=6)
            elif row.published is not None:
                beyond.append(f"◇ {row.published:.2f}")
            for note in beyond:
                axes.annotate(
                    note,
                    (at, top),
                    (0, -LINE * notes),
                    textcoords="offset points",
                    ha="center",
                    va="top",
                    fontsize=8,
                    color=colour,
                )
                notes += 1


def extra_figure(runs: Table1Runs) -> Figure | None:
    """Draw one group of rows for each question; None where no extra row has a run."""
    groups = {
        title: lines for title, lines in _groups(runs) if any(row.published is None for _, row in lines)
    }
    if not groups:
        return None
    baseline = runs.find(form=None)
    lines = [line for some in groups.values() for line in some]
    scores = [score for _, row in lines for score in row.scores if score < FAILED]
    with style():
        # Half a line between two groups, and one for a group's title.
        figure = Figure(figsize=(WIDTH, 0.7 + 0.2 * (len(lines) + 1.5 * len(groups))), layout="constrained")
        axes = figure.subplots()
        if baseline is not None and baseline.median is not None:
            scores.append(baseline.median)
            axes.axvline(baseline.median, color=CHANCE, linewidth=1.2)
        low, high = (min(scores), max(scores)) if scores else (8.0, 9.0)
        room = max(high - low, 0.5)
        axes.set(xlim=(low - 0.1 * room, high + 0.2 * room), xlabel="error on test images (%)")
        across = axes.get_yaxis_transform()
        at, ticks = 0.0, {}
        for title, some in groups.items():
            axes.text(0, at, title, transform=across, va="center", weight="bold", fontsize=9)
            for name, row in some:
                at -= 1
                ticks[at] = name
                colour = SHADES[setting(row.recipe).form][0]
                axes.plot(row.scores, [at] * len(row.scores), "o", color=colour, markersize=4.5, alpha=0.85)
                if row.median is not None:
                    axes.plot([row.median] * 2, [at - 0.3, at + 0.3], color=colour, linewidth=2)
                note = _note(row)
                axes.text(1, at, note, transform=across, ha="right", va="center", fontsize=8, color=colour)
            at -= 1.5
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_ylim(at + 0.8, 0.8)
    return figure


def _note(row: RowRecord) -> str:
    """What lies beyond the frame: failed runs, and how many diverged."""
    notes = [f"▲ {score:.2f}" for score in row.scores if score >= FAILED]
    if row.diverged:
        left = len(row.runs) - len(row.started)
        notes.append(f"✕ {len(row.diverged)}/{len(row.started)}" + (f", {left} to run" if left else ""))
    return "  ".join(notes)


def _groups(runs: Table1Runs) -> Iterator[tuple[str, list[tuple[str, RowRecord]]]]:
    """Each question with the rows that have runs."""

    def recorded(lines: Iterable[tuple[str, RowRecord | None]]) -> list[tuple[str, RowRecord]]:
        return [(name, row) for name, row in lines if row is not None]

    for blocks in (5, 6):
        yield (
            f"{blocks} blocks: which form, which affinity",
            recorded(
                (f"{NAMES[form]}, {word}", runs.find(form=form, blocks=blocks, shared=shared))
                for form in NAMES
                for shared, word in ((True, "shared"), (False, "recomputed"))
            ),
        )
    known = [setting(row.recipe) for row in runs.recorded]
    stable_blocks = sorted({what.blocks for what in known if what.weight == "stable"})
    for start in (runs.start, *runs.starts):
        stable = {"form": "diffusive", "weight": "stable", "start": start}
        for other, more in VARIANTS:
            rows = ((f"{n} blocks", runs.find(**stable, blocks=n, other=other)) for n in stable_blocks)
            yield f"stable W, start {start}{more}", recorded(rows)
    yield (
        "one block after each of 2, 4 and 6",
        recorded(
            (f"{NAMES[form]}{more}", runs.find(form=form, blocks=1, places=(2, 4, 6), other=other))
            for other, more in VARIANTS
            for form in NAMES
        ),
    )
