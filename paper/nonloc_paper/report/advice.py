"""The records in a few sentences, advice first; the differences that they speak of, and the spectra.

Every number is computed, and what is not recorded is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nonloc_paper.report.contrasts import Contrast, difference, mean_of
from nonloc_paper.report.map.cells import TrainabilityMap, format_diverged
from nonloc_paper.report.map.tables import by_affinity, by_form
from nonloc_paper.report.matching import (
    BACKBONES,
    BLOCKS,
    N2,
    N3,
    breaks,
    corner_effects,
    gains,
    start_pairs,
)
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.signs import TOP, count_negative, negative_share, weights_at
from nonloc_paper.report.table1_runs import (
    DIVIDED,
    KINDS,
    ORIGINAL,
    OWN,
    PROTOCOL,
    START,
    Setting,
    Table1Runs,
    group_size,
    kind_of,
    setting,
    wanted_setting,
)
from nonloc_paper.report.tables import Table, format_range, format_score, join_words, with_minus
from nonloc_paper.report.trained_stages import variance_change
from nonloc_paper.report.verdicts import count_pairs, signed
from nonloc_paper.suites.matching_tables import RATE_N3, TABLE1_N3, TABLE2_N9
from nonloc_paper.suites.tables import NAMES, SAME_PLACE

FRAGILE = "0.07"  # the larger start of Table 1
COMPARED = (2, 3, 4)  # blocks that both forms have
BASELINE = "baseline"
WORDS_OF_RATE = {
    "breaks": "they break",
    "does not break": "they do not break",
    "not shown": "that they break is not shown",
}
PUBLISHED_FOUR = SAME_PLACE["original-4"]
PROGRAMS = ("torch", "Triton", "Python")
CHANCE = "may be chance"  # said of a difference whose interval contains 0


def advice(runs: Table1Runs, trained: TrainabilityMap, differences: Differences) -> list[str]:
    """Return those of the pieces of advice of which something is recorded."""
    sentences = (
        _divide(runs, trained),
        _share(runs, trained),
        _no_guarantee(runs, trained),
        _start_small(runs),
        *(_accuracy(place, found) for place, found in differences.items()),
        _corners(runs),
        _rate(runs),
        _sharpening(runs),
    )
    return list(filter(None, sentences))


def _divide(runs: Table1Runs, trained: TrainabilityMap) -> str:
    divided = [(part.base, cell) for part, cells in trained.late if part.base.stage.scaled for cell in cells]
    if not divided:
        return ""
    twins = [(base.with_(stage={"scaled": False}), cell.name) for base, cell in divided]
    plain = [cell for part, cells in trained.late for cell in cells if (part.base, cell.name) in twins]
    text = (
        f"**Divide the logits by √d**: {format_diverged(cell for _, cell in divided)} such runs diverged within ten "
        f"epochs from larger starts, {format_diverged(plain)} undivided"
    )
    whole = _diverged(row for row, what in _whole(runs) if what.other == DIVIDED)
    return f"{text}. Over all epochs {whole} did, in one place or in several." if whole else f"{text}."


def _share(runs: Table1Runs, trained: TrainabilityMap) -> str:
    """Of pairs of runs; the table of form by affinity tells the forms apart."""
    pairs = [pair for compared in by_affinity(trained) for pair in compared.ends]
    pairs += [pair for form in NAMES for pair in start_pairs(runs, (form, False), (form, True))]
    n, own, one, *_ = count_pairs(pairs)
    if not n:
        return ""
    text = (
        f"**Or share the affinity**: of pairs of runs alike in form, blocks, seed, rate and larger start, {own} of {n} "
        f"with own affinities diverged, and {one} of {n} with one."
    )
    pairs = [pair for compared in by_form(trained) if compared.first == ORIGINAL for pair in compared.ends]
    n, original, proposed, *_ = count_pairs([*pairs, *start_pairs(runs, ORIGINAL, OWN)])
    if n:
        text += (
            f" Differences alone do not help: with own affinities and equally many blocks {original} of {n} original "
            f"and {proposed} of {n} proposed runs diverged."
        )
    return text


def _no_guarantee(runs: Table1Runs, trained: TrainabilityMap) -> str:
    short = [cell for cell in trained.ten_epochs if cell.form == "stable"]
    if not short:
        return ""
    counts = [f"{format_diverged(short)} runs within ten epochs from larger starts"]
    whole = [(row, what) for row, what in _whole(runs) if what.weight == "stable"]
    fragile = _diverged(row for row, what in whole if what.start == FRAGILE and not what.other)
    small = [(row, what) for row, what in whole if what.start == START]
    if fragile:
        counts.append(f"{fragile} over all epochs from start {FRAGILE}")
    if small:
        deepest = max(what.blocks for _, what in small)
        gone = _diverged(row for row, _ in small)
        counts.append(f"{gone} from start {START} with up to {deepest} blocks")
    return (
        '**Sharing is no guarantee**: stages with one affinity and a bounded W (`weight="stable"`) diverged in '
        f"{join_words(counts)}."
    )


def _start_small(runs: Table1Runs) -> str:
    rows = [(row, what) for row, what in _whole(runs) if not what.other and what.rate == PROTOCOL.rate]
    every = _diverged(row for row, what in rows if what.start == START and len(what.places) == 1)
    four = [(row, what) for row, what in rows if (what.form, what.blocks) == ("original", 4)]
    counts = {
        start: _diverged(row for row, what in four if what.start == start and _is_plain(what))
        for start in (START, FRAGILE)
    }
    if not counts[START]:
        return ""
    text = (
        f"**Start small, in one place**: over all epochs at rate {PROTOCOL.rate:g}, {every} runs from start "
        f"{START} diverged. Of those with four original blocks, whose training failed in the paper, "
        f"{counts[START]} did"
    )
    text += f", from start {FRAGILE} {counts[FRAGILE]}" if counts[FRAGILE] else ""
    plain, divided = _in_places(runs, ()), _in_places(runs, DIVIDED)
    if plain:
        text += f". In different places {plain} runs of both forms diverged"
        text += f", with divided logits {divided}" if divided else ""
    return f"{text}."


def _in_places(runs: Table1Runs, other: tuple[str, ...]) -> str:
    """Of blocks in different places, at the start of Table 1: such as "3 of 5"; "" without any."""
    return _diverged(
        row
        for row, what in _whole(runs)
        if (what.start, what.other) == (START, other) and len(what.places) > 1
    )


class Place(NamedTuple):
    """A backbone with the data of its table, and what it is called."""

    backbone: str
    other: tuple[str, ...]
    name: str

    @property
    def title(self) -> str:
        return f"{group_size(self.backbone)}, {self.name}"


_TABLE2 = setting(TABLE2_N9.rows[0].recipe)
# Where the tables of the paper are run again.
PLACES = (
    Place(N3, (), "the backbone that matches"),
    Place(N2, (), "the literal reading"),
    Place(_TABLE2.backbone, _TABLE2.other, "CIFAR-100"),
)


class Compared(NamedTuple):
    """A kind of blocks minus another or the baseline, the mean over some numbers of blocks."""

    kind: str
    other: str
    blocks: tuple[int, ...]

    @property
    def span(self) -> str:
        return f"{self.blocks[0]} to {self.blocks[-1]} blocks"


Differences = dict[Place, dict[Compared, Contrast]]


def mean_differences(runs: Table1Runs) -> Differences:
    """Return the mean differences of each place that has some."""
    every = {place: _compared(runs, place) for place in PLACES}
    return {place: found for place, found in every.items() if any(one.is_known for one in found.values())}


def _compared(runs: Table1Runs, place: Place) -> dict[Compared, Contrast]:
    def find(kind: str, blocks: int) -> RowRecord | None:
        return runs.find(KINDS.get(kind), blocks=blocks, backbone=place.backbone, other=place.other)

    original, *proposed = KINDS
    asked = [Compared(kind, BASELINE, COMPARED) for kind in KINDS]
    asked += [Compared(kind, BASELINE, BLOCKS) for kind in proposed]
    asked += [Compared(kind, original, COMPARED) for kind in proposed]
    return {
        one: mean_of([difference(find(one.kind, n), find(one.other, n)) for n in one.blocks]) for one in asked
    }


def mean_differences_table(differences: Differences) -> Table:
    """Return a line for each difference, and a column for each place."""
    lines = [
        (
            f"{one.kind}, minus {one.other}, {one.span}",
            *(_measured(found[one]) for found in differences.values()),
        )
        for one in next(iter(differences.values()), {})
    ]
    return Table(("difference", *(group_size(one.backbone) for one in differences)), lines)


def _accuracy(place: Place, found: dict[Compared, Contrast]) -> str:
    """The means of the differences that two seeds or more have; `mean_differences_table` has their intervals."""
    means: dict[str, list[str]] = {}
    for one, contrast in found.items():
        measured = contrast.interval
        if measured is not None and measured.n > 1:
            chance = f" ({CHANCE})" if measured.low <= 0 <= measured.high else ""
            other = "the baseline" if one.other == BASELINE else "original ones"
            parts = means.setdefault(f"{one.span} minus {other}", [])
            parts.append(f"{one.kind.replace(', ', ' with ')} {signed(measured.mean)}{chance}")
    sentences = [f"{what}: {join_words(parts)}." for what, parts in means.items()]
    lead = f"**Accuracy, {group_size(place.backbone)}**, {place.name}, points of error."
    return " ".join([lead, *sentences]) if sentences else ""


def _corners(runs: Table1Runs) -> str:
    known = [
        f"{one.name} {'gains' if gains(one) == 'gains' else 'is undecided'} ({_measured(one)})"
        for one in corner_effects(runs)
        if one.is_known
    ]
    lead = (
        "**Own embeddings or a fresh state**: a block with its own affinity differs in two ways. It has its own "
        "embeddings, and it embeds the current state instead of the stage's input. Each alone, with 5 proposed blocks "
        f"and {group_size(N3)}"
    )
    return f"{lead}: {'; '.join(known)}." if known else ""


def _rate(runs: Table1Runs) -> str:
    rows, usual = runs.rows_of(RATE_N3), runs.rows_of(TABLE1_N3)
    pairs = [difference(rows[one], rows[other]) for one, other in RATE_N3.pairs]
    four = next((pair for pair in pairs if breaks(pair) != "–"), None)
    if four is None or not four.is_known:
        return ""
    text = (
        f"**Rate 0.01** is that of four original blocks in the paper's Figure 3. With {group_size(N3)} "
        f"{WORDS_OF_RATE[breaks(four)]} there: their error minus that of the baseline is {_measured(four)}."
    )
    # The same networks at rate 0.1, whose labels lack the rate.
    (_, one), (_, other) = four.terms
    both = [(row, usual[row.label.partition(", ")[0]]) for row in (other, one) if row is not None]
    errors = [f"{_error(slow)} and {_error(fast)}" for slow, fast in both if fast is not None]
    if len(errors) == 2:
        text += (
            f" For comparison, at 0.01 and at 0.1 the baseline errs {errors[0]}, four original blocks "
            f"{errors[1]}. Published: {PUBLISHED_FOUR}, at a rate that the paper does not say."
        )
    return text


def _sharpening(runs: Table1Runs) -> str:
    names = {kind: name.replace(", ", " with ") for name, kind in KINDS.items()}
    changes: dict[str, list[float]] = {name: [] for name in names.values()}
    for row, what in _whole(runs):
        if (what.start, what.backbone, what.rate) != (START, N3, PROTOCOL.rate) or not _is_plain(what):
            continue
        for run in row.started:
            for stage in run.observations.get("features", []) if run.has_finished else []:
                if (change := variance_change(stage)) is not None:
                    changes[names[kind_of(row)]].append(100 * change)
    known = [f"{_span(some, ' %', '+')} ({name})" for name, some in changes.items() if some]
    return (
        "**Damping or sharpening**: from the beginning of a trained stage to its end the variance of features over "
        f"positions changes by {join_words(known)}. Of all runs with {group_size(N3)} on a batch of test images, "
        "smallest to largest; asked afterwards."
        if known
        else ""
    )


def _error(row: RowRecord) -> str:
    """Such as "8.13 (8.03 to 8.66, n = 5)"."""
    return f"{format_score(row.median)} ({format_range(row)}, n = {len(row.scores)})"


def _measured(contrast: Contrast) -> str:
    """Such as "−0.45 [−0.60, −0.30], n = 5 (published −0.61, inside)"."""
    published = contrast.published
    if published is None:
        return contrast.format()
    where = {True: ", inside", False: ", outside", None: ""}
    return f"{contrast.format()} (published {signed(published)}{where[contrast.is_inside]})"


def spectra_table(runs: Table1Runs) -> Table:
    """Return a line for each kind of block and rate: negative energy by backbone, and negative ones of the largest."""
    shares: dict[tuple[str, float, str], list[float]] = {}
    counts: dict[tuple[str, float], list[int]] = {}
    names = {kind: name for name, kind in KINDS.items()}
    for row, what in _whole(runs):
        if what.start != START or what.backbone not in BACKBONES or not _is_plain(what):
            continue
        kind = names[kind_of(row)], what.rate
        for run in row.started:
            weights = weights_at(run) if run.has_finished else []
            counts.setdefault(kind, []).extend(count_negative([one]) for one in weights)
            if (share := negative_share(weights)) is not None:
                shares.setdefault((*kind, what.backbone), []).append(100 * share)
    shown = [one for one in BACKBONES if any(backbone == one for *_, backbone in shares)]
    lines = [
        (
            name if rate == PROTOCOL.rate else f"{name}, rate {rate:g}",
            *(_span(shares.get((name, rate, backbone), []), " %") for backbone in shown),
            _span(counts[name, rate]),
        )
        for rate in sorted({rate for _, rate in counts}, reverse=True)
        for name in KINDS
        if (name, rate) in counts
    ]
    energies = (f"negative energy, {group_size(backbone)}" for backbone in shown)
    return Table(("sym(W) of", *energies, f"negative ones of the {TOP} largest eigenvalues"), lines)


def _span(values: Sequence[float], unit: str = "", sign: str = "") -> str:
    if not values:
        return "–"
    return with_minus(f"{min(values):{sign}.0f} to {max(values):{sign}.0f}{unit}")


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
    rows = [row for row in runs.everything if row.started and row.recipe.form]
    found = [(row, setting(row.recipe)) for row in rows]
    return [(row, what) for row, what in found if not set(what.other) - set(DIVIDED)]


def _is_plain(what: Setting) -> bool:
    """Whether this is a row of Table 1 in one place, at any start and rate, with either affinity if it is proposed."""
    names = ("form", "blocks", "shared", "start", "backbone", "rate")
    asked = {name: getattr(what, name) for name in names}
    return (what.form, what.shared) in KINDS.values() and what == wanted_setting(**asked)


def _diverged(rows: Iterable[RowRecord]) -> str:
    """Such as "3 of 5" runs; "" without any."""
    rows = list(rows)
    started = sum(len(row.started) for row in rows)
    return f"{sum(len(row.diverged) for row in rows)} of {started}" if started else ""
