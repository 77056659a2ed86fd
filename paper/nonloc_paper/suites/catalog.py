"""SUITES: every suite by its name. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nonloc._checks import shown
from nonloc_paper.suites import extra_tables, tables
from nonloc_paper.suites.demo import DEMO
from nonloc_paper.suites.matching_tables import MATCHING
from nonloc_paper.suites.rows import Suite

_PAPER = (tables.TABLE1, tables.TABLE2, tables.FIGURE1, tables.FIGURE2, tables.FIGURE3, tables.FIGURE4)
_EXTRA = (
    extra_tables.PROTOCOL,
    extra_tables.FRAGILE,
    extra_tables.STABLE,
    extra_tables.BESIDE,
    extra_tables.BACKBONES,
    *MATCHING,
)
SUITES: dict[str, Suite] = {suite.name: suite for suite in (DEMO, *_PAPER, *_EXTRA)}


def find_suite(name: str) -> Suite:
    """Return the suite called `name`; an unknown name lists the choices."""
    if name not in SUITES:
        raise ValueError(f"{shown(name)} is not a suite; choose one of {', '.join(SUITES)}")
    return SUITES[name]


def arranged_suite(
    name: str, *, rows: Sequence[str] = (), changes: Mapping[str, Any] | None = None, seeds: int | None = None
) -> Suite:
    """Return the suite called `name` with only some rows, changed recipes, or another number of seeds."""
    suite = find_suite(name)
    if rows:
        suite = suite.with_rows(rows)
    if changes:
        suite = suite.with_changes(changes)
    return suite if seeds is None else suite.with_seeds(seeds)
