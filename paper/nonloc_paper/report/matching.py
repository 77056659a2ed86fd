"""The backbones that match the paper's baselines: the hypothesis, and what decides each suite.

The rules are those of paper/protocol.md, "On the backbone that matches".
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from nonloc_paper.report.contrasts import Contrast, contrasts_table, difference, mean_of
from nonloc_paper.report.document import Section
from nonloc_paper.report.table1 import rows_table
from nonloc_paper.report.table1_runs import CONFIRMING, NAMES, Table1Runs, deciding_seeds, group_size, setting
from nonloc_paper.report.tables import Table, join_words
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites.matching_tables import CORNERS_N3, MATCHING, RATE_N3, STARTS_N3, TABLE1_N3
from nonloc_paper.suites.rows import Suite

N3 = "preresnet29"
BLOCKS = (2, 3, 4, 5, 6)
REFUTED_ABOVE = -0.1  # points of error: the lower end of the interval
BROKEN_ABOVE = 1.0  # points of error above the baseline
NOT_YET = "not yet known"

ABOUT = (
    "Table 1 with 3 and Table 2 with 9 bottlenecks a group, whose baselines are near the published ones. "
    "[The rules](../protocol.md#on-the-backbone-that-matches) were written before the runs. Published differences are "
    "inside or outside the interval in which ours predict a median of 5 runs. Diverged runs are counted, not averaged."
)


def without_seen(runs: Table1Runs) -> Table1Runs:
    """Return the runs that decide: without seed 0 of Table 1 on this backbone, which had been seen."""
    rows = (
        replace(row, runs=row.runs[1:], first_seed=1) if deciding_seeds(setting(row.recipe)) else row
        for row in runs.rows
    )
    return replace(runs, rows=tuple(rows))


def own_less_one(
    runs: Table1Runs,
    blocks: int,
    backbone: str = N3,
    seeds: Container[int] | None = CONFIRMING,
    other: tuple[str, ...] = (),
) -> Contrast:
    """Return the error of proposed blocks with own affinities less that with one."""
    own, one = (
        runs.find(form="diffusive", blocks=blocks, backbone=backbone, shared=is_one, other=other)
        for is_one in (False, True)
    )
    return difference(own, one, f"{blocks} blocks, own less one affinity", seeds)


def primary(runs: Table1Runs, backbone: str = N3, seeds: Container[int] | None = CONFIRMING) -> Contrast:
    """Return the contrast that decides the hypothesis."""
    every = [own_less_one(runs, blocks, backbone, seeds) for blocks in BLOCKS]
    return mean_of(every, "own less one affinity, the mean over 2 to 6 blocks")


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
        "proposed blocks err less if each computes its own affinity than with one for all."
    )


def hypothesis_parts(runs: Table1Runs) -> list[str]:
    """Return what is known of each part of the hypothesis, the one that decides first."""
    contrast, seen = primary(runs), primary(runs, seeds=(0,)).values
    measured = contrast.format() if contrast.values or contrast.lost else NOT_YET
    counts = divergence_counts(runs)
    gone = [
        f"{gone} of {started} with {words}"
        for is_one, words in ((False, "own affinities"), (True, "one"))
        for gone, started in (counts.get(("diffusive", is_one), (0, 0)),)
        if started
    ]
    parts = [
        f"Error with own affinities less that with one, mean over 2 to 6 blocks; seeds 1 to 4 decide: {measured}.",
        f"Published errors of proposed blocks: {predicted(runs, TABLE1_N3) or NOT_YET}.",
        f"Proposed runs from larger starts that diverge: {join_words(gone) if gone else NOT_YET}.",
    ]
    if seen:
        parts.append(f"Seed 0, seen before the rules were written: {signed(seen[0])}. It decides nothing.")
    return parts


def predictions(runs: Table1Runs, suite: Suite) -> list[Contrast]:
    """Return the error of each row with own affinities that has a published one to predict."""
    seeds = CONFIRMING if suite is TABLE1_N3 else None
    return [
        Contrast(label, ((1.0, row),), seeds)
        for label, row in runs.rows_of(suite).items()
        if row is not None and row.published is not None and label.endswith("own affinities")
    ]


def predicted(runs: Table1Runs, suite: Suite) -> str:
    """Return how many published errors lie in the prediction interval of their row; "" where no row has one."""
    known = [one.is_inside for one in predictions(runs, suite) if one.is_inside is not None]
    return (
        f"{sum(known)} of {len(known)} lie where our runs with own affinities predict them" if known else ""
    )


def divergence_counts(runs: Table1Runs) -> dict[tuple[str, bool], tuple[int, int]]:
    """Return of larger starts, by form and whether it shares one affinity: diverged runs, and all."""
    counts: dict[tuple[str, bool], tuple[int, int]] = {}
    for row in filter(None, runs.rows_of(STARTS_N3).values()):
        what = setting(row.recipe)
        key = str(what.form), what.shared is True
        gone, started = counts.get(key, (0, 0))
        counts[key] = gone + len(row.diverged), started + len(row.started)
    return counts


def diverged_alone(runs: Table1Runs) -> tuple[int, int]:
    """Return in how many pairs of proposed runs from larger starts only own affinities diverged, and only one."""
    ended: dict[bool, dict[tuple[str, int, int], bool]] = {False: {}, True: {}}
    for row in filter(None, runs.rows_of(STARTS_N3).values()):
        what = setting(row.recipe)
        for run in row.started if what.form == "diffusive" else ():
            pair = row.group, what.blocks, run.recipe.seed
            ended[what.shared is True][pair] = run.ending == "diverged"
    own, one = ended[False], ended[True]
    pairs = own.keys() & one.keys()
    return sum(own[pair] > one[pair] for pair in pairs), sum(own[pair] < one[pair] for pair in pairs)


def matching_sections(runs: Table1Runs) -> tuple[Section, ...]:
    """Return a section for each suite of which something is recorded: its rows, and what its rule says."""
    sections = [Section("", (ABOUT, hypothesis_sentence(runs), hypothesis_parts(runs)))]
    for suite in MATCHING:
        if suite in runs.planned:
            continue
        rows = runs.rows_of(suite)
        seeds = CONFIRMING if suite is TABLE1_N3 else None
        contrasts = [difference(rows[a], rows[b], f"{a} less {b}", seeds) for a, b in suite.pairs]
        if suite is STARTS_N3:
            decided = _counts_table(runs)
        elif suite is CORNERS_N3:
            decided = contrasts_table("effect", corner_effects(runs), gains)
        elif suite is TABLE1_N3:
            decided = contrasts_table("seeds 1 to 4", [*contrasts, primary(runs)])
        else:
            decided = contrasts_table("paired by seed", contrasts, breaks if suite is RATE_N3 else None)
        every = rows_table(runs.suites.get(suite.name, ()))
        own = contrasts_table("error in %", predictions(runs, suite))
        sections.append(Section(suite.title, (every, decided, own)))
    return tuple(sections)


def _counts_table(runs: Table1Runs) -> Table:
    lines = [
        (f"{NAMES[form]}, {'one affinity' if is_one else 'own affinities'}", f"{gone} of {started}")
        for (form, is_one), (gone, started) in divergence_counts(runs).items()
    ]
    header = ("stages", "diverged within ten epochs")
    return Table(header, lines, key=header[1])


def corner_effects(runs: Table1Runs) -> list[Contrast]:
    """Return what own embeddings gain, and what the current state gains, each over both choices of the other."""
    one_state, own_input = runs.rows_of(CORNERS_N3).values()
    one_input, own_state = (
        runs.find(form="diffusive", blocks=5, backbone=N3, shared=is_one) for is_one in (True, False)
    )
    seeds = range(3)
    pairs = {
        "own less one embedding": ((own_state, one_state), (own_input, one_input)),
        "current state less input": ((own_state, own_input), (one_state, one_input)),
    }
    return [mean_of([difference(*two, seeds=seeds) for two in some], name) for name, some in pairs.items()]


def gains(effect: Contrast) -> str:
    """Return the word for an effect: it gains if its interval lies below 0."""
    return "gains" if effect.interval is not None and effect.interval.high < 0 else "undecided"


def breaks(contrast: Contrast) -> str:
    """Return whether 4 original blocks break: a run diverges, or the error is more than a point above the baseline."""
    row, found = contrast.terms[0][1], contrast.interval
    if row is None or "original-4" not in row.recipe.network:
        return "–"
    return "breaks" if row.diverged or (found and found.low > BROKEN_ABOVE) else "not shown"
