"""The backbones that match the paper's baselines: the hypothesis, and what decides each suite.

The rules are those of paper/protocol.md, "On the backbone that matches".
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from nonloc_paper.report.contrasts import Contrast, contrasts_table, difference, mean_of
from nonloc_paper.report.document import Section
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1 import rows_table
from nonloc_paper.report.table1_runs import NAMES, Table1Runs, setting
from nonloc_paper.report.tables import Table
from nonloc_paper.report.verdicts import signed
from nonloc_paper.suites import SUITES
from nonloc_paper.suites.matching_tables import MATCHING, TABLE1_N3

N3 = "preresnet29"
CONFIRMING = range(1, 5)  # seeds; seed 0 had been seen when the rules were written
BLOCKS = (2, 3, 4, 5, 6)
REFUTED_ABOVE = -0.1  # points of error: the lower end of the interval
BROKEN_ABOVE = 1.0  # points of error above the baseline

ABOUT = (
    "Table 1 with 3 and Table 2 with 9 bottlenecks a group, whose baselines are near the published ones. "
    "[The rules](../protocol.md#on-the-backbone-that-matches) were written before the runs. Published differences are "
    "inside or outside the interval in which ours predict a median of 5 runs. Diverged runs are counted, not averaged."
)


def without_seen(runs: Table1Runs) -> Table1Runs:
    """Return the runs that decide: without seed 0 of Table 1 on this backbone, which had been seen."""
    seen = {setting(row.recipe) for row in TABLE1_N3.rows}
    rows = (replace(row, runs=row.runs[1:]) if setting(row.recipe) in seen else row for row in runs.rows)
    return replace(runs, rows=tuple(rows))


def own_less_one(
    runs: Table1Runs, blocks: int, backbone: str = N3, seeds: Container[int] | None = CONFIRMING
) -> Contrast:
    """Return the error of proposed blocks with own affinities less that with one."""
    own, one = (
        runs.find(form="diffusive", blocks=blocks, backbone=backbone, shared=is_one)
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
    """Return the verdict on the hypothesis with n, and what was measured."""
    contrast, seen = primary(runs), primary(runs, seeds=(0,)).values
    text = (
        f"The hypothesis is **{hypothesis_word(contrast)}, n = {len(contrast.values)}**: proposed blocks reach the "
        "paper's accuracy if each computes its own affinity, and not with one for all. Seeds 1 to 4 decide it."
    )
    if contrast.values or contrast.lost:
        text += f" Own less one affinity, mean over 2 to 6 blocks: {contrast.format()}."
    own = [runs.find(form="diffusive", blocks=n, backbone=N3, shared=False) for n in BLOCKS]
    inside = [Contrast("", ((1.0, row),), CONFIRMING).is_inside for row in own]
    if known := [one for one in inside if one is not None]:
        text += f" The rows with own affinities predict {sum(known)} of {len(known)} published errors."
    if seen:
        text += f" Seed 0, seen before the rules were written, has {signed(seen[0])} and decides nothing."
    return text


def divergence_counts(runs: Table1Runs) -> dict[tuple[str, bool], tuple[int, int]]:
    """Return of larger starts, by form and whether it shares one affinity: diverged runs, and all."""
    counts: dict[tuple[str, bool], tuple[int, int]] = {}
    for row in filter(None, runs.rows_of(SUITES["starts-n3"]).values()):
        what = setting(row.recipe)
        key = str(what.form), what.shared is True
        gone, started = counts.get(key, (0, 0))
        counts[key] = gone + len(row.diverged), started + len(row.started)
    return counts


def matching_sections(runs: Table1Runs) -> tuple[Section, ...]:
    """Return a section for each suite of which something is recorded: its rows, and what its rule says."""
    sections = [Section("", (ABOUT, hypothesis_sentence(runs)))]
    for suite in MATCHING:
        rows = runs.rows_of(suite)
        is_table1 = suite.name == "table1-n3"
        seeds = CONFIRMING if is_table1 else None
        contrasts = [difference(rows[a], rows[b], f"{a} less {b}", seeds) for a, b in suite.pairs]
        words = [_breaks(one) for one in contrasts] if suite.name == "rate-n3" else []
        own = [
            Contrast(label, ((1.0, row),), seeds)
            for label, row in rows.items()
            if row is not None and row.published is not None and label.endswith("own affinities")
        ]
        if suite.name == "starts-n3":
            decided = _counts_table(runs)
        elif suite.name == "corners-n3":
            decided = _effects(runs, *rows.values())
        else:
            title = "seeds 1 to 4" if is_table1 else "paired by seed"
            decided = contrasts_table(title, [*contrasts, *([primary(runs)] if is_table1 else [])], words)
        if suite not in runs.planned:
            every = rows_table(runs.suites.get(suite.name, ()))
            sections.append(Section(suite.title, (every, decided, contrasts_table("error in %", own))))
    return tuple(sections)


def _counts_table(runs: Table1Runs) -> Table:
    lines = [
        (f"{NAMES[form]}, {'one affinity' if is_one else 'own affinities'}", f"{gone} of {started}")
        for (form, is_one), (gone, started) in divergence_counts(runs).items()
    ]
    header = ("stages", "diverged within ten epochs")
    return Table(header, lines, key=header[1])


def _effects(runs: Table1Runs, one_state: RowRecord | None, own_input: RowRecord | None) -> Table:
    """What own embeddings gain, and what the current state gains, each over both choices of the other."""
    one_input, own_state = (
        runs.find(form="diffusive", blocks=5, backbone=N3, shared=is_one) for is_one in (True, False)
    )
    seeds = range(3)
    pairs = {
        "own less one embedding": ((own_state, one_state), (own_input, one_input)),
        "current state less input": ((own_state, own_input), (one_state, one_input)),
    }
    effects = [mean_of([difference(*two, seeds=seeds) for two in some], name) for name, some in pairs.items()]
    gains = [one.interval is not None and one.interval.high < 0 for one in effects]
    return contrasts_table("effect", effects, ["gains" if gain else "undecided" for gain in gains])


def _breaks(contrast: Contrast) -> str:
    """Whether 4 original blocks break: a run diverges, or the error is more than a point above the baseline."""
    row, found = contrast.terms[0][1], contrast.interval
    if row is None or "original-4" not in row.recipe.network:
        return "–"
    return "breaks" if row.diverged or (found and found.low > BROKEN_ABOVE) else "not shown"
