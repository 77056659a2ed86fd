"""write_reproduction: from kept records to the documents and the page of the reproduction, byte for byte the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.beside_figure import CAPTION as BESIDE_CAPTION
from nonloc_paper.report.beside_figure import beside_figure
from nonloc_paper.report.claims import Claim, judge, rules_table
from nonloc_paper.report.document import Content, Document, Picture, Section, write_documents
from nonloc_paper.report.kept import OTHER, TABLE, Kept, read_kept
from nonloc_paper.report.map_answers import answers, cells_table, late_table, limits_table
from nonloc_paper.report.map_corners import ABOUT as ABOUT_CORNERS
from nonloc_paper.report.map_corners import CAPTION as CORNERS_CAPTION
from nonloc_paper.report.map_corners import corners_figure, corners_table
from nonloc_paper.report.map_figures import BEFORE_CAPTION, HEAT_CAPTION, before_divergence, heat_map
from nonloc_paper.report.map_logits import ABOUT as ABOUT_LOGITS
from nonloc_paper.report.map_logits import CAPTION as LOGITS_CAPTION
from nonloc_paper.report.map_logits import logits_figure, logits_sentences
from nonloc_paper.report.page import PAPER
from nonloc_paper.report.panels import figure_sections
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1 import (
    afterwards_table,
    apart_table,
    differences_table,
    missing_sentences,
    rows_table,
)
from nonloc_paper.report.table1_figure import CAPTION, table_figure
from nonloc_paper.report.tables import Table
from nonloc_paper.report.trainability import TrainabilityMap, read_map, recorded
from nonloc_paper.report.trained_stages import ABOUT_LOST, lost_table
from nonloc_paper.report.verdicts import DEPENDS, NOT_REPRODUCED, REPRODUCED, UNDECIDED, Verdict
from nonloc_paper.suites.records import read_spent

TITLE = "The paper, settled: CIFAR-10"
MAP = "map"

ABOUT_TABLE = (
    "Error on the CIFAR-10 test images after the last epoch; lower is better. Published: the paper's median of 5 runs. "
    "n: seeds that ran to their end, which median and range are over; runs that diverged or are missing are named, "
    "never left out. Seconds are the median run's, several runs under way at once on one device."
)
ABOUT_DIFFERENCES = (
    "Mean of the differences seed by seed, in points of error, with the 95 % interval of Student's t; below 0 is "
    "better. Pairs of which a run diverged are counted and not averaged here; in the verdicts such a run has the error "
    "of guessing, 90 %. Published: the difference of the two published medians."
)
ABOUT_AFTERWARDS = (
    "These were asked when the runs had been seen, and decide no sentence of the paper: means over seeds with their "
    "95 % intervals, of runs from the small start, after residual block 2, each form with its own affinity. So form "
    "and affinity differ together here. Seeds with which a run of one of the rows diverged are left out."
)
ABOUT_APART = (
    "The paper's stage differs from original blocks in two things, differences and one affinity for all blocks. Where "
    "there are rows that differ in one of the two: the differences seed by seed, as above."
)
ABOUT_VERDICTS = (
    "The rules were written down before the runs (paper/protocol.md), with what was amended since and what was "
    "recorded by then; each verdict below is computed from the kept records by these rules and by nothing else. n: the "
    "fewest runs, pairs or rounds that a part of the sentence rests on."
)
ABOUT_MAP = (
    "A map that the paper does not have: learning rate by initialisation by number of blocks, on CIFAR-10 with "
    "PreResNet-20, blocks after residual block 2. A run trains if it ends with a training loss clearly below that of "
    "guessing (below 95 % of ln 10). A seed fixes the start and the order of the images, and not the last bits of sums "
    "on a GPU: done again, a run near the edge can end the other way. How θ, φ, W_Z and W_g begin: normal 0.05, with "
    "normal values of this deviation; fan_in, of deviation 1/√fan_in; torch, by PyTorch's default; zero, with W_Z = 0 "
    "and the others by PyTorch's default; zero, batch norm, the same with a batch norm after W_Z whose γ begins at 0."
)
ABOUT_CELLS = (
    "Of all seeds: how many train, how many diverge and when; the mean of the last losses and the median error of "
    "those that came to their end. Spread of logits: the largest difference of two in a row of a kernel, at the last "
    "look at a run that found a number, of all seeds the largest. Growth before: the largest growth of a signal that "
    "`certify` found in the last 100 steps of a run that diverged."
)


@dataclass(frozen=True)
class Reproduction:
    """What the records say, and the files that were written."""

    verdicts: tuple[tuple[Claim, Verdict], ...]
    files: tuple[Path, ...]


def is_kept(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds kept records: runs of Table 1, by row and seed, or tables of the map."""
    root = Path(folder)
    # `nonloc reproduce` and `nonloc map` work in folders of these names, too.
    has_runs = any(path.parent.name.isdecimal() for path in root.glob(f"{TABLE}*/*/*/recipe.json"))
    return has_runs or any((root / MAP / f"{part}.jsonl").is_file() for part in PARTS)


