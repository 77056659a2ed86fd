"""The trainability map as records: one line a run, read from tables and put together by cell. Never imports torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeGuard

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import PARTS, MapPart
from nonloc_paper.map.table import MapTable
from nonloc_paper.report.tables import listed

CHANCE_LOSS = math.log(10)  # nats: the cross-entropy of guessing among ten classes
TRAINS_BELOW = 0.95 * CHANCE_LOSS

Line = dict[str, Any]
MAP_FORMS = (*FORMS, "stable")


@dataclass(frozen=True)
class Cell:
    """All seeds of one place in the map.

    init  how the four maps begin, such as "normal 0.05" or "torch"
    form  "original", "diffusive" or, as the tables call a diffusive stage with weight="stable", "stable"
    """

    rate: float
    init: str
    form: str
    blocks: int
    runs: tuple[Line, ...]

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def diverged(self) -> list[Line]:
        return [line for line in self.runs if line["ending"] == "diverged"]

    @property
    def trained(self) -> list[Line]:
        return [line for line in self.runs if trains(line)]

    @property
    def first_step(self) -> int | None:
        """Where the first seed diverged."""
        return min((line["step"] for line in self.diverged if line["step"] is not None), default=None)

    @property
    def loss(self) -> float | None:
        """The mean over the last steps of the seeds that did not diverge."""
        losses = [
            line["mean_loss"]
            for line in self.runs
            if line["ending"] == "converged" and line["mean_loss"] is not None
        ]
        return fmean(losses) if losses else None

    @property
    def error(self) -> float | None:
        """The median error in % of the seeds that did not diverge."""
        found = [
            line["error"]
            for line in self.runs
            if line["ending"] == "converged" and line.get("error") is not None
        ]
        return median(found) if found else None

    @property
    def logit_spread(self) -> float | None:
        """The largest spread of the logits in a row of a kernel: of all seeds, at the last look that found a number."""
        found = []
        for line in self.runs:
            moments = [line["after"]] if line.get("after") else line.get("before") or []
            # In the last steps before a divergence logits may be no numbers any more.
            seen = [spread for moment in moments if (spread := largest(moment, "logit_spread")) is not None]
            found += seen[-1:]
        return max(found, default=None)

    @property
    def all_train(self) -> bool:
        return bool(self.runs) and len(self.trained) == self.n


def has_all_seeds(cell: Cell | None) -> TypeGuard[Cell]:
    """Whether all planned seeds of a cell of the one-epoch map are recorded."""
    return cell is not None and cell.n >= PARTS["one_epoch"].seeds


@dataclass(frozen=True)
class TrainabilityMap:
    """The map of one epoch, and the runs of ten epochs beside it; each may be empty.

    changed  ten epochs with something changed, by the name of the part
    foreign  runs of other recipes than their part has, which are in no cell: how many, by the name of the part
    """

    one_epoch: tuple[Cell, ...]
    ten_epochs: tuple[Cell, ...]
    changed: dict[str, tuple[Cell, ...]] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> list[tuple[MapPart, tuple[Cell, ...]]]:
        """Each part of the map, and its cells."""
        known = {"one_epoch": self.one_epoch, "ten_epochs": self.ten_epochs, **self.changed}
        return [(part, known.get(name, ())) for name, part in PARTS.items()]

    @property
    def late(self) -> list[tuple[MapPart, tuple[Cell, ...]]]:
        """The parts of ten epochs of which something is recorded."""
        return [(part, cells) for part, cells in self.parts if part.name != "one_epoch" and cells]

    @property
    def rates(self) -> list[float]:
        """From the highest down."""
        return sorted({cell.rate for cell in self.one_epoch}, reverse=True)

    def cell(self, rate: float, init: str, form: str, blocks: int) -> Cell | None:
        """A cell of the one-epoch map."""
        wanted = (rate, init, form, blocks)
        found = (one for one in self.one_epoch if (one.rate, one.init, one.form, one.blocks) == wanted)
        return next(found, None)


def recorded(found: TrainabilityMap) -> list[str]:
    """How many runs of each part of the map are recorded, of how many, and their time."""
    told = []
    for part, cells_of_part in found.parts:
        lines = [line for cell in cells_of_part for line in cell.runs]
        minutes = sum(line["seconds"] for line in lines) / 60
        planned = {(cell.name, seed) for cell, seed in part.runs()}
        done = sum((line["cell"], line["seed"]) in planned for line in lines)
        more = f", {len(lines) - done} beyond the plan" if len(lines) > done else ""
        told.append(
            f"{part.title}: {done} of {len(planned)} runs recorded{more}, {minutes:.0f} minutes of run time."
        )
        if count := found.foreign.get(part.name):
            told.append(f"{part.name}.jsonl: left out, {count} by other recipes than those of this part.")
    return told


def read_map(folder: str | os.PathLike[str]) -> TrainabilityMap:
    """The tables below `folder`; one that is not there is empty. Runs with `--set` are other runs, and set apart."""
    tables, foreign = {}, {}
    for name, part in PARTS.items():
        rows = MapTable(Path(folder) / f"{name}.jsonl").rows
        planned = {cell.name: cell for cell in part.cells}
        own = [
            row
            for row in rows
            if (cell := planned.get(row["cell"])) is not None
            and row["recipe_sha256"] == cell.recipe(part.base, row["seed"]).sha256
        ]
        tables[name] = cells(own)
        foreign[name] = len(rows) - len(own)
    return TrainabilityMap(tables.pop("one_epoch"), tables.pop("ten_epochs"), tables, foreign)


def cells(lines: Sequence[Line]) -> tuple[Cell, ...]:
    """The lines put together by all but their seed, in the order of rate, form, start and number of blocks."""
    together: dict[tuple[float, str, str, int], list[Line]] = {}
    for line in lines:
        key = (-line["rate"], line["form"], line["init"], line["blocks"])
        together.setdefault(key, []).append(line)
    starts = inits(key[2] for key in together)
    # Originals first, as the paper has them.
    keys = sorted(together, key=lambda key: (key[0], MAP_FORMS.index(key[1]), starts.index(key[2]), key[3]))
    return tuple(
        Cell(-rate, init, form, blocks, tuple(sorted(together[key], key=lambda line: line["seed"])))
        for key in keys
        for rate, form, init, blocks in [key]
    )


def inits(names: Iterable[str]) -> list[str]:
    """Each name once: deviations by size, then the others by the alphabet."""
    return sorted(set(names), key=lambda name: (deviation(name) is None, deviation(name) or 0.0, name))


def deviation(init: str) -> float | None:
    """The number in the name of a start such as "normal 0.05"; None for one that is not given by a deviation."""
    kind, _, number = init.partition(" ")
    return float(number) if kind == "normal" else None


def trains(line: Line) -> bool:
    """Whether a run ended with a loss clearly below that of guessing."""
    return (
        line["ending"] == "converged" and line["mean_loss"] is not None and line["mean_loss"] < TRAINS_BELOW
    )


def largest(moment: dict[str, Any], name: str) -> float | None:
    """Of all stages, as they were watched at one moment of a run; None where none has a number."""
    return max((stage[name] for stage in moment["stages"] if stage.get(name) is not None), default=None)


def diverged_counts(cells: Sequence[Cell]) -> list[tuple[str, int, int]]:
    """(family, runs that diverged, runs) for each family that there is."""
    counts = {family: [0, 0] for family in dict.fromkeys(cell.form for cell in cells)}
    for cell in cells:
        counts[cell.form][0] += len(cell.diverged)
        counts[cell.form][1] += cell.n
    return [(family, gone, runs) for family, (gone, runs) in counts.items()]


def blocks_told(cells: Sequence[Cell]) -> str:
    """Such as "2, 3 and 4 blocks"."""
    return f"{listed(map(str, sorted({cell.blocks for cell in cells})))} blocks"
