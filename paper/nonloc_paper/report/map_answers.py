"""Which rate, which initialisation: sentences and tables computed from the trainability map."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import ONE_EPOCH
from nonloc_paper.report.map_evidence import largest_growth
from nonloc_paper.report.tables import Table
from nonloc_paper.report.trainability import (
    Cell,
    TrainabilityMap,
    deviation,
    diverged_counts,
    has_all_seeds,
    inits,
)


def answers(found: TrainabilityMap) -> list[str]:
    """The map in a few sentences; empty where nothing was run."""
    told = []
    for rate in found.rates:
        here = [cell for cell in found.one_epoch if cell.rate == rate]
        safe = [start for start in inits(cell.init for cell in here) if _all_train(here, rate, start)]
        words = f"every number of blocks of both forms trains for one epoch, with all seeds, with: {'; '.join(safe)}"
        none = "no start is known with which every number of blocks of both forms trains for one epoch, with all seeds"
        told.append(f"At rate {rate:g} {words if safe else none}.")
    if found.rates:
        told += _limits(found, found.rates[0])
        best = _best(found)
        told += [best] if best else []
    for part, cells in found.late:
        change = f",{part.with_change}" if part.change else ""
        for family, gone, runs in diverged_counts(cells):
            told.append(f"Within ten epochs {gone} of {runs} runs with {family} stages diverged{change}.")
    return told


def largest_deviation(found: TrainabilityMap, rate: float, form: str, blocks: int) -> float | None:
    """The largest deviation of a normal start up to which all seeds train at every one that was tried; None: none."""
    cells = {
        number: cell
        for cell in found.one_epoch
        if (cell.rate, cell.form, cell.blocks) == (rate, form, blocks)
        and (number := deviation(cell.init)) is not None
    }
    best = None
    for number in sorted(cells):
        if not (has_all_seeds(cells[number]) and cells[number].all_train):
            break
        best = number
    return best


def limits_table(found: TrainabilityMap) -> Table:
    """For every rate, form and number of blocks: up to which deviation all seeds train, and which other starts do."""
    groups = []
    for rate in found.rates:
        lines = []
        for form in FORMS:
            here = [cell for cell in found.one_epoch if (cell.rate, cell.form) == (rate, form)]
            for blocks in sorted({cell.blocks for cell in here}):
                limit = largest_deviation(found, rate, form, blocks)
                others = [cell for cell in here if cell.blocks == blocks and deviation(cell.init) is None]
                lines.append(
                    (
                        f"{form} {blocks}",
                        "none" if limit is None else f"{limit:g}",
                        "; ".join(cell.init for cell in others if cell.all_train and has_all_seeds(cell))
                        or "–",
                        "; ".join(cell.init for cell in others if not cell.all_train) or "–",
                    )
                )
        groups.append((f"rate {rate:g}", tuple(lines)))
    header = ("stage", "all seeds train up to deviation", "other starts that train", "that do not")
    return Table(header, tuple(groups), prose=True)


def cells_table(found: TrainabilityMap, rate: float) -> Table:
    """Every cell of one rate: seeds that train and diverge, the first step of divergence, loss, error and logits."""
    lines = [_line(cell) for cell in found.one_epoch if cell.rate == rate]
    return Table(
        (
            "stage and start",
            "train",
            "diverged",
            "first at step",
            "last loss",
            "median error (%)",
            "spread of logits",
        ),
        (("", tuple(lines)),),
    )


def late_table(cells: Sequence[Cell]) -> Table:
    """The runs of ten epochs: the same, with the growth factor that came before a divergence."""
    lines = []
    for cell in cells:
        growths = [growth for line in cell.diverged if (growth := largest_growth(line)) is not None]
        steps = ", ".join(str(line["step"]) for line in cell.diverged) or "–"
        first, train, gone, _, *rest = _line(cell)
        lines.append((first, train, gone, steps, f"{max(growths):.3g}" if growths else "–", *rest))
    header = (
        "stage and start",
        "train",
        "diverged",
        "at steps",
        "largest growth before",
        "last loss",
        "median error (%)",
        "spread of logits",
    )
    return Table(header, (("", tuple(lines)),))


def _line(cell: Cell) -> tuple[str, ...]:
    return (
        f"{cell.form} {cell.blocks}, {cell.init}",
        f"{len(cell.trained)} of {cell.n}",
        f"{len(cell.diverged)} of {cell.n}",
        "–" if cell.first_step is None else str(cell.first_step),
        "–" if cell.loss is None else f"{cell.loss:.3f}",
        "–" if cell.error is None else f"{cell.error:.2f}",
        "–" if cell.logit_spread is None else f"{cell.logit_spread:.3g}",
    )


def _all_train(cells: Sequence[Cell], rate: float, start: str) -> bool:
    """Whether all that was planned with this start is recorded, and trains."""
    known = {(cell.form, cell.blocks): cell for cell in cells if cell.init == start}
    planned = [
        known.get((one.form, one.blocks)) for one in ONE_EPOCH.cells if (one.rate, one.init) == (rate, start)
    ]
    return bool(planned) and all(has_all_seeds(cell) and cell.all_train for cell in planned)


def _limits(found: TrainabilityMap, rate: float) -> list[str]:
    """At one rate, for each form: the largest deviation by number of blocks, in a sentence."""
    told = []
    for form in FORMS:
        numbers = sorted({cell.blocks for cell in found.one_epoch if (cell.rate, cell.form) == (rate, form)})
        limits = {blocks: largest_deviation(found, rate, form, blocks) for blocks in numbers}
        if limits:
            listed = ", ".join(
                f"{blocks}: {'none' if limit is None else f'{limit:g}'}" for blocks, limit in limits.items()
            )
            told.append(
                f"At rate {rate:g} the largest deviation of a normal start up to which all seeds train one epoch, by "
                f"the number of {form} blocks, is {listed}."
            )
    return told


def _best(found: TrainabilityMap) -> str:
    """The pair of rate and start with which all train, that has the lowest loss on average over the stages."""
    means = {}
    for rate in found.rates:
        here = [cell for cell in found.one_epoch if cell.rate == rate]
        for start in inits(cell.init for cell in here):
            losses = [cell.loss for cell in here if cell.init == start and cell.loss is not None]
            if _all_train(here, rate, start) and losses:
                means[rate, start] = fmean(losses)
    if not means:
        return ""
    rate, start = min(means, key=lambda key: (means[key], -key[0], key[1]))
    return (
        f"Of the pairs with which everything trains, rate {rate:g} with {start} has the lowest loss after one epoch: "
        f"{means[rate, start]:.3f} on average over the stages."
    )
