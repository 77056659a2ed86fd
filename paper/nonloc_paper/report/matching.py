"""The backbones that match the paper's baselines: the hypothesis, and what decides each suite.

The rules are those of paper/protocol.md, "On the backbone that matches".
"""

from __future__ import annotations

from dataclasses import replace

from nonloc_paper.report.contrasts import Contrast, contrasts_table, difference, mean_of
from nonloc_paper.report.document import Section
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1 import rows_table
from nonloc_paper.report.table1_runs import (
    CONFIRMING,
    KINDS,
    ONE,
    ORIGINAL,
    OWN,
    PROTOCOL,
    Kind,
    Table1Runs,
    errors,
    group_size,
    kind_of,
    lost,
    row_order,
    setting,
)
from nonloc_paper.report.tables import Table, format_score, join_words
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites.matching_tables import CORNERS_N3, MATCHING, RATE_N3, STARTS_N3, TABLE1_N3
from nonloc_paper.suites.rows import Suite

N2, N3 = PROTOCOL.backbone, "preresnet29"
BACKBONES = (N3, N2)  # the one that matches, the literal reading
BLOCKS = (2, 3, 4, 5, 6)
REFUTED_ABOVE = -0.1  # points of error: the lower end of the interval
BROKEN_ABOVE = 1.0  # points of error above the baseline
NOT_YET = "not yet known"
CORNER_SEEDS = range(3)

Endings = dict[tuple[str, int, int], bool]
"""(start, number of blocks, seed) of a run -> whether it diverged"""

ABOUT = (
    "Table 1 with 3 and Table 2 with 9 bottlenecks a group, whose baselines are near the published ones. "
    "[The rules](../protocol.md#on-the-backbone-that-matches) were written before the runs. Published differences are "
    "inside or outside the interval in which ours predict a median of 5 runs; without own affinities this was asked "
    "afterwards. Diverged runs are counted, not averaged."
)


def own_minus_one(runs: Table1Runs, blocks: int, backbone: str = N3, other: tuple[str, ...] = ()) -> Contrast:
    """Return the error of proposed blocks with own affinities minus that with one."""
    own, one = (runs.find(kind, blocks=blocks, backbone=backbone, other=other) for kind in (OWN, ONE))
    return difference(own, one, f"{blocks} blocks, own minus one affinity")


def primary(runs: Table1Runs, backbone: str = N3) -> Contrast:
    """Return the contrast that decides the hypothesis."""
    every = [own_minus_one(runs, blocks, backbone) for blocks in BLOCKS]
    return mean_of(every, "own minus one affinity, the mean over 2 to 6 blocks")


def hypothesis_word(contrast: Contrast) -> str:
    """Return held, refuted or undecided; undecided until every confirming seed has ended."""
    found = contrast.interval
    if found is None or len(contrast.values) + len(contrast.lost) < len(CONFIRMING):
        return "undecided"
    if found.high < 0:
        return "held"
    return "refuted" if found.low > REFUTED_ABOVE else "undecided"


def hypothesis_sentence(runs: Table1Runs) -> str:
    """Return the verdict on the hypothesis, with n."""
    contrast = primary(runs)
    return (
        f"The hypothesis is **{hypothesis_word(contrast)}, n = {len(contrast.values)}**: with {group_size(N3)}, "
        "proposed blocks err less if each computes its own affinity than if all use one."
    )


def hypothesis_parts(runs: Table1Runs) -> list[str]:
    """Return what is known of each part of the hypothesis, the one that decides first."""
    contrast = primary(runs)
    measured, seen = contrast.format() if contrast.is_known else NOT_YET, contrast.every.get(0)
    endings = start_endings(runs)
    gone = [
        f"{sum(endings[kind].values())} of {len(endings[kind])} with {words}"
        for kind, words in ((OWN, "own affinities"), (ONE, "one"))
        if kind in endings
    ]
    parts = [
        f"Error with own affinities minus error with one, mean over 2 to 6 blocks; seeds 1 to 4 decide: {measured}.",
        f"Published errors that lie where our runs predict them: {_predicted(runs) or NOT_YET}.",
        f"Proposed runs from larger starts that diverge: {join_words(gone) if gone else NOT_YET}.",
    ]
    if seen is not None:
        parts.append(f"Seed 0, seen before the rules were written: {signed(seen)}. It decides nothing.")
    return parts


def predictions(runs: Table1Runs, suite: Suite) -> dict[Kind, list[Contrast]]:
    """Return the error of each row with blocks that has a published one to predict, by the kind of its blocks."""
    found: dict[Kind, list[Contrast]] = {OWN: [], ONE: [], ORIGINAL: []}
    for row in sorted(filter(None, runs.rows_of(suite).values()), key=row_order):
        if row.published is not None and kind_of(row) in found:
            found[kind_of(row)].append(Contrast(row.label, ((1.0, row),)))
    return found


def _predicted(runs: Table1Runs) -> str:
    """How many published errors of Table 1 lie in the prediction interval of their row; "" where no row has one."""
    counts, words = [], ("with own affinities", "with one", "for original blocks")
    for some, kind in zip(predictions(runs, TABLE1_N3).values(), words, strict=True):
        known = [one.is_inside for one in some if one.is_inside is not None]
        counts += [f"{sum(known)} of {len(known)} {kind}"] if known else []
    return join_words(counts) if counts else ""


