"""Tables of the trainability map: which rate, which initialisation, form or affinity, how far logits spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import ONE_EPOCH, RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc_paper.report.map.cells import (
    Cell,
    Line,
    TrainabilityMap,
    deviation,
    format_blocks,
    has_all_seeds,
    largest,
    sort_inits,
)
from nonloc_paper.report.map.rules import largest_growth
from nonloc_paper.report.statistics import sign_test
from nonloc_paper.report.tables import Table, format_number

BACK = 50  # steps before a divergence: nearer to it, everything is large
CALM = 100  # a spread of logits to count by

EACH, ONE = "an affinity for each block", "one affinity for all blocks"
# A form and an affinity, and the part of the map that has them.
CORNERS = {
    ("original", EACH): TEN_EPOCHS,
    ("original", ONE): SHARED,
    ("diffusive", EACH): RECOMPUTED,
    ("diffusive", ONE): TEN_EPOCHS,
}
Corner = tuple[str, str]

_CELL_HEADER = ("last loss", "median error (%)", "spread of logits")


def safe_starts(trained: TrainabilityMap) -> dict[float, list[str]]:
    """Return, by rate, the starts from which every planned cell is recorded and trains with all seeds."""
    safe: dict[float, list[str]] = {}
    for rate in trained.rates:
        for start in sort_inits(cell.init for cell in trained.one_epoch if cell.rate == rate):
            planned = [
                trained.cell(rate, start, one.form, one.blocks)
                for one in ONE_EPOCH.cells
                if (one.rate, one.init) == (rate, start)
            ]
            if planned and all(has_all_seeds(cell) and cell.all_train for cell in planned):
                safe.setdefault(rate, []).append(start)
    return safe


def safe_starts_table(trained: TrainabilityMap) -> Table:
    """Return a line for each rate: the safe starts, and the mean loss after one epoch from the best of them."""
    safe, lines = safe_starts(trained), []
    for rate in trained.rates:
        losses = {
            start: fmean(
                cell.loss
                for cell in trained.one_epoch
                if (cell.rate, cell.init) == (rate, start) and cell.loss is not None
            )
            for start in safe.get(rate, [])
        }
        best = min(losses, key=lambda start: (losses[start], start), default=None)
        shown = "–" if best is None else f"{losses[best]:.3f} ({best})"
        lines.append((f"{rate:g}", "; ".join(losses) or "none is known", shown))
    header = (
        "rate",
        "every number of blocks of both forms trains one epoch, with all seeds, from",
        "lowest mean loss",
    )
    return Table(header, (("", tuple(lines)),), prose=True)


def limits_table(trained: TrainabilityMap) -> Table:
    """Return for every rate, form and number of blocks: up to which deviation all seeds train, and other starts."""
    groups = []
    for rate in trained.rates:
        lines = []
        for form in FORMS:
            here = [cell for cell in trained.one_epoch if (cell.rate, cell.form) == (rate, form)]
            for blocks in sorted({cell.blocks for cell in here}):
                limit = largest_deviation(trained, rate, form, blocks)
                others = [cell for cell in here if cell.blocks == blocks and deviation(cell.init) is None]
                good = [cell.init for cell in others if cell.all_train and has_all_seeds(cell)]
                bad = [cell.init for cell in others if not cell.all_train]
                first = "none" if limit is None else f"{limit:g}"
                lines.append((f"{form} {blocks}", first, "; ".join(good) or "–", "; ".join(bad) or "–"))
        groups.append((f"rate {rate:g}", tuple(lines)))
    header = ("stage", "all seeds train up to deviation", "other starts that train", "that do not")
    return Table(header, tuple(groups), prose=True)


def largest_deviation(trained: TrainabilityMap, rate: float, form: str, blocks: int) -> float | None:
    """Return the largest deviation up to which all seeds train at every deviation that was tried; None without one."""
    cells = {
        number: cell
        for cell in trained.one_epoch
        if (cell.rate, cell.form, cell.blocks) == (rate, form, blocks)
        and (number := deviation(cell.init)) is not None
    }
    best = None
    for number in sorted(cells):
        if not (has_all_seeds(cells[number]) and cells[number].all_train):
            break
        best = number
    return best


def cells_table(trained: TrainabilityMap, rate: float) -> Table:
    """Return every cell of one rate: seeds that train and diverge, first step of divergence, loss, error, logits."""
    lines = [
        (*_ends(cell), format_number(cell.first_step, "d"), *_losses(cell))
        for cell in trained.one_epoch
        if cell.rate == rate
    ]
    header = ("stage and start", "train", "diverged", "first at step", *_CELL_HEADER)
    return Table(header, (("", tuple(lines)),))


def late_table(cells: Sequence[Cell]) -> Table:
    """Return the runs of ten epochs: the same, with the growth factor that came before a divergence."""
    lines = []
    for cell in cells:
        growths = [growth for line in cell.diverged if (growth := largest_growth(line)) is not None]
        steps = ", ".join(str(line["step"]) for line in cell.diverged) or "–"
        lines.append((*_ends(cell), steps, format_number(max(growths, default=None), ".3g"), *_losses(cell)))
    header = ("stage and start", "train", "diverged", "at steps", "largest growth before", *_CELL_HEADER)
    return Table(header, (("", tuple(lines)),))


def _ends(cell: Cell) -> tuple[str, ...]:
    name = f"{cell.form} {cell.blocks}, {cell.init}"
    return name, f"{len(cell.trained)} of {cell.n}", f"{len(cell.diverged)} of {cell.n}"


def _losses(cell: Cell) -> tuple[str, ...]:
    return (
        format_number(cell.loss, ".3f"),
        format_number(cell.error, ".2f"),
        format_number(cell.logit_spread, ".3g"),
    )


def late_counts_table(trained: TrainabilityMap) -> Table:
    """Return how many runs of ten epochs diverged, by what was changed and by form."""
    lines = []
    for part, cells in trained.late:
        for form in dict.fromkeys(cell.form for cell in cells):
            some = [cell for cell in cells if cell.form == form]
            gone, runs = sum(len(cell.diverged) for cell in some), sum(cell.n for cell in some)
            lines.append((f"{form}, {format_blocks(some)}", part.change or "nothing", f"{gone} of {runs}"))
    return Table(("stages", "changed", "diverged within ten epochs"), (("", tuple(lines)),))


def runs_table(trained: TrainabilityMap) -> Table:
    """Return how many runs of each part of the map are recorded, of how many, and their time."""
    lines = []
    for part, cells in trained.parts:
        runs = [line for cell in cells for line in cell.runs]
        planned = {(cell.name, seed) for cell, seed in part.runs()}
        done = sum((line["cell"], line["seed"]) in planned for line in runs)
        extra, foreign = len(runs) - done, trained.foreign.get(part.name, 0)
        more = ([f"{extra} beyond the plan"] if extra else []) + (
            [f"{foreign} by other recipes, left out"] if foreign else []
        )
        minutes = sum(line["seconds"] for line in runs) / 60
        lines.append((part.title, f"{done} of {len(planned)}", f"{minutes:.0f}", ", ".join(more) or "–"))
    header = ("part", "runs recorded", "minutes of run time", "more")
    return Table(header, (("", tuple(lines)),))


@dataclass(frozen=True)
class Comparison:
    """Two of the four stages in the cells that both have, run by run.

    first, second      (form, affinity) of each
    cells              of the first, of the second, in the same order
    n                  pairs of runs with the same cell and seed
    first_gone         of so many pairs the first diverged; second_gone: the second
    only_first         of so many pairs the first alone diverged; only_second: the second alone
    """

    first: Corner
    second: Corner
    cells: tuple[tuple[Cell, ...], tuple[Cell, ...]]
    n: int
    first_gone: int
    second_gone: int
    only_first: int
    only_second: int

    @property
    def blocks(self) -> list[int]:
        return sorted({cell.blocks for cell in self.cells[0]})


def compare(trained: TrainabilityMap, first: Corner, second: Corner) -> Comparison | None:
    """Compare two stages; None where no cell and seed of both is recorded."""
    parts = {part.name: cells for part, cells in trained.parts}
    one, other = (
        {
            (cell.rate, cell.init, cell.blocks): cell
            for cell in parts[CORNERS[corner].name]
            if cell.form == corner[0]
        }
        for corner in (first, second)
    )
    places = [place for place in one if place in other]
    ends = []
    for place in places:
        gone, others = (
            {line["seed"]: line["ending"] == "diverged" for line in cells[place].runs}
            for cells in (one, other)
        )
        ends += [(gone[seed], others[seed]) for seed in sorted(gone.keys() & others.keys())]
    if not ends:
        return None
    return Comparison(
        first,
        second,
        (tuple(one[place] for place in places), tuple(other[place] for place in places)),
        n=len(ends),
        first_gone=sum(a for a, _ in ends),
        second_gone=sum(b for _, b in ends),
        only_first=sum(a and not b for a, b in ends),
        only_second=sum(b and not a for a, b in ends),
    )


def by_affinity(trained: TrainabilityMap) -> list[Comparison]:
    """Compare either affinity in each form."""
    made = [compare(trained, (form, EACH), (form, ONE)) for form in FORMS]
    return [one for one in made if one is not None]


def by_form(trained: TrainabilityMap) -> list[Comparison]:
    """Compare either form with each affinity."""
    made = [compare(trained, (FORMS[0], affinity), (FORMS[1], affinity)) for affinity in (EACH, ONE)]
    return [one for one in made if one is not None]


def corners_table(trained: TrainabilityMap) -> Table:
    """Return diverged runs by affinity in each form and by form with each affinity, with p of the sign test."""
    groups = []
    for title, shared, comparisons in (
        (f"first: {EACH}; second: {ONE}", 0, by_affinity(trained)),
        (f"first: {FORMS[0]}; second: {FORMS[1]}", 1, by_form(trained)),
    ):
        lines = []
        for one in comparisons:
            p = sign_test(one.only_first, one.only_second)
            lines.append(
                (
                    f"{one.first[shared]}, {format_blocks(one.cells[0])}",
                    f"{one.first_gone} of {one.n}",
                    f"{one.second_gone} of {one.n}",
                    str(one.only_first),
                    str(one.only_second),
                    f"{p:.2g}" if p >= 0.001 else "< 0.001",
                )
            )
        groups.append((title, tuple(lines)))
    header = ("stages", "first diverged", "second diverged", "only the first", "only the second", "p")
    return Table(header, tuple(groups))


def spread_of(line: Line) -> float | None:
    """Return how far the logits of a run spread at its end, or BACK steps before it diverged; None if not watched."""
    moment = line.get("after")
    if line["ending"] == "diverged":
        early = [one for one in line.get("before") or [] if one["step"] <= line["step"] - BACK]
        moment = early[-1] if early else None
    return largest(moment, "logit_spread") if moment else None


def logits_table(trained: TrainabilityMap) -> Table | None:
    """Return, by what was changed and by ending, how far logits spread; None where no run was watched."""
    lines = []
    for part, cells in trained.late:
        for diverged in (True, False):
            runs = [
                line for cell in cells for line in cell.runs if (line["ending"] == "diverged") is diverged
            ]
            values = [value for line in runs if (value := spread_of(line)) is not None]
            if values:
                low, high = _digits(min(values)), _digits(max(values))
                lines.append(
                    (
                        part.change or "nothing",
                        f"{BACK} steps before they diverged" if diverged else "at their end",
                        f"{len(values)} of {len(runs)}",
                        _digits(median(values)),
                        f"{low} to {high}",
                        f"{sum(value < CALM for value in values)} of {len(values)}",
                    )
                )
    header = ("changed", "runs seen", "of runs", "median spread", "range", f"below {CALM}")
    return Table(header, (("", tuple(lines)),)) if lines else None


def _digits(value: float) -> str:
    """Three digits, and never an exponent: 32,500, 138, 9.33."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
