"""The records in a few sentences, advice first: every number is computed, and what is not recorded is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from nonloc_paper.map.cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.contrasts import Contrast, difference, mean_of
from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.tables import BACK, by_affinity, format_spread, spread_of
from nonloc_paper.report.matching import N3
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.signs import TOP, count_negative, negative_share, weights_at
from nonloc_paper.report.table1_runs import DIVIDED, NAMES, Setting, Table1Runs, group_size, setting
from nonloc_paper.report.tables import format_score, join_words

FRAGILE = "0.07"  # the larger start of Table 1
COMPARED = (2, 3, 4)  # blocks that both forms have
PROGRAMS = ("torch", "Triton", "Python")


def advice(runs: Table1Runs, trained: TrainabilityMap) -> list[str]:
    """Return the sentences of which something is recorded."""
    return list(
        filter(
            None,
            (
                _divide(runs, trained),
                _share(trained),
                _no_guarantee(runs, trained),
                _start_small(runs),
                _accuracy(runs, N3, "the backbone that matches"),
                _accuracy(runs, runs.protocol.backbone, "the literal reading"),
                _places(runs),
                _logits(trained),
                _spectra(runs),
                _conditions(runs),
            ),
        )
    )


def _divide(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for part, cells in trained.late if part.base.stage.scaled for cell in cells]
    if not short:
        return ""
    late = f"{sum(len(cell.diverged) for cell in short)} of {sum(cell.n for cell in short)}"
    text = f"**Divide the logits by √d.** Of such runs {late} diverged within ten epochs from larger starts"
    whole = _diverged(row for row, what in _whole(runs) if what.other == DIVIDED)
    return f"{text}, and {whole} over all epochs, in one place or in several." if whole else f"{text}."


def _share(trained: TrainabilityMap) -> str:
    counts = [(NAMES[one.first[0]], one.counts()) for one in by_affinity(trained)]
    texts = [
        f"{first} of {n} {name} runs diverge with own affinities, {second} with one"
        for name, (n, first, second, *_) in counts
    ]
    if not texts:
        return ""
    return f"**Or share the affinity.** From larger starts {'; '.join(texts)}. Differences alone prevent nothing."


def _no_guarantee(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for cell in trained.ten_epochs if cell.form == "stable"]
    if not short:
        return ""
    late = f"{sum(len(cell.diverged) for cell in short)} of {sum(cell.n for cell in short)}"
    text = (
        '**Sharing is no guarantee.** Stages that share the affinity and bound W (`weight="stable"`) diverged in '
        f"{late} runs within ten epochs from larger starts."
    )
    small = [
        (row, what) for row, what in _whole(runs) if what.weight == "stable" and what.start == runs.start
    ]
    if not small:
        return text
    deepest = max(what.blocks for _, what in small)
    return f"{text} From start {runs.start}, {_diverged(row for row, _ in small)} did, with up to {deepest} blocks."


def _start_small(runs: Table1Runs) -> str:
    four = [
        (row, what) for row, what in _whole(runs) if _is_plain(runs, what, "original") and what.blocks == 4
    ]
    counts = {
        start: _diverged(row for row, what in four if what.start == start) for start in (runs.start, FRAGILE)
    }
    if not counts[runs.start]:
        return ""
    text = (
        f"**Start small.** Of four original blocks, whose training failed in the paper, {counts[runs.start]} runs "
        f"diverged from start {runs.start}"
    )
    return f"{text}, {counts[FRAGILE]} from start {FRAGILE}." if counts[FRAGILE] else f"{text}."


def _accuracy(runs: Table1Runs, backbone: str, name: str) -> str:
    """The forms against the baseline and each other, over the numbers of blocks that both have; all seeds count."""
    baseline = runs.find(form=None, backbone=backbone)
    if baseline is None or baseline.median is None:
        return ""
    original, own, one = (
        [runs.find(form=form, blocks=n, backbone=backbone, shared=shared) for n in COMPARED]
        for form, shared in (("original", False), ("diffusive", False), ("diffusive", True))
    )
    means = {
        "original blocks": _mean_difference(original, [baseline] * 3),
        "proposed blocks with own affinities": _mean_difference(own, [baseline] * 3),
        "proposed blocks with one affinity": _mean_difference(one, [baseline] * 3),
    }
    known = [f"{what} {mean.format()}" for what, mean in means.items() if mean.values]
    if not known:
        return ""
    less = _mean_difference(one, original)
    return (
        f"**Accuracy, {group_size(backbone)}**, {name}. The baseline has {format_score(baseline.median)}, "
        f"published {format_score(baseline.published)}. Against it, in points over 2 to 4 blocks, all seeds: "
        f"{'; '.join(known)}."
    ) + (f" Proposed with one affinity less original: {less.format()}." if less.values else "")


def _places(runs: Table1Runs) -> str:
    def counts(other: tuple[str, ...]) -> list[str]:
        found = {
            name: _diverged(
                row
                for row, what in _whole(runs)
                if (what.form, what.start, what.other) == (form, runs.start, other) and len(what.places) > 1
            )
            for form, name in NAMES.items()
        }
        return [f"{count} {name}" for name, count in found.items() if count]

    plain, divided = counts(()), counts(DIVIDED)
    if not plain:
        return ""
    text = f"**Different places** can fail: from start {runs.start}, {join_words(plain)} runs diverged"
    text += f", with divided logits {join_words(divided)}" if divided else ""
    return f"{text}. The paper does not tell its set-up."


def _logits(trained: TrainabilityMap) -> str:
    lines = [
        line
        for part, cells in trained.late
        if part in (TEN_EPOCHS, SHARED, RECOMPUTED)
        for cell in cells
        for line in cell.runs
    ]
    gone, calm = (
        [
            value
            for line in lines
            if (line["ending"] == "diverged") is diverged and (value := spread_of(line)) is not None
        ]
        for diverged in (True, False)
    )
    if not gone or not calm:
        return ""
    return (
        f"**Logits** spread far before most divergences. {BACK} steps before, the median spread of {len(gone)} runs is "
        f"{format_spread(median(gone))}; at the end of {len(calm)} other runs it is {format_spread(median(calm))} "
        "([the map](map.md)). Whether this is the cause, these runs do not show."
    )


def _spectra(runs: Table1Runs) -> str:
    shares: list[str] = []
    counts: dict[str, list[int]] = {}
    for backbone in (N3, runs.protocol.backbone):
        found: dict[str, list[float]] = {}
        for row, what in _whole(runs):
            form = what.form or ""
            if (what.start, what.backbone) != (runs.start, backbone) or not _is_plain(runs, what, form):
                continue
            name = NAMES[form]
            if form != "original":
                name += " with one affinity" if what.shared else " with own affinities"
            ended = [weights for run in row.started if run.has_finished and (weights := weights_at(run))]
            found.setdefault(name, []).extend(
                100 * share for one in ended if (share := negative_share(one)) is not None
            )
            counts.setdefault(name, []).extend(count_negative([one]) for weights in ended for one in weights)
        spans = [
            f"{name} {min(parts):.0f} to {max(parts):.0f} %" for name, parts in sorted(found.items()) if parts
        ]
        shares += [f"with {group_size(backbone)} {', '.join(spans)}"] if spans else []
    if not shares:
        return ""
    spans = [f"{name} {min(one)} to {max(one)}" for name, one in sorted(counts.items()) if one]
    return (
        f"**Spectra** differ by energy. The negative part of that of sym(W): {'; '.join(shares)}. By count they hardly "
        f"do. Negative among the {TOP} largest eigenvalues of a W: {', '.join(spans)}. Features do not follow the "
        "spectra ([figures](figures.md))."
    )


def _conditions(runs: Table1Runs) -> str:
    made = [
        (
            f"batch {run.recipe.batch_size}",
            run.recipe.precision,
            f"{run.recipe.epochs} epochs",
            run.result["machine"]["device"],
            *(f"{name} {run.result['versions'].get(name.lower(), 'unknown')}" for name in PROGRAMS),
        )
        for row, _ in _whole(runs)
        for run in row.started
        if run.result is not None
    ]
    texts = [join_words(sorted(set(some))) for some in zip(*made, strict=True)]
    return f"**Conditions:** {', '.join(texts)}." if texts else ""


def _whole(runs: Table1Runs) -> list[tuple[RowRecord, Setting]]:
    """The rows of Table 1's data with blocks and all epochs, each with what it is."""
    rows = [row for row in runs.everything if row.started and NetworkSpec.parse(row.recipe.network).form]
    found = [(row, setting(row.recipe)) for row in rows]
    return [(row, what) for row, what in found if not set(what.other) - set(DIVIDED)]


def _is_plain(runs: Table1Runs, what: Setting, form: str) -> bool:
    """Whether this is a row of Table 1 in one place, from any start, with either affinity if it is proposed."""
    asked = {"form": form, "blocks": what.blocks, "start": what.start, "backbone": what.backbone}
    affinities = (False,) if form == "original" else (True, False)
    return what in [runs.wanted(**asked, shared=shared) for shared in affinities]


def _diverged(rows: Iterable[RowRecord]) -> str:
    """Such as "3 of 5" runs; "" without any."""
    rows = list(rows)
    started = sum(len(row.started) for row in rows)
    return f"{sum(len(row.diverged) for row in rows)} of {started}" if started else ""


def _mean_difference(rows: Sequence[RowRecord | None], others: Sequence[RowRecord | None]) -> Contrast:
    return mean_of([difference(*pair) for pair in zip(rows, others, strict=True)])