def write_reproduction(folder: str | os.PathLike[str], output: str | os.PathLike[str]) -> Reproduction:
    """Write table1.md, figures.md, map.md, verdicts.md, protocol.md, figures and report.html from kept records."""
    root = Path(folder)
    kept, found = read_kept(root), read_map(root / MAP)
    verdicts = tuple(judge(kept, found))
    documents = [
        Document("verdicts", "What holds of the paper", _verdict_sections(verdicts)),
        Document("table1", "Table 1", _table_sections(kept, spent_sentences(root))),
        Document("figures", "Figures 1 to 4", tuple(figure_sections(kept))),
        Document("map", "The trainability map: which rate, which initialisation", _map_sections(found)),
        Document("protocol", "The runs behind the protocol", _protocol_sections(kept)),
    ]
    about = (
        f"A report of nonloc on {PAPER}. Everything here is made from the records in paper/results/ alone."
    )
    written = write_documents(documents, Path(output), TITLE, about)
    return Reproduction(verdicts, tuple(written))


def verdict_counts(verdicts: Sequence[tuple[Claim, Verdict]], link: str = "") -> str:
    """Such as "Of the paper's 20 sentences: 7 reproduced, 8 not reproduced, 0 depending on …, 5 undecided."."""
    words = [verdict.word for _, verdict in verdicts]
    failed = sum(bool(verdict.failed) for _, verdict in verdicts if verdict.word == UNDECIDED)
    of_them = f", in {failed} of them a part has failed" if failed else ""
    sentences = f"Of the paper's {len(words)} sentences"
    return (
        f"{f'[{sentences}]({link})' if link else sentences}: {words.count(REPRODUCED)} reproduced, "
        f"{words.count(NOT_REPRODUCED)} not reproduced, {words.count(DEPENDS)} depending on a condition, "
        f"{words.count(UNDECIDED)} undecided{of_them}."
    )


def verdict_table(verdicts: Sequence[tuple[Claim, Verdict]]) -> Table:
    """One line a sentence."""
    lines = tuple(
        (
            f"“{claim.quote}”",
            claim.where,
            verdict.text,
            ". ".join(filter(None, (verdict.left_open, claim.short))),
        )
        for claim, verdict in verdicts
    )
    header = ("the paper's words", "where", "verdict", "why it is open; what to read it with")
    return Table(header, (("", lines),), prose=True)


def _verdict_sections(verdicts: Sequence[tuple[Claim, Verdict]]) -> tuple[Section, ...]:
    details = []
    for claim, verdict in verdicts:
        numbers = [f"{condition}: {part.name}: {part.numbers}" for condition, part in verdict.parts]
        numbers += [f"beside it: {part.name}: {part.numbers}" for part in verdict.beside]
        contents: list[Content] = [
            f"{claim.where}: {verdict.text}. {verdict.left_open}{'.' if verdict.left_open else ''}".rstrip(),
            f"Measured: {claim.quantity}.",
            f"Rule: {claim.rule}.",
            numbers or ["no run"],
            claim.remark,
        ]
        details.append(Section(f"“{claim.quote}”", tuple(contents)))
    return (
        Section("In short", (verdict_counts(verdicts), verdict_table(verdicts), ABOUT_VERDICTS)),
        *details,
        Section("The rules", (rules_table(),)),
    )


