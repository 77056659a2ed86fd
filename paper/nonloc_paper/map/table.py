"""MapTable: a table of finished runs as JSON lines, which grows by whole lines without repeats. No torch."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import NoneType
from typing import Any

from nonloc.outcomes import CorruptDataError, recorded_ending
from nonloc_paper.map.cells import MapCell
from nonloc_paper.runs import ENDED, NUMBER, check_lines_hold, finite_or_none, read_lines, write_atomically
from nonloc_paper.training.recipe import Recipe

# What every row has, and what it may be.
NEEDED: dict[str, type | tuple[type, ...]] = {
    "cell": str,
    "rate": NUMBER,
    "init": str,
    "form": str,
    "blocks": int,
    "seed": int,
    "ending": str,
    "step": (int, NoneType),
    "mean_loss": (*NUMBER, NoneType),
    "seconds": NUMBER,
    "recipe_sha256": str,
}


class MapTable:
    """The rows of one part of the map, one for each run, in the order in which they were finished; see map/run.py.

    The file is replaced as a whole for every row, so that a crash leaves all rows before it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = _read(self.path)
        self._known = {(row["cell"], row["seed"]): row for row in self.rows}

    def has(self, cell: MapCell, seed: int, recipe: Recipe) -> bool:
        """Return whether this run is recorded; another recipe under the same name is a ValueError."""
        row = self._known.get((cell.name, seed))
        if row is not None and row["recipe_sha256"] != recipe.sha256:
            raise ValueError(
                f"{self.path} has {cell.name}, seed {seed}, by another recipe ({row['recipe_sha256'][:8]}, not "
                f"{recipe.sha256[:8]}); use the same settings or another --output"
            )
        return row is not None

    def append(self, row: dict[str, Any]) -> None:
        """Add a finished run, on disk before this returns."""
        key = (row["cell"], row["seed"])
        if key in self._known:
            raise ValueError(f"{self.path} already has {key[0]}, seed {key[1]}")
        row = finite_or_none(row)
        self.rows.append(row)
        self._known[key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(each, allow_nan=False, ensure_ascii=False) + "\n" for each in self.rows)
        write_atomically(self.path, "".join(lines).encode())


def _read(path: Path) -> list[dict[str, Any]]:
    rows = read_lines(path, may_be_torn=False)
    check_lines_hold(rows, NEEDED, path)
    known = set()
    for number, row in enumerate(rows, start=1):
        key = (row["cell"], row["seed"])
        wrong = ""
        row["ending"] = recorded_ending(row["ending"])
        if row["ending"] not in ENDED or (row["ending"] == "diverged" and row["step"] is None):
            wrong = f"has ending {row['ending']!r} at step {row['step']}"
        elif not math.isfinite(row["seconds"]):
            wrong = f"has seconds {row['seconds']}"
        elif key in known:
            wrong = f"is {key[0]}, seed {key[1]} once more"
        if wrong:
            raise CorruptDataError(f"{path}, line {number}, {wrong}; delete that line")
        known.add(key)
    return rows
