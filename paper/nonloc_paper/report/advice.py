"""The records in ten sentences, advice first, and the differences and spectra that they speak of.

Every number is computed, and what is not recorded is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.contrasts import Contrast, difference, mean_of
from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.tables import by_affinity
from nonloc_paper.report.matching import N3, breaks, corner_effects, divergence_counts, gains
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.signs import TOP, count_negative, negative_share, weights_at
from nonloc_paper.report.table1_runs import (
    DIVIDED,
    KINDS,
    NAMES,
    Setting,
    Table1Runs,
    deciding_seeds,
    group_size,
    setting,
)
from nonloc_paper.report.tables import Table, format_range, format_score, join_words
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites.matching_tables import RATE_N3, TABLE2_N9

FRAGILE = "0.07"  # the larger start of Table 1
COMPARED = (2, 3, 4)  # blocks that both forms have
# Pairs of RATE_N3.
OF_RATE = ("2 original blocks", "4 original blocks", "4 proposed blocks with own affinities")
WORDS_OF_RATE = {"breaks": ", which breaks", "not shown": ", no break shown", "–": ""}
PROGRAMS = ("torch", "Triton", "Python")
SPECTRA = "**Spectra** of the weights tell forms apart by the size of the negative eigenvalues, hardly by their number."


def advice(runs: Table1Runs, trained: TrainabilityMap) -> list[str]:
    """Return those of the ten sentences of which something is recorded."""
    sentences = (
        _divide(runs, trained),
        _share(runs, trained),
        _no_guarantee(runs, trained),
        _start_small(runs),
        *(_accuracy(runs, place) for place in places(runs)),
        _corners(runs),
        _rate(runs),
        SPECTRA if spectra_table(runs) else "",
    )
    return list(filter(None, sentences))


def _divide(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for part, cells in trained.late if part.base.stage.scaled for cell in cells]
    if not short:
        return ""
    late = f"{sum(len(cell.diverged) for cell in short)} of {sum(cell.n for cell in short)}"
    text = f"**Divide the logits by √d**: {late} such runs diverged within ten epochs from larger starts"
    whole = _diverged(row for row, what in _whole(runs) if what.other == DIVIDED)
    return f"{text}, and {whole} over all epochs, in one place or in several." if whole else f"{text}."


def _share(runs: Table1Runs, trained: TrainabilityMap) -> str:
    """Of the forms that have runs with both; `corners_table` tells them apart."""
    own, one = Counter[str](), Counter[str]()
    for compared in by_affinity(trained):
        n, with_own, with_one, *_ = compared.counts()
        own.update(gone=with_own, n=n)
        one.update(gone=with_one, n=n)
    counts = divergence_counts(runs)
    for form in NAMES:
        if (form, False) in counts and (form, True) in counts:
            for total, (gone, n) in ((own, counts[form, False]), (one, counts[form, True])):
                total.update(gone=gone, n=n)
    if not own["n"]:
        return ""
    return (
        f"**Or share the affinity**: of runs from larger starts {own['gone']} of {own['n']} with own affinities "
        f"diverged, and {one['gone']} of {one['n']} with one."
    )


def _no_guarantee(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for cell in trained.ten_epochs if cell.form == "stable"]
    if not short:
        return ""
    late = f"{sum(len(cell.diverged) for cell in short)} of {sum(cell.n for cell in short)}"
    counts = [f"{late} runs within ten epochs from larger starts"]
    whole = [(row, what) for row, what in _whole(runs) if what.weight == "stable"]
    fragile = _diverged(row for row, what in whole if what.start == FRAGILE and not what.other)
    small = [(row, what) for row, what in whole if what.start == runs.start]
    if fragile:
        counts.append(f"{fragile} over all epochs from start {FRAGILE}")
    if small:
        deepest = max(what.blocks for _, what in small)
        gone = _diverged(row for row, _ in small)
        counts.append(f"{gone} from start {runs.start} with up to {deepest} blocks")
    return (
        '**Sharing is no guarantee**: stages with one affinity and a bounded W (`weight="stable"`) diverged in '
        f"{join_words(counts)}."
    )


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
        f"**Start small, in one place**: of four original blocks, whose training failed in the paper, "
        f"{counts[runs.start]} runs diverged from start {runs.start}"
    )
    text += f", {counts[FRAGILE]} from start {FRAGILE}" if counts[FRAGILE] else ""
    plain, divided = _in_places(runs, ()), _in_places(runs, DIVIDED)
    if plain:
        text += f"; in different places {plain} of both forms did"
        text += f", with divided logits {divided}" if divided else ""
    return f"{text}."


def _in_places(runs: Table1Runs, other: tuple[str, ...]) -> str:
    """Of blocks in different places, at the start of Table 1: such as "3 of 5"; "" without any."""
    return _diverged(
        row
        for row, what in _whole(runs)
        if (what.start, what.other) == (runs.start, other) and len(what.places) > 1
    )


class Place(NamedTuple):
    """A backbone with the data of its table, and what it is called."""

    backbone: str
    other: tuple[str, ...]
    name: str

    @property
    def title(self) -> str:
        return f"{group_size(self.backbone)}, {self.name}"


def places(runs: Table1Runs) -> tuple[Place, ...]:
    """Return where the tables of the paper are run again."""
    table2 = setting(TABLE2_N9.rows[0].recipe)
    return (
        Place(N3, (), "the backbone that matches"),
        Place(runs.protocol.backbone, (), "the literal reading"),
        Place(table2.backbone, table2.other, "CIFAR-100"),
    )


def compared(runs: Table1Runs, place: Place) -> dict[tuple[str, str], Contrast]:
    """Return (stages, less what) -> the mean difference over COMPARED, of the seeds that decide."""
    where = {"backbone": place.backbone, "other": place.other}
    seeds = deciding_seeds(runs.wanted(**where))
    baseline = [runs.find(form=None, **where)] * len(COMPARED)
    rows = {
        name: [runs.find(form=form, blocks=n, shared=shared, **where) for n in COMPARED]
        for name, (form, shared) in KINDS.items()
    }
    original, *proposed = rows
    pairs = [(name, "baseline", baseline) for name in rows]
    pairs += [(name, original, rows[original]) for name in proposed]
    return {
        (name, other): mean_of(
            [difference(*pair, seeds=seeds) for pair in zip(rows[name], others, strict=True)]
        )
        for name, other, others in pairs
    }


def differences_table(runs: Table1Runs) -> Table:
    """Return a line for each difference, and a column for each place that has some."""
    every = {place: compared(runs, place) for place in places(runs)}
    known = {
        place: found
        for place, found in every.items()
        if any(one.values or one.lost for one in found.values())
    }
    names = next(iter(known.values()), {})
    lines = [
        (f"{name}, less {other}", *(_measured(found[name, other]) for found in known.values()))
        for name, other in names
    ]
    return Table(
        (f"mean over {COMPARED[0]} to {COMPARED[-1]} blocks", *(group_size(one.backbone) for one in known)),
        lines,
    )


def _accuracy(runs: Table1Runs, place: Place) -> str:
    """Which blocks err less or more than others, in words; `differences_table` has the numbers."""
    found: dict[str, list[str]] = {}
    for (name, other), contrast in compared(runs, place).items():
        measured = contrast.interval
        if measured is None or measured.n < 2:
            continue
        word = "show no clear difference from"
        if measured.high < 0 or measured.low > 0:
            word = "err less than" if measured.high < 0 else "err more than"
        than = "the baseline" if other == "baseline" else f"{other} ones"
        kind, _, affinity = name.partition(", ")
        found.setdefault(f"{word} {than}", []).append(f"{kind} ({affinity})" if affinity else kind)
    if not found:
        return ""
    texts = [f"{join_words(names)} blocks {what}" for what, names in found.items()]
    return f"**Accuracy, {group_size(place.backbone)}**, {place.name}: {'; '.join(texts)}."


def _corners(runs: Table1Runs) -> str:
    known = [
        f"{one.name} {_measured(one)}, {gains(one)}" for one in corner_effects(runs) if one.values or one.lost
    ]
    lead = f"**Own embeddings or a fresh state**, 5 proposed blocks, {group_size(N3)}"
    return f"{lead}: {'; '.join(known)}." if known else ""


def _rate(runs: Table1Runs) -> str:
    rows = runs.rows_of(RATE_N3)
    pairs = [difference(rows[one], rows[other]) for one, other in RATE_N3.pairs]
    known = [
        f"{name} {_measured(pair)}{WORDS_OF_RATE[breaks(pair)]}"
        for name, pair in zip(OF_RATE, pairs, strict=True)
        if pair.values or pair.lost
    ]
    baseline = next(iter(rows.values()))
    if baseline is None or not known:
        return ""
    return (
        f"**Rate 0.01**, that of four original blocks in the paper's Figure 3, {group_size(N3)} "
        f"({_baseline(baseline)}): less the baseline at this rate, in points, {'; '.join(known)}."
    )


def _baseline(row: RowRecord) -> str:
    """Such as "baseline 8.13, 8.03 to 8.66, n = 5, published 8.19"."""
    spread = f", {format_range(row)}" if len(row.scores) > 1 else ""
    published = "" if row.published is None else f", published {format_score(row.published)}"
    return f"baseline {format_score(row.median)}{spread}, n = {len(row.scores)}{published}"


def _measured(contrast: Contrast) -> str:
    """Such as "−0.45 [−0.60, −0.30], n = 5 (published −0.61, inside)"."""
    published = contrast.published
    if published is None:
        return contrast.format()
    where = {True: ", inside", False: ", outside", None: ""}
    return f"{contrast.format()} (published {signed(published)}{where[contrast.is_inside]})"


def spectra_table(runs: Table1Runs) -> Table:
    """Return a line for each kind of block: negative energy on each backbone, and negative ones of the largest."""
    shares: dict[tuple[str, str], list[float]] = {}
    counts: dict[str, list[int]] = {}
    backbones = (N3, runs.protocol.backbone)
    names = {kind: name for name, kind in KINDS.items()}
    for row, what in _whole(runs):
        form = what.form or ""
        if what.start != runs.start or what.backbone not in backbones or not _is_plain(runs, what, form):
            continue
        name = names[form, form != "original" and what.shared is True]
        for run in row.started:
            weights = weights_at(run) if run.has_finished else []
            counts.setdefault(name, []).extend(count_negative([one]) for one in weights)
            if (share := negative_share(weights)) is not None:
                shares.setdefault((name, what.backbone), []).append(100 * share)
    shown = [one for one in backbones if any(backbone == one for _, backbone in shares)]
    lines = [
        (
            name,
            *(_span(shares.get((name, backbone), []), " %") for backbone in shown),
            _span(counts[name]),
        )
        for name in KINDS
        if name in counts
    ]
    energies = (f"negative energy, {group_size(backbone)}" for backbone in shown)
    return Table(("sym(W) of", *energies, f"negative ones of the {TOP} largest eigenvalues"), lines)


def _span(values: Sequence[float], unit: str = "") -> str:
    return f"{min(values):.0f} to {max(values):.0f}{unit}" if values else "–"


def conditions(runs: Table1Runs) -> str:
    """Return how the runs of Table 1 were made, on what; "" without any."""
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
    return f"Conditions: {', '.join(texts)}." if texts else ""


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
