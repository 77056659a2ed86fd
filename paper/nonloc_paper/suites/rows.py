"""Row, Suite: a table or a figure as data. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nonloc._checks import check_whole, shown
from nonloc_paper import file_schemas
from nonloc_paper.runs import read_json, write_json
from nonloc_paper.schema import check
from nonloc_paper.training.recipe import Recipe

MOST_SEEDS = 1000  # of a row, or of a cell of the map
MOST_THREADS = 1000
PLAN = "suite.json"  # next to the runs of a suite: which one, with which rows, seeds and changes
PLAN_FIX = "restore it, or delete it"


def read_plan(folder: Path) -> dict[str, Any]:
    """Return the content of suite.json; {} without one."""
    plan = read_json(folder / PLAN, fix=PLAN_FIX)
    if os.path.lexists(folder / PLAN):
        check(plan, file_schemas.PLAN, folder / PLAN, PLAN_FIX)
    return plan


def write_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write suite.json: which suite the runs in `folder` belong to: {"name", "rows", "changes", "seeds", …}."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, plan, indent=2)


@dataclass(frozen=True)
class Row:
    """One line of a table: a recipe, to be run with several seeds.

    label      as the table has it
    recipe     with seed 0
    published  the paper's number, the median of 5 runs: validation error in %; None where it has none
    note       what the paper leaves open about this row, and what was chosen
    group      its heading in the table
    seeds      how many, where it differs from the suite's
    former     its label when runs were recorded, which names their folder, where it had other words
    """

    label: str
    recipe: Recipe
    published: float | None = None
    note: str = ""
    group: str = ""
    seeds: int | None = None
    former: str = ""

    @property
    def slug(self) -> str:
        """The label as the name of a folder: "4-block (original)" is 4-block-original."""
        return re.sub(r"[^a-z0-9.]+", "-", (self.former or self.label).lower()).strip("-.")


@dataclass(frozen=True)
class Suite:
    """A table or a figure: rows, each to be run with `seeds` seeds (0, 1, …).

    epochs   after which a figure shows the spectra of its rows
    pairs    labels of two rows whose scores the report compares in a sentence, the one of interest first
    notes    what the text leaves open for all rows alike, and what was chosen
    threads  processor threads to run with; None is torch's choice. Small networks gain nothing from several, and
             with one the numbers do not depend on how many cores there are.
    weighed  labels of the rows of which `keep` keeps weights, which are most of a record's bytes; None is all rows
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    seeds: int
    epochs: tuple[int, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    threads: int | None = None
    weighed: tuple[str, ...] | None = None

    def recipes(self, row: Row) -> list[Recipe]:
        """Return the row's recipe once for each seed."""
        return [row.recipe.with_(seed=seed) for seed in range(row.seeds or self.seeds)]

    def run_label(self, recipe: Recipe) -> str:
        """Return a run's name for people: the row's label, with the seed where the row has several."""
        row = next(row for row in self.rows if row.recipe == recipe.with_(seed=0))
        return f"{row.label}, seed {recipe.seed}" if (row.seeds or self.seeds) > 1 else row.label

    def with_seeds(self, seeds: int) -> Suite:
        """Return the same suite with so many seeds for every row."""
        check_whole("seeds", seeds, most=MOST_SEEDS)
        return replace(self, seeds=seeds, rows=tuple(replace(row, seeds=None) for row in self.rows))

    def with_changes(self, changes: Mapping[str, Any]) -> Suite:
        """Return the same suite with some fields of all recipes changed; `stage` may be a dict of options."""
        if "seed" in changes:
            raise ValueError("seed cannot be changed for all rows; seeds=N says how many there are, from 0")
        rows = tuple(replace(row, recipe=row.recipe.with_(**changes)) for row in self.rows)
        first: dict[Recipe, Row] = {}
        for row in rows:
            same = first.setdefault(row.recipe, row)
            if same is not row:
                raise ValueError(
                    f"with these changes the rows {same.label!r} and {row.label!r} are the same; "
                    "choose rows that differ, with --rows"
                )
        return replace(self, rows=rows)

    def with_rows(self, names: Sequence[str]) -> Suite:
        """Return only the named rows: by number from 1, by label, or by a part of label or network."""
        chosen: list[Row] = []
        for name in names:
            chosen.extend(row for row in self._named(name) if row not in chosen)
        return replace(self, rows=tuple(row for row in self.rows if row in chosen))

    def _named(self, name: str) -> list[Row]:
        if name.isdecimal() and len(name) < 10 and 1 <= int(name) <= len(self.rows):
            return [self.rows[int(name) - 1]]
        exact = [row for row in self.rows if name in (row.label, row.recipe.network)]
        matching = exact or [row for row in self.rows if name in row.label or name in row.recipe.network]
        if not matching or name.isdecimal():
            choices = "; ".join(
                f"{number} {row.label} [{row.recipe.network}]" for number, row in enumerate(self.rows, 1)
            )
            raise ValueError(
                f"{shown(name)} is no row of {self.name}; choose a number or a part of: {choices}"
            )
        return matching
