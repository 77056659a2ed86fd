"""Table 1 as kept: every row beside the published number, and the paired differences that the claims are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, linear_regression

from nonloc_paper.report.evidence import NAMES
from nonloc_paper.report.kept import Kept, Setting, errors, lost, setting
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.statistics import interval, paired, signed
from nonloc_paper.report.tables import Table, number, range_of, value_of

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
    """For every row with blocks: less the baseline, and less the original form with as many blocks, if there is one;
    and what the published numbers differ by."""
    lines = []
    for row, what in _with_stages(kept):
        baseline = kept.find(form=None, backbone=what.backbone)
        twin = None
        if what.form == "diffusive" and what.weight == "factored":
            names = ("backbone", "blocks", "places", "start", "rate", "other")
            twin = kept.find(form="original", **{name: getattr(what, name) for name in names})
        compared = [
            told
            for other in (baseline, twin)
            for told in (told_difference(row, other), _published(row, other))
        ]
        lines.append((kept.named(row), *compared))
    header = ("network", "less the baseline", "published", "less the original form", "published")
    return Table(header, (("", tuple(lines)),))


def afterwards_table(kept: Kept) -> Table | None:
    """What was asked when the runs had been seen: the forms over all numbers of blocks, with as many parameters, and
    whether the number of blocks matters; None where no seed has all runs of one of them."""
    rows = {form: {n: kept.find(form=form, blocks=n) for n in range(1, 7)} for form in NAMES}
    lines = []
    means = [_by_seed([rows[form][n] for n in (2, 3, 4)], fmean) for form in ("diffusive", "original")]
    lines.append(("proposed less original, the mean over 2, 3 and 4 blocks", interval(paired(*means))))
    for blocks, proposed in rows["diffusive"].items():
        for others, original in rows["original"].items():
            if proposed and original and proposed.parameters == original.parameters is not None:
                name = f"{blocks} proposed less {others} original, {proposed.parameters:,} parameters each"
                pair = (_by_seed([row], fmean) for row in (proposed, original))
                lines.append((name, interval(paired(*pair))))
    for form, span in (("original", range(2, 5)), ("diffusive", range(2, 7))):
        slopes = _by_seed([rows[form][n] for n in span], partial(_slope, span))
        name = f"a block more, {NAMES[form]} form, {span[0]} to {span[-1]} blocks (slope of the error)"
        lines.append((name, interval(list(slopes.values()))))
    known = tuple((name, found.told()) for name, found in lines if found is not None)
    return Table(("asked afterwards", "points of error"), (("", known),)) if known else None


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
                lines.append((where, same, title, told_difference(rows[what], rows[twin])))
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
        range_of(row),
        ", ".join(value_of(run) for run in row.runs) or "–",
        f"{len(row.diverged)} of {len(row.started)}" if row.started else "–",
        "–" if row.seconds is None else f"{row.seconds:.0f}",
    )


def _slope(steps: Sequence[int], values: Sequence[float]) -> float:
    return linear_regression(steps, values).slope


def _by_seed(rows: Sequence[RowRecord | None], measure: Callable[[list[float]], float]) -> dict[int, float]:
    """`measure` of the errors of these rows, for every seed with which all of them ended without diverging."""
    found = [_ended(row) for row in rows]
    seeds = sorted(set.intersection(*(set(one) for one in found)))
    return {seed: measure([one[seed] for one in found]) for seed in seeds}


def _ended(row: RowRecord | None) -> dict[int, float]:
    """The error in % of each seed of a row that did not diverge."""
    return {seed: error for seed, error in errors(row).items() if seed not in lost(row)}


def told_difference(one: RowRecord | None, other: RowRecord | None, *, tells_n: bool = True) -> str:
    """Of pairs that both ended; an interval over errors of guessing would say nothing, so lost pairs are counted."""
    values = paired(_ended(one), _ended(other))
    pairs = len(errors(one).keys() & errors(other).keys())
    gone, found = pairs - len(values), interval(values)
    told = [f"{gone} of {pairs} pairs lost by divergence"] if gone else []
    told += [found.told(tells_n=tells_n)] if found is not None else []
    return "; ".join(told) or "–"


def _published(one: RowRecord, other: RowRecord | None) -> str:
    if other is None or one.published is None or other.published is None:
        return "–"
    return signed(one.published - other.published)
