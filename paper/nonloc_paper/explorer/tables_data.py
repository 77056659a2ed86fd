"""The paired differences of the README's forest and of Table 1's page, and the README's tables. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nonloc_paper.explorer.rounding import rounded
from nonloc_paper.report.advice import PLACES
from nonloc_paper.report.contrasts import Contrast
from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.matching import BACKBONES, BLOCKS, hypothesis_parts, hypothesis_sentence
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.summary import OWN_MINUS_ONE, forest_lines, summary_sections
from nonloc_paper.report.table1 import row_differences
from nonloc_paper.report.table1_runs import Table1Runs, row_name, setting
from nonloc_paper.report.tables import Table
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites.tables import NAMES

OTHERS = "other starts, weights, rates and places, minus baseline"
TWINS = "other starts and places, proposed minus original"
LABELS = {"1": "1 block", "mean": f"mean of {BLOCKS[0]} to {BLOCKS[-1]} blocks"}
AFFINITIES: dict[bool | str | None, str] = {True: "one", False: "own"}


def data(runs: Table1Runs, trained: TrainabilityMap) -> dict[str, Any]:
    """Return the differences with their seeds, means, intervals and published numbers, and the tables."""
    return {
        "backbones": {place.backbone: place.title for place in PLACES if place.backbone in BACKBONES},
        "differences": [line for line in _differences(runs) if line["seeds"] or line["lost"]],
        "hypothesis": " ".join([hypothesis_sentence(runs).replace("**", ""), *hypothesis_parts(runs)]),
        "tables": [
            {
                "title": section.title,
                "about": [one for one in section.contents if isinstance(one, str)],
                "tables": [
                    {"header": one.header, "lines": one.lines}
                    for one in section.contents
                    if isinstance(one, Table)
                ],
            }
            for section in summary_sections(runs, trained)
            if any(isinstance(one, Table) for one in section.contents)
        ],
    }


def _differences(runs: Table1Runs) -> Iterator[dict[str, Any]]:
    shown = set()
    for backbone in BACKBONES:
        title = ""
        for label, _, contrast in forest_lines(runs, backbone):
            row = None if contrast is None else contrast.terms[0][1]
            if contrast is None:
                title = label
            elif row is not None:
                is_pair = title == OWN_MINUS_ONE
                shown |= set() if is_pair else {setting(row.recipe)}
                yield _line(
                    title, LABELS.get(label, f"{label} blocks"), row, contrast, "both" if is_pair else None
                )
    others = [line for line in row_differences(runs) if setting(line[0].recipe) not in shown]
    for row, minus_baseline, _ in others:
        yield _line(OTHERS, row_name(row), row, minus_baseline)
    for row, _, minus_original in others:
        yield _line(TWINS, row_name(row), row, minus_original)


def _line(
    title: str, label: str, row: RowRecord, contrast: Contrast, affinity: str | None = None
) -> dict[str, Any]:
    """A difference: every seed, and the mean and the interval of those that decide."""
    what = setting(row.recipe)
    found, values = contrast.interval, contrast.values
    alone = "; ".join(f"seed {seed}: {signed(value)}" for seed, value in contrast.every.items())
    ends = (None, None) if found is None or found.n < 2 else (found.low, found.high)
    return {
        "comparison": title,
        "label": label,
        "backbone": what.backbone,
        "form": NAMES[str(what.form)],
        "affinity": affinity or AFFINITIES.get(what.shared, str(what.shared)),
        "seeds": [[seed, rounded(value), seed in values] for seed, value in contrast.every.items()],
        "mean": None if found is None else rounded(found.mean),
        "ends": [rounded(end) for end in ends],
        "published": rounded(contrast.published),
        "text": contrast.format() if contrast.is_known else f"{alone}; decides nothing",
        "published_text": contrast.format_published(),
        "lost": contrast.lost,
    }