def _table_sections(kept: Kept, spent: Sequence[str]) -> tuple[Section, ...]:
    planned = [row for row in kept.rows if row.group != OTHER]
    others = [*(row for row in kept.rows if row.group == OTHER), *kept.twice]
    missing = missing_sentences(planned)
    figure = table_figure(kept)
    shown = () if figure is None else (Picture("table1", figure, CAPTION),)
    sections = [
        Section("Rows", (*shown, ABOUT_TABLE, rows_table(planned))),
        Section("Paired differences", (ABOUT_DIFFERENCES, differences_table(kept))),
    ]
    beside, apart = beside_figure(kept), apart_table(kept)
    if beside is not None:
        sections.insert(1, Section("Beside the table", (Picture("table1-beside", beside, BESIDE_CAPTION),)))
    if apart is not None:
        sections.append(Section("Form or affinity", (ABOUT_APART, apart)))
    afterwards = afterwards_table(kept)
    if afterwards is not None:
        sections.append(Section("Asked afterwards", (ABOUT_AFTERWARDS, afterwards)))
    lost = lost_table(kept.rows)
    if lost is not None:
        sections.append(Section("Runs that diverged", (ABOUT_LOST, lost)))
    if others:
        sections.append(Section("Other kept runs", (rows_table(others),)))
    if missing:
        sections.append(Section("What is missing", (missing,)))
    return (*sections, Section("Time", ([time_sentence([*kept.rows, *kept.tried]), *spent],)))


def _protocol_sections(kept: Kept) -> tuple[Section, ...]:
    missing = missing_sentences(kept.tried)
    about = (
        "Backbone, scale, start and normalisation: the runs that the decisions in paper/protocol.md rest on."
    )
    sections = [Section("", (about, rows_table(kept.tried)))]
    return (*sections, Section("What is missing", (missing,))) if missing else tuple(sections)


def _map_sections(found: TrainabilityMap) -> tuple[Section, ...]:
    if not any(cells for _, cells in found.parts):
        return (Section("", (ABOUT_MAP, "No cell of the map is recorded yet.")),)
    sections = [Section("The answer", (answers(found), ABOUT_MAP, recorded(found)))]
    for rate in found.rates:
        name = f"map-rate-{rate:g}"
        sections.append(Section(f"Rate {rate:g}", (Picture(name, heat_map(found, rate), HEAT_CAPTION),)))
    if found.one_epoch:
        sections.append(Section("Up to which deviation stages train for one epoch", (limits_table(found),)))
    if found.ten_epochs:
        figure = before_divergence(found.ten_epochs)
        shown: list[Content] = [] if figure is None else [Picture("map-before", figure, BEFORE_CAPTION)]
        told = (ABOUT_CELLS, late_table(found.ten_epochs), *shown)
        sections.append(Section("Ten epochs at the paper's rate", told))
    corners = corners_figure(found)
    if corners is not None:
        picture = Picture("map-corners", corners, CORNERS_CAPTION)
        sections.append(Section("Form or affinity", (ABOUT_CORNERS, corners_table(found), picture)))
    logits = logits_figure(found)
    if logits is not None:
        picture = Picture("map-logits", logits, LOGITS_CAPTION)
        sections.append(Section("How far logits spread", (ABOUT_LOGITS, logits_sentences(found), picture)))
    for part, cells in found.late:
        if part.change:
            sections.append(Section(f"Ten epochs,{part.with_change}", (late_table(cells),)))
    sections += [Section(f"Every cell, rate {rate:g}", (cells_table(found, rate),)) for rate in found.rates]
    return tuple(sections)


def spent_sentences(root: Path) -> list[str]:
    """What the commands that trained have noted in spent.jsonl, folder by folder, and in all."""
    told, total = [], 0.0
    for folder, entries in read_spent(root).items():
        minutes = sum(entry["seconds"] for entry in entries) / 60
        total += minutes
        devices = ", ".join(sorted({str(entry.get("device", "unknown")) for entry in entries}))
        told.append(f"{folder.relative_to(root)}: {minutes:.0f} minutes on the clock ({devices}).")
    return [*told, f"In all {total:.0f} minutes on the clock."] if told else []


def time_sentence(rows: Sequence[RowRecord]) -> str:
    """How long the finished runs took, each once."""
    runs = {run.path: run for row in rows for run in row.started}
    seconds = [run.result["seconds"] for run in runs.values() if run.result is not None]
    if not seconds:
        return "No run is finished yet."
    gone = sum(run.ending == "diverged" for run in runs.values())
    return (
        f"{len(seconds)} runs that ended{f', {gone} of them by diverging' if gone else ''}: "
        f"{sum(seconds) / 60:.0f} minutes of run time, {median(seconds):.0f} s the median run. Runs that were under "
        "way side by side each count their own time, so the device was held for less."
    )
