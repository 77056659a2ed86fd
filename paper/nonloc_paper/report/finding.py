"""The finding for README: a figure, a table and five lines, made from the kept records and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nonloc_paper.map.cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc_paper.report.claims import judge
from nonloc_paper.report.evidence import NAMES
from nonloc_paper.report.kept import DIVIDED, OTHER, Kept, differences, read_kept, setting
from nonloc_paper.report.map_corners import by_affinity, corners_sentence
from nonloc_paper.report.map_logits import told, watched
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.reproduction import MAP, verdict_counts
from nonloc_paper.report.table1 import told_difference
from nonloc_paper.report.tables import Table, listed, number
from nonloc_paper.report.trainability import (
    Cell,
    TrainabilityMap,
    blocks_told,
    diverged_counts,
    inits,
    read_map,
)
from nonloc_paper.report.trained_stages import action_sentences
from nonloc_paper.suites.records import read_spent

USUAL = (TEN_EPOCHS, SHARED, RECOMPUTED)  # the parts whose logits are not divided, and of the same kernel
VERDICTS = "paper/pages/verdicts.md"
FIGURE = "paper/pages/figures/map-corners.svg"


def finding(folder: str | os.PathLike[str]) -> str:
    """Markdown for README.md, from the records below `folder`."""
    root = Path(folder)
    kept, found = read_kept(root), read_map(root / MAP)
    planned = [run for row in kept.rows if row.group != OTHER for run in row.runs]
    done = sum(run is not None and run.ending != "unfinished" for run in planned)
    counts = verdict_counts(tuple(judge(kept, found)), link=VERDICTS)
    lines = [
        f"**The paper's claims.** {counts}",
        f"**What diverges.** {_lost_runs(kept)}Ten epochs, maps that begin with {_starts()}: {_diverged(found)}",
        "**How far logits spread** (ten epochs; largest less smallest in a row of a kernel, not divided by √d). "
        f"{_spreads(found)}.",
        f"**What trained stages do.** At the paper's rate, start {kept.start}, all blocks in one place, each form with "
        "its own affinity. "
        f"{_action(kept)}.",
        "**Conditions.** PreResNet-20 on CIFAR-10, blocks after residual block 2 where no other place is named, batch "
        f"128, bfloat16; {done} of {len(planned)} planned runs of the table and its neighbours are recorded; "
        f"{_versions(kept.rows)}{_time(root)}.",
    ]
    items = "\n".join(f"- {line}" for line in lines)
    return (
        f"![Which stages diverge, by form and affinity]({FIGURE})\n\n"
        "*Ten epochs at the paper's rate. ✕: how many seeds diverged; below it the median test error "
        "of the others. Left, every block computes an affinity of its own; right, one is computed for all.*\n\n"
        f"{_errors(kept)}{items}"
    )


def _errors(kept: Kept) -> str:
    """A line for each number of blocks, of both forms, pair by pair, and a caption; empty without runs."""
    baseline = kept.find(form=None)
    both = {blocks: [kept.find(form=form, blocks=blocks) for form in NAMES] for blocks in range(1, 7)}
    both = {blocks: rows for blocks, rows in both.items() if any(row and row.scores for row in rows)}
    if not both:
        return ""
    seeds = {len(row.scores) for rows in both.values() for row in rows if row and row.scores}
    pairs = {
        blocks: ((original, baseline), (proposed, baseline), (proposed, original))
        for blocks, (original, proposed) in both.items()
    }
    counts = {len(differences(*pair)) for three in pairs.values() for pair in three} - {0}
    lines = []
    for blocks, (original, proposed) in both.items():
        less = [told_difference(*pair, tells_n=len(counts) > 1) for pair in pairs[blocks]]
        lines.append((str(blocks), _error(original), less[0], _error(proposed), less[1], less[2]))
    header = (
        "blocks",
        "original",
        "less the baseline",
        "proposed",
        "less the baseline",
        "proposed less original",
    )
    caption = f"Test error in %, median of {_range_of(seeds)} seeds, in brackets the published one"
    if baseline is not None and baseline.scores:
        caption += f"; the baseline, without blocks, has {_error(baseline)}"
    if counts:
        caption += (
            f". Differences: mean of {_range_of(counts)} pairs with the same seed, and its 95 % interval"
        )
    return f"{Table(header, (('', tuple(lines)),)).as_markdown()}\n\n*{caption}.*\n\n"


def _error(row: RowRecord | None) -> str:
    if row is None or not row.scores:
        return "–"
    return number(row.median) + ("" if row.published is None else f" ({row.published:.2f})")


def _range_of(counts: set[int]) -> str:
    """Such as "3", or "4 to 5"."""
    return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _starts() -> str:
    """As in "maps that begin with normal 0.05 or torch"."""
    *first, last = inits(cell.init for cell in TEN_EPOCHS.cells)
    return f"{', '.join(first)} or {last}"


def _lost_runs(kept: Kept) -> str:
    """How many runs of the table and its neighbours diverged, and where: the form, place and start of their stages.

    Where some did, those with divided logits stand beside them, whether they did or not.
    """
    groups: dict[str, dict[tuple[bool, str], list[RowRecord]]] = {}
    for row in kept.rows:
        if setting(row.recipe).form is not None:
            kind, is_divided, form = _kind(kept, row)
            groups.setdefault(kind, {}).setdefault((is_divided, form), []).append(row)
    told, others = [], 0
    for kind, variants in groups.items():
        plain: list[str] = []
        divided: list[str] = []
        has_lost = any(row.diverged for rows in variants.values() for row in rows)
        for (is_divided, form), rows in variants.items():
            gone = sum(len(row.diverged) for row in rows)
            runs = sum(run.ending != "unfinished" for row in rows for run in row.started)
            if gone or (has_lost and is_divided and runs):
                # What diverges ends first: without these the share of a block that is under way would mislead.
                left = sum(len(row.runs) for row in rows) - runs
                count = f"{form} {gone} of {runs}{f' ({left} to run)' if left else ''}"
                (divided if is_divided else plain).append(count)
            else:
                others += runs
        told += [f"{kind} {', '.join(plain)}"] if plain else []
        told += [f"{kind}, logits divided by √d {', '.join(divided)}"] if divided else []
    if not told:
        return ""
    rest = f"; all other stages 0 of {others}" if others else ""
    return f"Whole runs: {'; '.join(told)}{rest}. "


def _kind(kept: Kept, row: RowRecord) -> tuple[str, bool, str]:
    """What sets a row with a stage apart but for its number of blocks; whether its logits are divided; its form."""
    what = setting(row.recipe)
    assert what.form is not None
    form = "stable" if what.weight == "stable" else NAMES[what.form]
    places = "in one place" if len(what.places) == 1 else "in different places"
    own = kept.wanted(form=what.form, blocks=what.blocks, places=what.places, weight=what.weight)
    is_divided = what.other == DIVIDED
    if is_divided:
        what = replace(what, other=())
    if what == own:
        return places, is_divided, form
    known = what == replace(own, start=what.start)
    return f"{places}, start {what.start}" if known else row.label, is_divided, form


def _action(kept: Kept) -> str:
    return ". ".join(action_sentences(kept, brief=True)) or "No trained network was looked at yet"


def _diverged(found: TrainabilityMap) -> str:
    """Either affinity in each form, and then every run that is in no such pair."""
    compared = by_affinity(found)
    seen = {id(cell) for one in compared for cells in one.cells for cell in cells}
    others = []
    for part, cells in found.late:
        left = [cell for cell in cells if id(cell) not in seen]
        counts = diverged_counts(left)
        if part.change and counts and not any(gone for _, gone, _ in counts):
            # Nothing to tell the families apart by.
            families = listed(family for family, _, _ in counts)
            others.append(f"{families} stages{part.with_change}: 0 of {sum(runs for _, _, runs in counts)}")
            continue
        for family, gone, runs in counts:
            blocks = _blocks(left, family)
            others.append(f"{family} stages, {blocks}{part.with_change}: {gone} of {runs}")
    texts = [text for text in (corners_sentence(found), "; ".join(others)) if text]
    return f"{'; '.join(texts) or 'nothing is recorded yet'}."


def _blocks(cells: Sequence[Cell], family: str) -> str:
    return blocks_told([cell for cell in cells if cell.form == family])


def _spreads(found: TrainabilityMap) -> str:
    """Of the stages as they are and with either affinity; the map has those whose logits are others."""
    sentences = []
    for diverged in (True, False):
        groups = [one for one in watched(found) if one.part in USUAL and one.diverged is diverged]
        values = [value for one in groups for value in one.values]
        if values:
            sentences.append(told(diverged, sum(one.runs for one in groups), values))
    return "; ".join(sentences) or "No run was watched yet"


def _versions(rows: Sequence[RowRecord]) -> str:
    """Of the runs of the table, such as "torch 2.11.0+cu130, Python 3.12.3; "; empty before there are any."""
    results = [run.result for row in rows for run in row.started if run.result is not None]
    names = {"torch": "torch", "triton": "Triton", "python": "Python"}
    known = {
        f"{word} {result['versions'][name]}": None
        for result in results
        for name, word in names.items()
        if name in result["versions"]
    }
    return f"{', '.join(known)}; " if known else ""


def _time(root: Path) -> str:
    spent = read_spent(root)
    entries = [entry for some in spent.values() for entry in some]
    suites = [folder.name for folder in spent if folder.name != MAP]
    commands = [f"`nonloc reproduce {suite}`" for suite in suites] + ["the parts of `nonloc map`"] * (
        root / MAP in spent
    )
    devices = ", ".join(sorted({str(entry.get("device", "unknown")) for entry in entries}))
    minutes = sum(entry["seconds"] for entry in entries) / 60
    return f"{minutes:.0f} minutes on {devices} for {listed(commands)}" if entries else "no time is noted"
