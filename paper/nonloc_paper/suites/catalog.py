"""SUITES: every suite by its name. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nonloc_paper.suites.backbone import BACKBONES, TABLE1_N3
from nonloc_paper.suites.beside import BESIDE, FRAGILE, STABLE
from nonloc_paper.suites.demo import DEMO
from nonloc_paper.suites.figures import FIGURE1, FIGURE2, FIGURE3, FIGURE4
from nonloc_paper.suites.protocol import PROTOCOL
from nonloc_paper.suites.rows import Suite
from nonloc_paper.suites.tables import TABLE1, TABLE2

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        DEMO,
        TABLE1,
        TABLE2,
        FIGURE1,
        FIGURE2,
        FIGURE3,
        FIGURE4,
        PROTOCOL,
        FRAGILE,
        STABLE,
        BESIDE,
        BACKBONES,
        TABLE1_N3,
    )
}


def find_suite(name: str) -> Suite:
    """The suite called `name`; a name that is not one lists the choices."""
    if name not in SUITES:
        raise ValueError(f"{name!r} is not a suite; choose one of {', '.join(SUITES)}")
    return SUITES[name]


def arranged_suite(
    name: str,
    *,
    rows: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    seeds: int | None = None,
) -> Suite:
    """The suite called `name` with only some rows, changed recipes, or another number of seeds."""
    suite = find_suite(name)
    if rows:
        suite = suite.with_rows(rows)
    if changes:
        suite = suite.with_changes(changes)
    return suite if seeds is None else suite.with_seeds(seeds)
