"""Table 1 as recorded: every row with the published number, and the paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nonloc_paper.report.contrasts import Contrast, difference
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1_runs import Table1Runs, row_name, setting
from nonloc_paper.report.tables import Table, format_number, format_score, rows_by, score_columns


def rows_table(rows: Sequence[RowRecord]) -> Table:
    """Return a line for each row: what was published, what was measured, what diverged, how long it took."""
    columns = score_columns("error")
    columns = {
        "network": columns.pop("network"),
        "published (%)": lambda row: format_score(row.published),
        **columns,
        "diverged": lambda row: f"{len(row.diverged)} of {len(row.started)}" if row.started else "–",
        "seconds a run": lambda row: format_number(row.seconds, ".0f"),
    }
    return rows_by(columns, rows)


def row_differences(runs: Table1Runs) -> Iterator[tuple[RowRecord, Contrast, Contrast]]:
    """Yield every row with blocks, minus the baseline, and minus the original form with as many blocks.

    Rows have the training of the protocol, whatever their stage.
    """
    for row in runs.recorded:
        what = setting(row.recipe)
        if what.form is None or not all(text.startswith("stage.") for text in what.other):
            continue
        baseline = runs.find(form=None, backbone=what.backbone)
        twin = None
        if what.form == "diffusive" and what.weight == "factored":
            names = ("backbone", "blocks", "places", "start", "rate", "other")
            twin = runs.find(form="original", **{name: getattr(what, name) for name in names})
        yield row, difference(row, baseline), difference(row, twin)


def differences_table(runs: Table1Runs) -> Table:
    """Return for every row with blocks: minus the baseline, minus the original form, each as published, too."""
    lines = []
    for row, *pairs in row_differences(runs):
        cells = [cell for one in pairs for cell in (one.format(), one.format_published())]
        lines.append((row_name(row), *cells))
    header = ("network", "minus the baseline", "published", "minus the original form", "published")
    return Table(header, lines, key="minus the baseline")


def missing_table(runs: Table1Runs) -> Table:
    """Return which rows lack how many runs, and which suites have none yet."""
    lines = []
    for row in runs.everything:
        left = sum(run is None or run.result is None for run in row.runs)
        if left:
            lines.append((row_name(row), f"{left} of {len(row.runs)}"))
    for suite in runs.planned:
        count = sum(len(suite.recipes(row)) for row in suite.rows)
        lines.append((f"{suite.title} (nonloc reproduce {suite.name})", f"planned: {count}"))
    return Table(("row", "runs missing"), list(dict.fromkeys(lines)), key="runs missing")
