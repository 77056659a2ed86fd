"""read_map: the trainability map as records, one line a run, grouped by cell. Never imports torch."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeGuard

from nonloc.nn.options import FORMS
from nonloc_paper.map.cells import ONE_EPOCH, PARTS, TEN_EPOCHS, MapCell, MapPart
from nonloc_paper.map.table import MapTable
from nonloc_paper.report.tables import join_words

CHANCE_LOSS = math.log(10)  # nats: the cross-entropy of guessing among ten classes
TRAINS_BELOW = 0.95 * CHANCE_LOSS

Line = dict[str, Any]
MAP_FORMS = (*FORMS, "stable")


@dataclass(frozen=True)
class Cell(MapCell):
    """A cell with the runs of all its seeds."""

    runs: tuple[Line, ...]

    @property
    def n(self) -> int:
        return len(self.runs)

    @property
    def diverged(self) -> list[Line]:
        return [line for line in self.runs if line["ending"] == "diverged"]

    @property
    def finished(self) -> list[Line]:
        """The runs that came to their end, however badly."""
        return [line for line in self.runs if line["ending"] != "diverged"]

    @property
    def trained(self) -> list[Line]:
        """The runs that ended with a loss clearly below that of guessing."""
        return [
            line
            for line in self.finished
            if line["mean_loss"] is not None and line["mean_loss"] < TRAINS_BELOW
        ]

    @property
    def all_train(self) -> bool:
        return bool(self.runs) and len(self.trained) == self.n

    @property
    def first_step(self) -> int | None:
        """The step at which the first seed diverged."""
        return min((line["step"] for line in self.diverged if line["step"] is not None), default=None)

    @property
    def loss(self) -> float | None:
        """The mean over the last steps of the seeds that did not diverge."""
        losses = [line["mean_loss"] for line in self.finished if line["mean_loss"] is not None]
        return fmean(losses) if losses else None

    @property
    def error(self) -> float | None:
        """The median error in % of the seeds that did not diverge."""
        errors = [line["error"] for line in self.finished if line["error"] is not None]
        return median(errors) if errors else None

    @property
    def logit_spread(self) -> float | None:
        """The largest spread of the logits in a row of a kernel, over all seeds, where last a number was recorded."""
        spreads = []
        for line in self.runs:
            moments = [line["after"]] if line.get("after") else line["before"]
            seen = [spread for moment in moments if (spread := largest(moment, "logit_spread")) is not None]
            spreads += seen[-1:]
        return max(spreads, default=None)


def has_all_seeds(cell: Cell | None) -> TypeGuard[Cell]:
    """Whether all planned seeds of a cell of the one-epoch map are recorded."""
    return cell is not None and cell.n >= ONE_EPOCH.seeds


@dataclass(frozen=True)
class TrainabilityMap:
    """The recorded cells, and how many runs have other recipes and are in no cell; each by the name of the part."""

    cells: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)
    foreign: Mapping[str, int] = field(default_factory=dict)

    def of(self, part: MapPart) -> tuple[Cell, ...]:
        """Return the cells of a part; () where none is recorded."""
        return self.cells.get(part.name, ())

    @property
    def one_epoch(self) -> tuple[Cell, ...]:
        return self.of(ONE_EPOCH)

    @property
    def ten_epochs(self) -> tuple[Cell, ...]:
        return self.of(TEN_EPOCHS)

    @property
    def parts(self) -> list[tuple[MapPart, tuple[Cell, ...]]]:
        """Each part of the map, and its cells."""
        return [(part, self.of(part)) for part in PARTS.values()]

    @property
    def late(self) -> list[tuple[MapPart, tuple[Cell, ...]]]:
        """The parts of ten epochs of which something is recorded."""
        return [(part, cells) for part, cells in self.parts if part is not ONE_EPOCH and cells]

    @property
    def rates(self) -> list[float]:
        """From the highest down."""
        return sorted({cell.rate for cell in self.one_epoch}, reverse=True)

    def cell(self, rate: float, init: str, form: str, blocks: int) -> Cell | None:
        """Return a cell of the one-epoch map."""
        wanted = MapCell(rate, init, form, blocks).name
        return next((cell for cell in self.one_epoch if cell.name == wanted), None)


def read_map(folder: str | os.PathLike[str]) -> TrainabilityMap:
    """Read the tables below `folder`; a missing one is empty. Runs with `--set` are counted as foreign, unless it says
    only how to compute: precision and channels_last."""
    tables, foreign = {}, {}
    for name, part in PARTS.items():
        rows = MapTable(Path(folder) / f"{name}.jsonl").rows
        planned = {cell.name: cell for cell in part.cells}
        own = [
            row
            for row in rows
            if (cell := planned.get(row["cell"])) is not None
            and row["recipe_sha256"] in _hashes(part, cell, row["seed"])
        ]
        tables[name] = group_cells(own)
        foreign[name] = len(rows) - len(own)
    return TrainabilityMap(tables, foreign)


def _hashes(part: MapPart, cell: MapCell, seed: int) -> set[str]:
    ways = itertools.product(("bfloat16", "float32"), (True, False))
    bases = (part.base.with_(precision=precision, channels_last=last) for precision, last in ways)
    return {cell.recipe(base, seed).sha256 for base in bases}


def group_cells(lines: Sequence[Line]) -> tuple[Cell, ...]:
    """Group lines by all but their seed, in the order of rate, form (original first), start and number of blocks."""
    together: dict[tuple[float, str, str, int], list[Line]] = {}
    for line in sorted(lines, key=lambda line: line["seed"]):
        key = (line["rate"], line["init"], line["form"], line["blocks"])
        together.setdefault(key, []).append(line)
    starts = sort_inits(init for _, init, _, _ in together)

    def place(cell: Cell) -> tuple[float, int, int, int]:
        return -cell.rate, MAP_FORMS.index(cell.form), starts.index(cell.init), cell.blocks

    return tuple(sorted((Cell(*key, tuple(runs)) for key, runs in together.items()), key=place))


def sort_inits(names: Iterable[str]) -> list[str]:
    """Return each name once: deviations by size, then the others by the alphabet."""
    # "normal 0.07" stands before "normal 0.1" in the alphabet, too.
    return sorted(set(names), key=lambda name: (not name.startswith("normal "), name))


def largest(moment: dict[str, Any], name: str) -> float | None:
    """Return the largest value over all stages at one moment of a run; None where none has a number."""
    return max((stage[name] for stage in moment["stages"] if stage.get(name) is not None), default=None)


def format_blocks(numbers: Iterable[int]) -> str:
    """Return such as "2, 3 and 4 blocks"."""
    return f"{join_words(map(str, sorted(set(numbers))))} blocks"


def format_diverged(cells: Iterable[Cell]) -> str:
    """Return how many runs of these cells diverged, such as "3 of 5"."""
    cells = list(cells)
    return f"{sum(len(cell.diverged) for cell in cells)} of {sum(cell.n for cell in cells)}"
