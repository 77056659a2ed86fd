"""The finding for README: one figure and five lines, made from the kept records and from nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nonloc.paper.map_cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc.paper.spent import read_all_spent
from nonloc.report.claims import judge
from nonloc.report.evidence import NAMES
from nonloc.report.kept import OTHER, Kept, differences, read_kept
from nonloc.report.map_corners import by_affinity, corners_sentence
from nonloc.report.map_logits import told, watched
from nonloc.report.records import RowRecord
from nonloc.report.reproduction import MAP, verdict_counts
from nonloc.report.statistics import Interval, interval, signed
from nonloc.report.tables import listed
from nonloc.report.trainability import Cell, TrainabilityMap, blocks_told, diverged_counts, inits, read_map
from nonloc.report.trained_stages import action_sentences

USUAL = (TEN_EPOCHS, SHARED, RECOMPUTED)  # the parts whose logits are not divided, and of the same kernel
FIGURE = "docs/reproduction/figures/map-corners.svg"


def finding(folder: str | os.PathLike[str]) -> str:
    """Markdown for README.md, from the records below `folder`."""
    root = Path(folder)
    kept, found = read_kept(root), read_map(root / MAP)
    planned = [run for row in kept.rows if row.group != OTHER for run in row.runs]
    done = sum(run is not None and run.ending != "unfinished" for run in planned)
    lines = [
        f"**The table.** {done} of {len(planned)} planned runs of Table 1 and its neighbours are recorded."
        f"{_gains(kept)}"
        f"{_lost_rows(kept)} {verdict_counts(tuple(judge(kept, found)))}",
        f"**What diverges.** Ten epochs at the paper's rate; how the maps begin: {_starts()}. {_diverged(found)}",
        "**How far logits spread.** The largest difference of two in a row of a kernel, not divided by √d: "
        f"{_spreads(found)}.",
        f"**What trained stages do.** At the paper's rate, all blocks in one place. {_action(kept)}.",
        "**Conditions.** PreResNet-20 on CIFAR-10, blocks after residual block 2 where no other place is named, batch "
        f"128, bfloat16; {_versions(kept.rows)}{_time(root)}.",
    ]
    items = "\n".join(f"- {line}" for line in lines)
    return (
        f"![Which stages diverge, by form and affinity]({FIGURE})\n\n"
        "*Ten epochs at the paper's rate. ✕: how many seeds diverged; below it the median test error "
        "of the others. Left, every block computes an affinity of its own; right, one is computed for all.*\n\n"
        f"{items}"
    )


def _gains(kept: Kept) -> str:
    """Every number of blocks against the baseline, and the two forms against each other; empty without pairs."""
    baseline = kept.find(form=None, blocks=None)
    by_form: dict[str, dict[int, Interval]] = {name: {} for name in NAMES.values()}
    between: dict[int, Interval] = {}
    for blocks in range(1, 7):
        rows = {form: kept.find(form=form, blocks=blocks) for form in NAMES}
        for form, row in rows.items():
            found = interval(list(differences(row, baseline).values()))
            if found is not None:
                by_form[NAMES[form]][blocks] = found
        found = interval(list(differences(rows["diffusive"], rows["original"]).values()))
        if found is not None:
            between[blocks] = found
    means = [
        f"{form} {', '.join(f'{blocks}: {signed(one.mean)}' for blocks, one in found.items())}"
        for form, found in by_form.items()
        if found
    ]
    text = ""
    if means:
        counts = sorted({one.n for found in by_form.values() for one in found.values()})
        text += (
            " Mean difference to the baseline in points of error, by the number of blocks: "
            f"{'; '.join(means)} (n = {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))})."
        )
    if between:
        told = "; ".join(f"{blocks} blocks {found.told()}" for blocks, found in between.items())
        text += f" Proposed less original: {told}."
    return text


def _starts() -> str:
    return listed(inits(cell.init for cell in TEN_EPOCHS.cells))


def _lost_rows(kept: Kept) -> str:
    """Such as " Diverged: 4-block (original) 2 of 3.", for every row with such runs; empty if there is none."""
    told = [
        f"{kept.named(row)} {len(row.diverged)} of {len(row.started)}" for row in kept.rows if row.diverged
    ]
    return f" Diverged: {'; '.join(told)}." if told else ""


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
    sentences = [text for text in (corners_sentence(found), "; ".join(others)) if text]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences) or "Nothing is recorded yet."


def _blocks(cells: Sequence[Cell], family: str) -> str:
    return blocks_told([cell for cell in cells if cell.family == family])


def _spreads(found: TrainabilityMap) -> str:
    """Of the stages as they are and with either affinity; the map has those whose logits are others."""
    sentences = []
    for diverged in (True, False):
        groups = [one for one in watched(found) if one.part in USUAL and one.diverged is diverged]
        values = [value for one in groups for value in one.values]
        if values:
            sentences.append(told(diverged, sum(one.runs for one in groups), values))
    return "; ".join(sentences) or "no run was watched yet"


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
    spent = read_all_spent(root)
    entries = [entry for some in spent.values() for entry in some]
    suites = [folder.name for folder in spent if folder.name != MAP]
    commands = [f"`nonloc reproduce {suite}`" for suite in suites] + ["`nonloc map`"] * (root / MAP in spent)
    devices = ", ".join(sorted({str(entry.get("device", "unknown")) for entry in entries}))
    minutes = sum(entry["seconds"] for entry in entries) / 60
    return f"{minutes:.0f} minutes on {devices} for {listed(commands)}" if entries else "no time is noted"
