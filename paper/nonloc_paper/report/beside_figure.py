"""What stands beside Table 1 as a picture: every run of a question's rows, one row below the other."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nonloc.plots import CHANCE, style
from nonloc_paper.report.evidence import FAILED, NAMES
from nonloc_paper.report.figures import WIDTH
from nonloc_paper.report.kept import DIVIDED, Kept, setting
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.style import SHADES

CAPTION = (
    "Error after the last epoch of stable stages and of the rows beside Table 1 that answer a question together, with "
    "the rows of it that they are to be compared with: every seed, a bar at the median. At the right: ✕ how many seeds "
    "diverged, of how many; ▲ errors that lie beyond the frame. Line: the median baseline."
)
VARIANTS = (((), ""), (DIVIDED, ", logits / √d"))
Line = tuple[str, RowRecord]


def beside_figure(kept: Kept) -> Figure | None:
    """One group for each question; None where no row beside the table has a run."""
    groups = {
        title: lines for title, lines in _groups(kept) if any(row.published is None for _, row in lines)
    }
    if not groups:
        return None
    baseline = kept.find(form=None)
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
        at, ticks = 0.0, {}
        for title, some in groups.items():
            axes.text(
                0, at, title, transform=axes.get_yaxis_transform(), va="center", weight="bold", fontsize=9
            )
            for name, row in some:
                at -= 1
                ticks[at] = name
                _row(axes, at, row)
            at -= 1.5
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_ylim(at + 0.8, 0.8)
    return figure


def _groups(kept: Kept) -> Iterator[tuple[str, list[Line]]]:
    """Each question with the rows that have runs."""
    for blocks in (5, 6):
        yield (
            f"{blocks} blocks: which form, which affinity",
            _found(
                (f"{NAMES[form]}, {word}", kept.find(form=form, blocks=blocks, shared=shared))
                for form in NAMES
                for shared, word in ((True, "shared"), (False, "recomputed"))
            ),
        )
    for start in (kept.start, *kept.starts):
        stable = {"form": "diffusive", "weight": "stable", "start": start}
        for other, told in VARIANTS:
            rows = [(n, kept.find(**stable, blocks=n, other=other)) for n in _stable_blocks(kept)]
            yield f"stable W, start {start}{told}", _found((f"{n} blocks", row) for n, row in rows)
    yield (
        "one block after each of 2, 4 and 6",
        _found(
            (f"{NAMES[form]}{told}", kept.find(form=form, blocks=1, places=(2, 4, 6), other=other))
            for other, told in VARIANTS
            for form in NAMES
        ),
    )


def _stable_blocks(kept: Kept) -> list[int]:
    known = [setting(row.recipe) for row in kept.recorded]
    return sorted({what.blocks for what in known if what.weight == "stable"})


def _found(lines: Iterator[tuple[str, RowRecord | None]]) -> list[Line]:
    return [(name, row) for name, row in lines if row is not None]


def _row(axes: Axes, at: float, row: RowRecord) -> None:
    colour = SHADES[setting(row.recipe).form][0]
    axes.plot(row.scores, [at] * len(row.scores), "o", color=colour, markersize=4.5, alpha=0.85)
    if row.median is not None:
        axes.plot([row.median] * 2, [at - 0.3, at + 0.3], color=colour, linewidth=2)
    notes = [f"▲ {score:.2f}" for score in row.scores if score >= FAILED]
    if row.diverged:
        left = len(row.runs) - len(row.started)
        notes.append(f"✕ {len(row.diverged)}/{len(row.started)}" + (f", {left} to run" if left else ""))
    if notes:
        axes.text(
            1,
            at,
            "  ".join(notes),
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=8,
            color=colour,
        )
