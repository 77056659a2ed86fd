"""Tables of the trainability map: which rate, which initialisation, form or affinity, how far logits spread."""

from __future__ import annotations

from statistics import fmean, median
from typing import NamedTuple

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import ONE_EPOCH, RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc_paper.report.map.cells import (
    Cell,
    Line,
    TrainabilityMap,
    format_blocks,
    format_diverged,
    has_all_seeds,
    largest,
    sort_inits,
)
from nonloc_paper.report.map.rules import largest_growth
from nonloc_paper.report.table1_runs import AFFINITIES, ONE, ORIGINAL, OWN, Kind
from nonloc_paper.report.tables import Table, format_number
from nonloc_paper.report.verdicts import count_pairs, format_chance

BACK = 50  # steps before a divergence: nearer to it, everything is large
CALM = 100  # a spread of logits to count by

# The part of the map that has a form with an affinity.
PART_OF = {ORIGINAL: TEN_EPOCHS, ("original", True): SHARED, OWN: RECOMPUTED, ONE: TEN_EPOCHS}


def safe_starts(trained: TrainabilityMap) -> dict[float, dict[str, float]]:
    """Return, by rate, the mean loss of each start from which all planned cells are there and train with all seeds."""
    safe: dict[float, dict[str, float]] = {}
    for rate in trained.rates:
        for start in sort_inits(cell.init for cell in trained.one_epoch if cell.rate == rate):
            planned = [
                trained.cell(rate, start, one.form, one.blocks)
                for one in ONE_EPOCH.cells
                if (one.rate, one.init) == (rate, start)
            ]
            if planned and all(has_all_seeds(cell) and cell.all_train for cell in planned):
                losses = [cell.loss for cell in planned if cell and cell.loss is not None]
                safe.setdefault(rate, {})[start] = fmean(losses)
    return safe


def safe_starts_table(trained: TrainabilityMap) -> Table:
    """Return a line for each rate: the safe starts, and the mean loss after one epoch from the best of them."""
    safe, lines = safe_starts(trained), []
    for rate in trained.rates:
        losses = safe.get(rate, {})
        best = min(losses, key=lambda start: (losses[start], start), default=None)
        shown = "–" if best is None else f"{losses[best]:.3f} ({best})"
        lines.append((f"{rate:g}", "; ".join(losses) or "none is known", shown))
    starts = "every number of blocks of both forms trains one epoch, with all seeds, from"
    header = ("rate", starts, "lowest mean loss")
    return Table(header, lines, prose=True)


def cells_table(trained: TrainabilityMap) -> Table:
    """Return every cell: how many runs train and diverge, when and after which growth, loss, error and logits."""
    lines = []
    for part, cells in trained.parts:
        for cell in cells:
            growths = [growth for line in cell.diverged if (growth := largest_growth(line)) is not None]
            lines.append(
                (
                    str(part.base.epochs),
                    part.change or "nothing",
                    f"{cell.rate:g}",
                    cell.form,
                    str(cell.blocks),
                    cell.init,
                    *(str(len(runs)) for runs in (cell.runs, cell.trained, cell.diverged)),
                    " ".join(str(line["step"]) for line in cell.diverged) or "–",
                    format_number(max(growths, default=None), ".3g"),
                    format_number(cell.loss, ".3f"),
                    format_number(cell.error, ".2f"),
                    format_number(cell.logit_spread, ".3g"),
                )
            )
    where = ("epochs", "changed", "rate", "form", "blocks", "start")
    ends = ("runs", "train", "diverged", "at steps", "largest growth before")
    header = (*where, *ends, "last loss", "median error (%)", "spread of logits")
    return Table(header, lines, key="diverged")


def late_counts_table(trained: TrainabilityMap) -> Table:
    """Return how many runs of ten epochs diverged, by what was changed and by form."""
    lines = []
    for part, cells in trained.late:
        for form in dict.fromkeys(cell.form for cell in cells):
            some = [cell for cell in cells if cell.form == form]
            stages = f"{form}, {format_blocks(cell.blocks for cell in some)}"
            lines.append((stages, part.change or "nothing", format_diverged(some)))
    header = ("stages", "changed", "diverged within ten epochs")
    return Table(header, lines, key=header[2])


