"""Table 1 as recorded: every row with the published number, a picture of it, and the paired differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, linear_regression
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nonloc.plots import CHANCE, INK, style
from nonloc_paper.report.figures import SHADES, WIDTH
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.rules import FAILED
from nonloc_paper.report.table1_runs import NAMES, Setting, Table1Runs, errors, lost, setting
from nonloc_paper.report.tables import Table, format_number, format_score, rows_by, score_columns
from nonloc_paper.report.verdicts import interval, paired, signed

MARKS = {"original": "s", "diffusive": "o"}
APART = {"original": -0.13, "diffusive": 0.13}
LINE = 11  # points from one note at the upper edge to the next
_T = TypeVar("_T")
Column = tuple[tuple[int, ...], int]  # places, and blocks in each

TABLE_CAPTION = (
    "Error after the last epoch by number of blocks: every seed, a bar at the median, the published number as an empty "
    "diamond. At the top: ✕ seeds that diverged, and numbers above the frame, ◇ published and ▲ measured. Line: the "
    "median baseline here; dotted: the published one. One panel for each start."
)


def rows_table(rows: Sequence[RowRecord]) -> Table:
    """Return a line for each row: what was published, what was measured, what diverged, how long it took."""
    columns = score_columns("error")
    columns = {
        "network": columns.pop("network"),
        "published (%)": lambda row: format_score(row.published),
        **columns,
        "diverged": lambda row: f"{len(row.diverged)} of {len(row.started)}" if row.started else "–",
        "seconds a run": lambda row: format_number(row.seconds, ".0f"),
    }
    return rows_by(columns, rows)


def differences_table(runs: Table1Runs) -> Table:
    """Return for every row with blocks: less the baseline, less the original form with as many blocks, as published."""
    lines = []
    for row, what in _with_stages(runs):
        baseline = runs.find(form=None, backbone=what.backbone)
        twin = None
        if what.form == "diffusive" and what.weight == "factored":
            names = ("backbone", "blocks", "places", "start", "rate", "other")
            twin = runs.find(form="original", **{name: getattr(what, name) for name in names})
        line = [runs.name(row)]
        for other in (baseline, twin):
            published = "–"
            if other is not None and row.published is not None and other.published is not None:
                published = signed(row.published - other.published)
            line += [format_difference(row, other), published]
        lines.append(tuple(line))
    header = ("network", "less the baseline", "published", "less the original form", "published")
    return Table(header, lines)


def afterwards_table(runs: Table1Runs) -> Table:
    """Return the questions asked when the runs had been seen, where some seed has all runs.

    The forms over all numbers of blocks, the forms with as many parameters, and the error of one more block.
    """
    rows = {form: {n: runs.find(form=form, blocks=n) for n in range(1, 7)} for form in NAMES}
    lines = []
    means = [_by_seed([rows[form][n] for n in (2, 3, 4)], fmean) for form in ("diffusive", "original")]
    lines.append(("proposed less original, the mean over 2, 3 and 4 blocks", interval(paired(*means))))
    for blocks, proposed in rows["diffusive"].items():
        for others, original in rows["original"].items():
            if proposed and original and proposed.parameters == original.parameters is not None:
                name = f"{blocks} proposed less {others} original, {proposed.parameters:,} parameters each"
                pair = (_by_seed([row], fmean) for row in (proposed, original))
                lines.append((name, interval(paired(*pair))))
    for form, span in (("original", range(2, 5)), ("diffusive", range(2, 7))):
        errors_of = _by_seed([rows[form][n] for n in span], list)
        slopes = [linear_regression(span, values).slope for values in errors_of.values()]
        name = f"a block more, {NAMES[form]} form, {span[0]} to {span[-1]} blocks (slope of the error)"
        lines.append((name, interval(slopes)))
    known = [(name, found.format()) for name, found in lines if found is not None]
    return Table(("asked afterwards", "points of error"), known)


def apart_table(runs: Table1Runs) -> Table:
    """Return the effect of form and of affinity, one at a time."""
    rows = {
        what: row for row, what in _with_stages(runs) if what.weight == "factored" and len(what.places) == 1
    }
    lines = []
    # One block alone has one affinity: that pair is in the other table.
    for what in (what for what in rows if what.form == "diffusive" and what.blocks > 1):
        affinity = "shared" if what.shared else "recomputed"
        rate = "" if what.rate == runs.protocol.rate else f", rate {what.rate:g}"
        backbone = "" if what.backbone == runs.protocol.backbone else f", {what.backbone}"
        where = "; ".join((f"{what.blocks} blocks, start {what.start}{rate}{backbone}", *what.other))
        for same, title, twin in (
            (affinity, "proposed less original", replace(what, form="original")),
            ("proposed", "recomputed less shared", replace(what, shared=True)),
        ):
            if twin != what and twin in rows:
                lines.append((where, same, title, format_difference(rows[what], rows[twin])))
    lines.sort(key=lambda line: line[:2])
    header = ("stage", "the same in both", "difference", "error")
    return Table(header, lines)


def missing_table(runs: Table1Runs) -> Table:
    """Return which rows lack how many runs, and which suites have none yet."""
    lines = []
    for row in (*runs.rows, *runs.tried, *runs.backbones_tried):
        left = sum(run is None or run.result is None for run in row.runs)
        if left:
            lines.append((runs.name(row), f"{left} of {len(row.runs)}"))
    for suite in runs.planned:
        count = sum(len(suite.recipes(row)) for row in suite.rows)
        lines.append((f"{suite.title} (`nonloc reproduce {suite.name}`)", f"planned: {count}"))
    return Table(("row", "runs missing"), list(dict.fromkeys(lines)))


def format_difference(one: RowRecord | None, other: RowRecord | None) -> str:
    """Return the mean difference of the pairs that both ended; pairs lost by divergence are counted, not averaged."""
    values = paired(_ended(one), _ended(other))
    pairs = len(errors(one).keys() & errors(other).keys())
    gone, found = pairs - len(values), interval(values)
    texts = [f"{gone} of {pairs} pairs lost by divergence"] if gone else []
    texts += [found.format()] if found is not None else []
    return "; ".join(texts) or "–"


def _with_stages(runs: Table1Runs) -> Iterator[tuple[RowRecord, Setting]]:
    """The recorded rows with blocks that have the training of the protocol, whatever their stage."""
    for row in runs.recorded:
        what = setting(row.recipe)
        if what.form is not None and all(text.startswith("stage.") for text in what.other):
            yield row, what


def _by_seed(rows: Sequence[RowRecord | None], measure: Callable[[list[float]], _T]) -> dict[int, _T]:
    """`measure` of the errors of these rows, for every seed with which all of them ended without diverging."""
    found = [_ended(row) for row in rows]
    seeds = sorted(set.intersection(*(set(one) for one in found)))
    return {seed: measure([one[seed] for one in found]) for seed in seeds}


def _ended(row: RowRecord | None) -> dict[int, float]:
    """The error in % of each seed of a row that did not diverge."""
    return {seed: error for seed, error in errors(row).items() if seed not in lost(row)}


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
