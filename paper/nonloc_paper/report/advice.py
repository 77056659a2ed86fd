"""The records in ten sentences, advice first: every number is computed, and what is not recorded is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.contrasts import Contrast, difference, mean_of
from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.tables import by_affinity
from nonloc_paper.report.matching import N3, breaks, corner_effects, divergence_counts, gains, predicted
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.signs import TOP, count_negative, negative_share, weights_at
from nonloc_paper.report.table1_runs import (
    DIVIDED,
    KINDS,
    NAMES,
    ONE,
    ORIGINAL,
    OWN,
    Kind,
    Setting,
    Table1Runs,
    group_size,
    setting,
)
from nonloc_paper.report.tables import format_range, format_score, join_words
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites.matching_tables import RATE_N3, TABLE2_N9

FRAGILE = "0.07"  # the larger start of Table 1
COMPARED = (2, 3, 4)  # blocks that both forms have
# Pairs of RATE_N3.
OF_RATE = ("2 original blocks", "4 original blocks", "4 proposed blocks with own affinities")
WORDS_OF_RATE = {"breaks": ", which breaks", "not shown": ", no break shown", "–": ""}
PROGRAMS = ("torch", "Triton", "Python")

Counts = dict[Kind, tuple[int, int]]  # diverged runs, and all


def advice(runs: Table1Runs, trained: TrainabilityMap) -> list[str]:
    """Return those of the ten sentences of which something is recorded."""
    sentences = (
        _divide(runs, trained),
        _share(runs, trained),
        _no_guarantee(runs, trained),
        _start_small(runs),
        _accuracy(runs, N3, "the backbone that matches"),
        _accuracy(runs, runs.protocol.backbone, "the literal reading"),
        _table2(runs),
        _corners(runs),
        _rate(runs),
        _spectra(runs),
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
    literal: Counts = {}
    for compared in by_affinity(trained):
        n, own, one, *_ = compared.counts()
        literal |= {(compared.first[0], False): (own, n), (compared.first[0], True): (one, n)}
    found = {runs.protocol.backbone: literal, N3: divergence_counts(runs)}
    texts = [f"with {group_size(backbone)} {_by_affinity(some)}" for backbone, some in found.items() if some]
    return f"**Or share the affinity**: of runs from larger starts, {'; '.join(texts)}." if texts else ""


def _by_affinity(counts: Counts) -> str:
    """Such as "8 of 27 original and 16 of 27 proposed diverged with own affinities, 0 of 27 original with one"."""
    texts = []
    for is_one, words in ((False, "diverged with own affinities"), (True, "with one")):
        some = [
            f"{gone} of {n} {NAMES[form]}" for (form, shares), (gone, n) in counts.items() if shares is is_one
        ]
        texts += [f"{join_words(some)} {words}"] if some else []
    return ", ".join(texts)


def _no_guarantee(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for cell in trained.ten_epochs if cell.form == "stable"]
    if not short:
        return ""
    late = f"{sum(len(cell.diverged) for cell in short)} of {sum(cell.n for cell in short)}"
    text = (
        '**Sharing is no guarantee**: stages that share the affinity and bound W (`weight="stable"`) diverged in '
        f"{late} runs within ten epochs from larger starts"
    )
    small = [
        (row, what) for row, what in _whole(runs) if what.weight == "stable" and what.start == runs.start
    ]
    if not small:
        return f"{text}."
    deepest = max(what.blocks for _, what in small)
    return f"{text}, and in {_diverged(row for row, _ in small)} from start {runs.start} with up to {deepest} blocks."


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
        text += f"; of blocks in different places, a set-up that the paper does not tell, {join_words(plain)} runs did"
        text += f", with divided logits {join_words(divided)}" if divided else ""
    return f"{text}."


def _in_places(runs: Table1Runs, other: tuple[str, ...]) -> list[str]:
    """Of each form in different places, at the start of Table 1: such as "3 of 5 original"."""
    found = {
        name: _diverged(
            row
            for row, what in _whole(runs)
            if (what.form, what.start, what.other) == (form, runs.start, other) and len(what.places) > 1
        )
        for form, name in NAMES.items()
    }
    return [f"{count} {name}" for name, count in found.items() if count]


def _accuracy(runs: Table1Runs, backbone: str, name: str) -> str:
    """The forms against the baseline and each other, over the numbers of blocks that both have; all seeds count."""
    baseline = runs.find(form=None, backbone=backbone)
    original, own, one = (
        [runs.find(form=form, blocks=n, backbone=backbone, shared=shared) for n in COMPARED]
        for form, shared in KINDS.values()
    )
    means = {
        "original less baseline": _mean_difference(original, [baseline] * 3),
        "proposed with own affinities less baseline": _mean_difference(own, [baseline] * 3),
        "proposed with one affinity less baseline": _mean_difference(one, [baseline] * 3),
        "proposed with own affinities less original": _mean_difference(own, original),
        "proposed with one affinity less original": _mean_difference(one, original),
    }
    known = [f"{what} {_measured(mean)}" for what, mean in means.items() if mean.values]
    if baseline is None or not known:
        return ""
    return (
        f"**Accuracy, {group_size(backbone)}**, {name} ({_baseline(baseline)}): over 2 to 4 blocks and all seeds, "
        f"{'; '.join(known)}."
    )


def _table2(runs: Table1Runs) -> str:
    baseline = next(iter(runs.rows_of(TABLE2_N9).values()))
    if baseline is None or TABLE2_N9 in runs.planned:
        return ""
    what, inside = setting(baseline.recipe), predicted(runs, TABLE2_N9)

    def mean(name: str, first: Kind, second: Kind, blocks: Sequence[int]) -> str:
        """Of the first kind of stage less the second, over the numbers of blocks that both have."""
        pairs = {}
        for n in blocks:
            one, other = (
                runs.find(form=form, shared=shared, blocks=n, backbone=what.backbone, other=what.other)
                for form, shared in (first, second)
            )
            pairs[n] = difference(one, other)
        known = {n: pair for n, pair in pairs.items() if pair.values}
        if not known:
            return ""
        return f"{name}, {join_words(map(str, known))} blocks, {_measured(mean_of(list(known.values())))}"

    texts = [
        f"of the published errors with own affinities {inside}" if inside else "",
        mean("proposed with own affinities less original", OWN, ORIGINAL, COMPARED),
        mean("own less one affinity", OWN, ONE, (3, 5)),
    ]
    known = "; ".join(filter(None, texts))
    lead = f"**Table 2, CIFAR-100**, {group_size(what.backbone)} ({_baseline(baseline)})"
    return f"{lead}: {known}." if known else ""


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
        f"**Spectra** differ by energy, hardly by count ([figures](figures.md)): negative part of the energy of sym(W) "
        f"{'; '.join(shares)}; negative ones of the {TOP} largest eigenvalues of a W {', '.join(spans)}."
    )


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


def _mean_difference(rows: Sequence[RowRecord | None], others: Sequence[RowRecord | None]) -> Contrast:
    return mean_of([difference(*pair) for pair in zip(rows, others, strict=True)])