def runs_table(trained: TrainabilityMap) -> Table:
    """Return how many runs of each part of the map are recorded, of how many, and their time."""
    lines = []
    for part, cells in trained.parts:
        runs = [line for cell in cells for line in cell.runs]
        planned = {(cell.name, seed) for cell, seed in part.runs()}
        done = sum((line["cell"], line["seed"]) in planned for line in runs)
        extra, foreign = len(runs) - done, trained.foreign.get(part.name, 0)
        more = [f"{extra} beyond the plan"] if extra else []
        more += [f"{foreign} by other recipes, left out"] if foreign else []
        minutes = sum(line["seconds"] for line in runs) / 60
        lines.append((part.title, f"{done} of {len(planned)}", f"{minutes:.0f}", ", ".join(more) or "–"))
    header = ("part", "runs recorded", "minutes of run time", "more")
    return Table(header, lines, key="runs recorded")


class Comparison(NamedTuple):
    """Two of the four stages, each a form and an affinity, in the cells that both have, run by run.

    cells  of the first, of the second, in the same order
    ends   of each pair of runs with the same cell and seed: whether the first diverged, and the second
    """

    first: Kind
    second: Kind
    cells: tuple[tuple[Cell, ...], tuple[Cell, ...]]
    ends: list[tuple[bool, bool]]


def compare(trained: TrainabilityMap, first: Kind, second: Kind) -> Comparison | None:
    """Compare two stages; None where no cell and seed of both is recorded."""
    one, other = (
        {
            (cell.rate, cell.init, cell.blocks): cell
            for cell in trained.of(PART_OF[kind])
            if cell.form == kind[0]
        }
        for kind in (first, second)
    )
    places = [place for place in one if place in other]
    ends = []
    for place in places:
        gone, others = (
            {line["seed"]: line["ending"] == "diverged" for line in cells[place].runs}
            for cells in (one, other)
        )
        ends += [(gone[seed], others[seed]) for seed in sorted(gone.keys() & others.keys())]
    cells = (tuple(one[place] for place in places), tuple(other[place] for place in places))
    return Comparison(first, second, cells, ends) if ends else None


def by_affinity(trained: TrainabilityMap) -> list[Comparison]:
    """Compare either affinity in each form."""
    return list(filter(None, (compare(trained, (form, False), (form, True)) for form in FORMS)))


def by_form(trained: TrainabilityMap) -> list[Comparison]:
    """Compare either form with each affinity."""
    original, diffusive = FORMS
    return list(filter(None, (compare(trained, (original, one), (diffusive, one)) for one in AFFINITIES)))


def form_by_affinity_table(trained: TrainabilityMap) -> Table:
    """Return diverged runs by affinity in each form and by form with each affinity, with p of the sign test."""
    lines: list[tuple[str, tuple[str, ...]]] = []
    compared = [(tuple(AFFINITIES.values()), one, one.first[0]) for one in by_affinity(trained)]
    compared += [(FORMS, one, AFFINITIES[one.first[1]]) for one in by_form(trained)]
    for words, one, same in compared:
        n, first, second, *alone = count_pairs(one.ends)
        name = f"{same}, {format_blocks(cell.blocks for cell in one.cells[0])}"
        counts = (f"{first} of {n}", f"{second} of {n}", *map(str, alone))
        lines.append(("first: {}; second: {}".format(*words), (name, *counts, format_chance(*alone))))
    header = ("stages", "first diverged", "second diverged", "only the first", "only the second", "sign test")
    return Table.grouped(header, lines)


def spread_of(line: Line) -> float | None:
    """Return how far the logits of a run spread at its end, or BACK steps before it diverged; None if not watched."""
    moment = line.get("after")
    if line["ending"] == "diverged":
        early = [one for one in line["before"] if one["step"] <= line["step"] - BACK]
        moment = early[-1] if early else None
    return largest(moment, "logit_spread") if moment else None


def logits_table(trained: TrainabilityMap) -> Table:
    """Return, by what was changed and by ending, how far the logits of the runs that were watched spread."""
    lines = []
    for part, cells in trained.late:
        for diverged, when in ((True, f"{BACK} steps before they diverged"), (False, "at their end")):
            runs = [
                line for cell in cells for line in cell.runs if (line["ending"] == "diverged") is diverged
            ]
            values = [value for line in runs if (value := spread_of(line)) is not None]
            if values:
                low, middle, high = map(format_spread, (min(values), median(values), max(values)))
                seen, calm = f"{len(values)} of {len(runs)}", sum(value < CALM for value in values)
                spread = (middle, f"{low} to {high}", f"{calm} of {len(values)}")
                lines.append((part.change or "nothing", when, seen, *spread))
    header = ("changed", "runs seen", "of runs", "median spread", "range", f"below {CALM}")
    return Table(header, lines, key="median spread")


def format_spread(value: float) -> str:
    """Three digits, and never an exponent: 32,500, 138, 9.33."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
