"""MapTable: a table of finished runs as JSON lines, which grows by whole lines without repeats. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nonloc.outcomes import CorruptDataError, recorded_ending
from nonloc_paper.file_schemas import MAP_ROW
from nonloc_paper.map.cells import MapCell
from nonloc_paper.runs import finite_or_none, read_lines, write_atomically
from nonloc_paper.schema import check_lines
from nonloc_paper.training.recipe import Recipe


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
    check_lines(rows, MAP_ROW, path)
    known = set()
    for number, row in enumerate(rows, start=1):
        row["ending"] = recorded_ending(row["ending"])
        key, has_diverged = (row["cell"], row["seed"]), row["ending"] == "diverged"
        name = MapCell(row["rate"], row["init"], row["form"], row["blocks"]).name
        epochs = [line["epoch"] for line in row["epochs"]]
        last = row["epochs"][-1] if row["epochs"] and not has_diverged else {}
        wrong = ""
        if has_diverged != (row["step"] is not None):
            wrong = f"has ending {row['ending']!r} at step {row['step']}"
        elif row["cell"] != name:
            wrong = f"has the cell {row['cell'][:40]!r}, not {name[:40]!r}"
        elif key in known:
            wrong = f"is {key[0]}, seed {key[1]} once more"
        elif epochs != list(range(1, len(epochs) + 1)):
            wrong = "has epochs that do not count from 1"
        elif any(row[score] != last.get(score) for score in ("error", "test_loss")):
            wrong = "has an error or test_loss that is not that of its last epoch"
        elif any(row["step"] is None or moment["step"] > row["step"] for moment in row["before"]):
            wrong = "has moments that do not come before its divergence"
        if wrong:
            raise CorruptDataError(f"{path}, line {number}, {wrong}; restore the file, or delete that line")
        known.add(key)
    return rows
