"""write_reproduction: from recorded runs to the pages of the reproduction; the same records give the same pages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.claims import CLAIMS, Claim, judge
from nonloc_paper.report.document import (
    Content,
    Data,
    Details,
    Document,
    Picture,
    Section,
    as_markdown,
    write_documents,
)
from nonloc_paper.report.figure_page import figure_sections
from nonloc_paper.report.map import figures as map_figures
from nonloc_paper.report.map import tables as map_tables
from nonloc_paper.report.map.cells import TrainabilityMap, read_map
from nonloc_paper.report.matching import matching_sections
from nonloc_paper.report.page import PAPER
from nonloc_paper.report.sentences import count_ended
from nonloc_paper.report.summary import summary_sections
from nonloc_paper.report.table1 import differences_table, missing_table, rows_table
from nonloc_paper.report.table1_runs import OTHER, TABLE, Table1Runs, read_table1_runs
from nonloc_paper.report.tables import Table, join_words
from nonloc_paper.report.trained_stages import ABOUT_LOST, lost_table
from nonloc_paper.report.verdicts import (
    DEPENDS,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    Part,
    Verdict,
)
from nonloc_paper.runs import find_runs, write_atomically
from nonloc_paper.suites.archive import read_spent

TITLE = "What is known of the paper's claims"
README, BEGIN, END = "README.md", "<!-- made by nonloc report -->\n", "<!-- until here -->"
MAP = "map"
BADGES = {REPRODUCED: "✔", NOT_REPRODUCED: "✘", DEPENDS: "◐", UNDECIDED: "○"}
ANSWERS = {True: "holds", False: "fails", None: "open"}

ABOUT_TABLE = (
    "Error on the CIFAR-10 test images after the last epoch; lower is better. Published: the paper's median of 5 runs. "
    "Seeds: those that ran to their end, which median and range are over. Seconds: the median run, several at once on "
    "one device."
)
ABOUT_DIFFERENCES = (
    "Mean of the differences seed by seed, in points of error, with the 95 % interval of Student's t; below 0 is "
    "better. Pairs with a diverged run are counted and not averaged. Published: the same difference in the paper, "
    "inside or outside the interval that ours predict for a median of 5 runs. With 3 bottlenecks a group seeds 1 to 4 "
    "count: seed 0 had been seen before."
)
ABOUT_BACKBONES = (
    "The paper's text fits no usual network: 20 layers with 64 channels after residual block 2 need bottlenecks, but "
    "its formula has two weight layers. With 2 bottlenecks a group depth and channels fit; with one affinity for all "
    "proposed blocks of a stage that is the literal reading. The published baseline fits 3 bottlenecks a group, and 9 "
    "on CIFAR-100. Each sentence is judged on every backbone that has runs for it, by the same rules. With 3, seed 0 "
    "of Table 1 had been seen before, and seeds 1 to 4 decide."
)
CHOSEN_LATE = ("damped", "slowly", "blowup", "places", "small")  # claims, by protocol.md's amendments
_LATE = join_words(str(place) for place, claim in enumerate(CLAIMS, start=1) if claim.key in CHOSEN_LATE)
ABOUT_VERDICTS = (
    "[The rules](../protocol.md#the-sentences-and-their-rules) were written before the runs. Some were changed later, "
    f"and how verdicts {_LATE} are computed was chosen when runs with 2 bottlenecks were known "
    "([amendments](../protocol.md#amendments)). Each verdict is computed from the records by them alone. Number: of "
    "the comparison that decides, or the first of several. Differences (−) are in points of error, with 95 % "
    "intervals. n: the fewest runs, pairs or rounds that a part of the sentence rests on."
)
ABOUT_MAP = (
    "The paper has no such map. Learning rate by initialisation by number of blocks, CIFAR-10, PreResNet-20, blocks "
    "after residual block 2. A run trains if its last training loss is below 95 % of ln 10, that of guessing. A seed "
    "fixes the start and the order of the images, not the last bits of sums on a GPU: a run near the edge can end the "
    "other way when repeated."
)
STARTS = [
    "normal 0.05: θ, φ, W_Z and W_g have normal values of this deviation; fan_in: of deviation 1/√fan_in.",
    "torch: PyTorch's default. zero: the same with W_Z = 0. zero, batch norm: also a batch norm after W_Z with γ = 0.",
]
ABOUT_CELLS = (
    "Last loss: mean of the last losses; it and the median error are of the seeds that came to their end. Spread of "
    "logits: the largest difference of two in a row of a kernel, over all seeds. Growth before: the largest growth of "
    "a signal that `certify` found in the last 100 steps of a run that diverged."
)
ABOUT_FORM_BY_AFFINITY = (
    "All four combinations of form and affinity, ten epochs at rate 0.1. A pair has the same number of blocks, start "
    "and seed. p: exact two-sided sign test over the pairs of which just one diverged; it takes pairs for independent, "
    "though three seeds are in all cells. A block with its own affinity has its own θ and φ. These runs were planned "
    "when the others had been seen, and decide no sentence of the paper."
)
ABOUT_LOGITS = (
    f"The largest difference of two logits in a row of a kernel. {map_tables.CALM} is a mark to count by, chosen when "
    "the first of these runs had been seen. Signals grow before a divergence, too; which is the cause, these runs do "
    "not show."
)
ABOUT_SPENT = (
    "By the clock, all commands that trained, also those that were stopped. Minutes a run: these minutes divided by "
    "the runs that ended, several at once on one device."
)


@dataclass(frozen=True)
class Reproduction:
    """What the records say, and the files that were written."""

    verdicts: tuple[tuple[Claim, Verdict], ...]
    files: tuple[Path, ...]


def has_records(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds records: runs of Table 1, by row and seed, or tables of the map."""
    root = Path(folder)
    # `nonloc reproduce` and `nonloc map` work in folders of these names, too.
    has_runs = any(path.parent.name.isdecimal() for path in root.glob(f"{TABLE}*/*/*/recipe.json"))
    return has_runs or any((root / MAP / f"{part}.jsonl").is_file() for part in PARTS)


