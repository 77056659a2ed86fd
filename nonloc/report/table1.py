"""Table 1 as kept: every row beside the published number, and the paired differences that the claims are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nonloc.report.kept import Kept, Setting, differences, setting
from nonloc.report.records import RowRecord
from nonloc.report.statistics import interval
from nonloc.report.tables import Table, number, value_of

HEADER = (
    "network",
    "published (%)",
    "n",
    "median error (%)",
    "range (%)",
    "every seed (%)",
    "diverged",
    "seconds a run",
)


def rows_table(rows: Sequence[RowRecord]) -> Table:
    """One line a row: what was published, what was measured, what diverged, how long it took."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(_line(row))
    return Table(HEADER, tuple((title, tuple(lines)) for title, lines in groups.items()))


def differences_table(kept: Kept) -> Table:
    """For every row with blocks: less the baseline, and less the original form with as many blocks, if there is one."""
    lines = []
    for row, what in _with_stages(kept):
        baseline = kept.find(form=None, backbone=what.backbone)
        twin = None
        if what.form == "diffusive" and what.weight == "factored":
            names = ("backbone", "blocks", "places", "start", "rate", "other")
            twin = kept.find(form="original", **{name: getattr(what, name) for name in names})
        lines.append((kept.named(row), _difference(row, baseline), _difference(row, twin)))
    return Table(("network", "less the baseline", "less the original form"), (("", tuple(lines)),))


def apart_table(kept: Kept) -> Table | None:
    """Form and affinity, of which the paper changes both, one at a time; None where no two rows allow it."""
    rows = {
        what: row for row, what in _with_stages(kept) if what.weight == "factored" and len(what.places) == 1
    }
    lines = []
    # One block alone has but one affinity: that pair is in the other table.
    for what in (what for what in rows if what.form == "diffusive" and what.blocks > 1):
        affinity = "shared" if what.shared else "recomputed"
        rate = "" if what.rate == kept.protocol.rate else f", rate {what.rate:g}"
        where = "; ".join((f"{what.blocks} blocks, start {what.start}{rate}", *what.other))
        for same, title, twin in (
            (affinity, "proposed less original", replace(what, form="original")),
            ("proposed", "recomputed less shared", replace(what, shared=True)),
        ):
            if twin != what and twin in rows:
                lines.append((where, same, title, _difference(rows[what], rows[twin])))
    lines.sort(key=lambda line: line[:2])
    header = ("stage", "the same in both", "difference", "error")
    return Table(header, (("", tuple(lines)),)) if lines else None


def _with_stages(kept: Kept) -> Iterator[tuple[RowRecord, Setting]]:
    """The recorded rows with blocks that have the training of the protocol: the baseline's, whatever their stage."""
    for row in kept.recorded:
        what = setting(row.recipe)
        if what.form is not None and all(text.startswith("stage.") for text in what.other):
            yield row, what


def missing_sentences(rows: Sequence[RowRecord]) -> list[str]:
    """For every group of rows, which lack how many of their runs; empty if there are all."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        left = sum(run is None or run.ending == "unfinished" for run in row.runs)
        if left:
            groups.setdefault(row.group, []).append(f"{row.label} {left} of {len(row.runs)}")
    return [f"{group}: {'; '.join(told)}." for group, told in groups.items()]


def _line(row: RowRecord) -> tuple[str, ...]:
    return (
        row.label,
        number(row.published),
        str(len(row.scores)),
        number(row.median),
        f"{min(row.scores):.2f} to {max(row.scores):.2f}" if len(row.scores) > 1 else "–",
        ", ".join(value_of(run) for run in row.runs) or "–",
        f"{len(row.diverged)} of {len(row.started)}" if row.started else "–",
        "–" if row.seconds is None else f"{row.seconds:.0f}",
    )


def _difference(one: RowRecord, other: RowRecord | None) -> str:
    found = interval(list(differences(one, other).values()))
    return "–" if found is None else found.told()