def start_endings(runs: Table1Runs) -> dict[Kind, Endings]:
    """Return the runs from larger starts by their kind."""
    found: dict[Kind, Endings] = {}
    for row in filter(None, runs.rows_of(STARTS_N3).values()):
        ended, blocks = found.setdefault(kind_of(row), {}), setting(row.recipe).blocks
        ended |= {(row.group, blocks, run.recipe.seed): run.ending == "diverged" for run in row.started}
    return found


def start_pairs(runs: Table1Runs, first: Kind, second: Kind) -> list[tuple[bool, bool]]:
    """Return of each pair of runs from a larger start, which differ in nothing else, which of the two diverged."""
    one, other = (start_endings(runs).get(kind, {}) for kind in (first, second))
    return [(one[key], other[key]) for key in one.keys() & other.keys()]


def matching_sections(runs: Table1Runs) -> tuple[Section, ...]:
    """Return a section for each suite of which something is recorded: its rows, and what its rule says."""
    sections = [Section("", (ABOUT, hypothesis_sentence(runs), hypothesis_parts(runs)))]
    for suite in MATCHING:
        if suite in runs.planned:
            continue
        rows = runs.rows_of(suite)
        contrasts = [difference(rows[a], rows[b], f"{a} minus {b}") for a, b in suite.pairs]
        every = rows_table(runs.suites.get(suite.name, ()))
        contents: tuple[Table, ...]
        if suite is STARTS_N3:
            contents = (_counts_table(runs),)  # its rule compares no errors
        elif suite is CORNERS_N3:
            contents = (every, _corners_table(runs), contrasts_table("effect", corner_effects(runs), gains))
        elif suite is TABLE1_N3:
            contents = (every, contrasts_table("seeds 1 to 4", [*contrasts, primary(runs)]))
        else:
            rule = breaks if suite is RATE_N3 else None
            contents = (every, contrasts_table("paired by seed", contrasts, rule))
        every_kind = [one for some in predictions(runs, suite).values() for one in some]
        predicted_rows = contrasts_table("error in %", every_kind)
        sections.append(Section(suite.title, (*contents, predicted_rows)))
    return tuple(sections)


def _counts_table(runs: Table1Runs) -> Table:
    """Return how many runs from larger starts diverged, by start and number of blocks."""
    names, lines = {kind: name for name, kind in KINDS.items()}, []
    blocks = (2, 3, 4, 6)
    endings = start_endings(runs)
    for start in dict.fromkeys(start for ended in endings.values() for start, *_ in ended):
        for kind, ended in endings.items():
            counts = []
            for n in (*[(one,) for one in blocks], blocks):
                some = [gone for (begun, number, _), gone in ended.items() if begun == start and number in n]
                counts.append(f"{sum(some)} of {len(some)}" if some else "–")
            lines.append((start, (names[kind], *counts)))
    header = ("diverged within ten epochs", *(f"{n} blocks" for n in blocks), "all")
    return Table.grouped(header, lines, key=header[-1])


def _corners(runs: Table1Runs) -> tuple[RowRecord | None, ...]:
    """The rows with 5 blocks: one embedding of the input, of each state; own ones of the input, of each state."""
    one_state, own_input = runs.rows_of(CORNERS_N3).values()
    one_input, own_state = (runs.find(kind, blocks=5, backbone=N3) for kind in (ONE, OWN))
    return one_input, one_state, own_input, own_state


def _corners_table(runs: Table1Runs) -> Table:
    """Return the errors of the seeds that count for the corners, seed by seed."""
    cells = []
    for row in _corners(runs):
        known, gone = errors(row), lost(row)
        texts = ["diverged" if seed in gone else format_score(known.get(seed)) for seed in CORNER_SEEDS]
        cells.append(", ".join(texts))
    lines = [("one embedding", *cells[:2]), ("own embeddings", *cells[2:])]
    return Table(
        (f"error in %, seeds {CORNER_SEEDS[0]} to {CORNER_SEEDS[-1]}", "of the input", "of each state"), lines
    )


def corner_effects(runs: Table1Runs) -> list[Contrast]:
    """Return what own embeddings gain, and what the current state gains, each over both choices of the other."""
    one_input, one_state, own_input, own_state = _corners(runs)
    pairs = {
        "own minus one embedding": ((own_state, one_state), (own_input, one_input)),
        "current state minus input": ((own_state, own_input), (one_state, one_input)),
    }
    effects = (mean_of([difference(*two) for two in some], name) for name, some in pairs.items())
    return [replace(effect, seeds=CORNER_SEEDS) for effect in effects]


def gains(effect: Contrast) -> str:
    """Return the word for an effect: it gains if its interval lies below 0."""
    return "gains" if effect.interval is not None and effect.interval.high < 0 else "undecided"


def breaks(contrast: Contrast) -> str:
    """Return whether 4 original blocks break: a run diverges, or the interval lies more than a point above 0."""
    row, found = contrast.terms[0][1], contrast.interval
    if row is None or "original-4" not in row.recipe.network:
        return "–"
    if row.diverged or (found and found.low > BROKEN_ABOVE):
        return "breaks"
    return "does not break" if found and found.high < BROKEN_ABOVE else "not shown"