def write_reproduction(folder: str | os.PathLike[str], output: str | os.PathLike[str]) -> Reproduction:
    """Write the Markdown pages, their figures and data, and report.html from records."""
    documents, verdicts = make_documents(Path(folder))
    about = (
        f"A report of nonloc on {PAPER}. Everything here is made from the records in paper/results/ alone."
    )
    files = write_documents(documents, Path(output), TITLE, about)
    readme = Path(output).parent / README
    old = readme.read_text() if readme.is_file() else ""
    new = with_summary(old, documents[0], Path(output).name)
    if new != old:
        write_atomically(readme, new.encode())
        files.append(readme)
    return Reproduction(verdicts, tuple(files))


def with_summary(text: str, summary: Document, folder: str) -> str:
    """Return the text of a README with the summary between the two marks; without marks it stays as it is."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        return text
    made = as_markdown(summary).partition("\n\n")[2]
    made = re.sub(r"\]\((?=(?:figures|data)/|\w+\.md)", f"]({folder}/", made)
    return f"{before}{begin}\n{made}\n{end}{after}"


def make_documents(root: Path) -> tuple[list[Document], tuple[tuple[Claim, Verdict], ...]]:
    """Return the documents and the verdicts from the records below `root`."""
    runs, trained = read_table1_runs(root), read_map(root / MAP)
    verdicts = tuple(judge(runs, trained))
    documents = [
        Document("summary", "The results in short", summary_sections(runs, trained)),
        Document("verdicts", "What is known of each claim", _verdict_sections(verdicts)),
        Document("matching", "On the backbones that match", matching_sections(runs)),
        Document("table1", "Table 1", _table_sections(runs, root)),
        Document("figures", "Figures 1 to 4", tuple(figure_sections(runs))),
        Document("map", "The trainability map: which rate, which initialisation", _map_sections(trained)),
        Document("protocol", "The runs behind the protocol", _protocol_sections(runs)),
    ]
    return documents, verdicts


def verdict_counts(verdicts: Sequence[tuple[Claim, Verdict]]) -> list[str]:
    """Return for each backbone such as "2 bottlenecks a group, 20 sentences: 7 reproduced, 8 not reproduced, …"."""
    literal = verdicts[0][1].where.partition(", ")[0]
    by_title = {literal: [verdict for _, verdict in verdicts]}
    beside = [one for _, verdict in verdicts for one in verdict.beside]
    places = list(dict.fromkeys(one.where for one in beside))
    for title in places:
        # A sentence that asks for no affinity counts with both.
        if not any(other.startswith(f"{title}, ") for other in places):
            by_title[title] = [one for one in beside if title.startswith(one.where)]
    return [_counted(title, some) for title, some in by_title.items()]


def _counted(title: str, verdicts: Sequence[Verdict]) -> str:
    words = [verdict.word for verdict in verdicts]
    failed = sum(verdict.has_failed_part for verdict in verdicts if verdict.word == UNDECIDED)
    of_them = f", in {failed} of them a part has failed" if failed else ""
    waiting = sum(verdict.is_waiting for verdict in verdicts)
    not_run = f", {waiting} not run yet" if waiting else ""
    return (
        f"{title}, {len(words)} sentences: {words.count(REPRODUCED)} reproduced, "
        f"{words.count(NOT_REPRODUCED)} not reproduced, {words.count(DEPENDS)} depending on a condition, "
        f"{words.count(UNDECIDED) - waiting} undecided{of_them}{not_run}."
    )


def verdict_table(verdicts: Sequence[tuple[Claim, Verdict]]) -> Table:
    """Return below each sentence a line for each backbone: the verdict, and the number that decides it with n."""
    lines = []
    for place, (claim, verdict) in enumerate(verdicts, start=1):
        for one in (verdict, *verdict.beside):
            part = one.key_part
            number = re.sub(r", n = \d+", "", part.number or part.numbers.partition(";")[0])
            word = UNDECIDED if one.text.startswith(f"{UNDECIDED} at") else one.text
            if one.word == UNDECIDED and (one.is_waiting or one.has_failed_part):
                word = NOT_RUN if one.is_waiting else f"{word}, a part fails"
            shown = f"{BADGES[one.word]} {word}{f' ({claim.short})' if claim.short else ''}"
            line = (one.where, shown, f"{part.name}: {number}; n = {one.n}")
            lines.append((f"{place}. “{claim.quote}”", line))
    return Table.grouped(("backbone", "verdict", "number"), lines, prose=True, key="verdict")


def parts_table(verdict: Verdict) -> Table:
    """Return a line for each part of the verdicts on a claim: what was compared, the numbers, the answer."""

    def line(part: Part) -> tuple[str, ...]:
        return part.name, part.numbers, ANSWERS[part.holds]

    lines = []
    for one in (verdict, *verdict.beside):
        lines += [(condition, line(part)) for condition, part in one.parts]
        lines += [(f"{one.where}, decides nothing", line(part)) for part in one.context]
    return Table.grouped(("compared", "measured", "rule"), lines, prose=True, key="rule")


def _verdict_sections(verdicts: Sequence[tuple[Claim, Verdict]]) -> tuple[Section, ...]:
    details = []
    for place, (claim, verdict) in enumerate(verdicts, start=1):
        every = (verdict, *verdict.beside)
        open_ = [f"{one.where}: {one.left_open}." for one in every if one.left_open]
        details.append(Details(f"{place}. {claim.where}", (parts_table(verdict), open_, claim.remark)))
    return (
        Section(
            "In short", (ABOUT_BACKBONES, verdict_counts(verdicts), verdict_table(verdicts), ABOUT_VERDICTS)
        ),
        Section("The numbers behind each verdict", tuple(details)),
    )


def _table_sections(runs: Table1Runs, root: Path) -> tuple[Section, ...]:
    others = [*(row for row in runs.rows if row.group == OTHER), *runs.copies]
    lost = Data("table1-diverged", "Their last saved kernels", lost_table(runs.rows))
    rows = rows_table([row for row in runs.rows if row.group != OTHER])
    return (
        Section("Rows", (ABOUT_TABLE, rows)),
        Section("Paired differences", (ABOUT_DIFFERENCES, differences_table(runs))),
        Section("Runs that diverged", (lost, ABOUT_LOST) if lost else ()),
        Section("Other kept runs", (rows_table(others),)),
        Section("What is missing", (missing_table(runs),)),
        Section("Time", (time_sentence(runs), ABOUT_SPENT, spent_table(root))),
    )


def _protocol_sections(runs: Table1Runs) -> tuple[Section, ...]:
    about = "Backbone, scale, start and normalisation: the runs behind the decisions in paper/protocol.md."
    text = (
        "Baselines of other depths in two layouts of the residual block. Public: stride in the 3×3 convolution, "
        "shortcut from x. He: stride in the first 1×1 convolution, shortcut from its activation."
    )
    tried, backbones = (runs.suites[name] for name in ("protocol", "backbones"))
    layouts = (text, rows_table(backbones)) if any(row.started for row in backbones) else ()
    return Section("", (about, rows_table(tried))), Section("Depth and layout of the backbone", layouts)


def _map_sections(trained: TrainabilityMap) -> tuple[Section, ...]:
    if not any(cells for _, cells in trained.parts):
        foreign = sum(trained.foreign.values())
        others = f" Left out: {foreign} by other recipes (`--set`)." if foreign else ""
        return (Section("", (ABOUT_MAP, f"No cell of the map is recorded yet.{others}")),)
    heat: list[Content] = [
        Picture(f"map-rate-{rate:g}", map_figures.heat_map(trained, rate), f"Rate {rate:g}.")
        for rate in trained.rates
    ]
    before = Picture(
        "map-before", map_figures.before_divergence(trained.ten_epochs), map_figures.BEFORE_CAPTION
    )
    corners = Picture("map-corners", map_figures.corners_figure(trained), map_figures.CORNERS_CAPTION)
    logits = Picture("map-logits", map_figures.logits_figure(trained), map_figures.LOGITS_CAPTION)
    spreads = map_tables.logits_table(trained)
    recorded = Details("Runs recorded", (map_tables.runs_table(trained),))
    cells = Data("map-cells", "Every cell of all parts", map_tables.cells_table(trained))
    answer = (map_tables.safe_starts_table(trained), map_tables.late_counts_table(trained))
    pairs = (ABOUT_FORM_BY_AFFINITY, map_tables.form_by_affinity_table(trained), corners) if corners else ()
    return (
        Section("The answer", (*answer, ABOUT_MAP, STARTS, recorded)),
        Section("One epoch", (map_figures.HEAT_CAPTION, *heat) if heat else ()),
        Section("Ten epochs at the paper's rate", (before,)),
        Section("Form or affinity", pairs),
        Section("How far logits spread", (ABOUT_LOGITS, spreads, logits) if logits and spreads else ()),
        Section("Every cell", (cells, ABOUT_CELLS)),
    )


def spent_table(root: Path) -> Table:
    """Return what the commands that trained noted in spent.jsonl, by folder and in all, and how much of it is a run's.

    The map has no folders of runs; its commands noted how many they ended.
    """
    lines, total, total_runs = [], 0.0, 0
    for folder, entries in read_spent(root).items():
        minutes = sum(entry["seconds"] for entry in entries) / 60
        runs = sum(run.is_finished for run in find_runs(folder)) or sum(
            entry.get("runs", 0) for entry in entries
        )
        total, total_runs = total + minutes, total_runs + runs
        devices = ", ".join(sorted({str(entry.get("device", "unknown")) for entry in entries}))
        each = f"{minutes / runs:.2f}" if runs else ""
        lines.append((str(folder.relative_to(root)), f"{minutes:.0f}", str(runs), each, devices))
    # No mean of all: runs of one epoch and of 164 have none worth knowing.
    lines += [("in all", f"{total:.0f}", str(total_runs), "", "")] if lines else []
    header = ("folder", "minutes on the clock", "runs that ended", "minutes a run", "device")
    return Table(header, lines, key="minutes on the clock")


def time_sentence(runs: Table1Runs) -> str:
    """Return how long the runs that ended took, each counted once."""
    text, seconds = count_ended({run.path: run for row in runs.everything for run in row.started}.values())
    if not seconds:
        return "No run is finished yet."
    return (
        f"{text}: {sum(seconds) / 60:.0f} minutes of run time, {median(seconds):.0f} s the median run. Runs side by "
        "side each count their own time, so the device was held for less."
    )
