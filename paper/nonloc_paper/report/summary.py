"""What paper/README.md shows: the hypothesis, advice, a forest of paired differences, the tables, form by affinity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nonloc.plots import CHANCE, INK, style
from nonloc_paper.report.advice import (
    COMPARED,
    PLACES,
    advice,
    conditions,
    mean_differences,
    mean_differences_table,
    spectra_table,
)
from nonloc_paper.report.contrasts import Contrast, difference, mean_of
from nonloc_paper.report.document import Picture, Section
from nonloc_paper.report.figures import NARROW, SHADES
from nonloc_paper.report.map.cells import TrainabilityMap, format_blocks
from nonloc_paper.report.map.tables import by_affinity
from nonloc_paper.report.matching import (
    BACKBONES,
    BLOCKS,
    N2,
    N3,
    hypothesis_parts,
    hypothesis_sentence,
    own_minus_one,
    primary,
    start_endings,
    start_pairs,
)
from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1_runs import (
    AFFINITIES,
    KINDS,
    ONE,
    ORIGINAL,
    OWN,
    Table1Runs,
    group_size,
)
from nonloc_paper.report.tables import Table, format_range, format_score
from nonloc_paper.report.verdicts import count_pairs, format_chance, signed
from nonloc_paper.suites.matching_tables import TABLE2_N9
from nonloc_paper.suites.tables import NAMES

FOREST_CAPTION = (
    "Paired differences of the error in points, by number of blocks; left of 0 is better. Dots: single seeds, hollow "
    "where one does not count. Square and line: mean and 95 % interval of those that count, cut at the frame. Diamond: "
    "published; ◂ and ▸ beyond the frame."
)
WORDS = [
    "In a nonlocal block every position of an image looks at every other one. **Original** blocks add a weighted sum "
    "over all positions, **proposed** (diffusive) blocks weighted differences.",
    "The weights of these sums are the **affinity**: the softmax of the **logits**, which are dot products of the "
    "positions, embedded in d channels. Each block computes its **own**, or all blocks of a stage use **one**, as the "
    "paper's text has it for proposed blocks.",
    "**W** = W_Z W_g is the matrix that a block multiplies its sums by. The **start** is the deviation of the initial "
    "values of W_Z, W_g and the embeddings. Larger starts are 0.05, 0.07 and PyTorch's default.",
    "The **baseline** is the network without nonlocal blocks. With 2 **bottlenecks a group** it has the depth and the "
    "channels of the paper's text, and errs more than published. With 3 its error on CIFAR-10 is near the published "
    "one.",
    "Errors are in % of the test images, their differences in points. Brackets are 95 % intervals, and n counts seeds. "
    "A difference *may be chance* where its interval contains 0.",
]
ABOUT_DIFFERENCES = (
    "Mean over the blocks, in points of error, below 0 is better: paired by seed, with its 95 % interval, n. With 3 "
    "bottlenecks a group seeds 1 to 4 count. Published differences are inside or outside the interval in which ours "
    "predict medians of 5 runs. Lines with 6 blocks were asked when Table 1 was known."
)
ABOUT_SPECTRA = (
    "After training from start 0.01 in one place, at rate 0.1 unless a line says otherwise: smallest to largest over "
    "all runs, of sym(W) = (W + Wᵀ)/2. Energy: the sum of the squared eigenvalues, in which the large ones weigh "
    "most. As W has rank 32, of all 64 as many are positive as negative, whatever was learned; of the 32 largest that "
    "need not be so."
)
ABOUT_TABLES = (
    "Test error in %: the median, then the range and the number of seeds that came to their end. Published: the median "
    "of 5 runs; the paper has one number for proposed blocks. Own minus one: mean of the paired differences, its 95 % "
    "interval, n; with 3 bottlenecks a group of seeds 1 to 4. n counts seeds."
)
ABOUT_FORM_BY_AFFINITY = (
    "Diverged: of all runs of ten epochs from larger starts. Errors: mean over the blocks, seed by seed, in %, with "
    "its 95 % interval; with 3 bottlenecks a group of seeds 1 to 4. Own minus one: of the seeds that have both. p: "
    "exact two-sided sign test over pairs of which just one diverged, as if they were independent."
)


def summary_sections(runs: Table1Runs, trained: TrainabilityMap) -> tuple[Section, ...]:
    """Return the results in short, the hypothesis first."""
    matching_place, literal, table2 = PLACES
    tables = {place: errors_table(runs, place.backbone, place.other) for place in PLACES}
    found = mean_differences(runs)
    differences = mean_differences_table(found)
    forest = Picture("forest", forest_figure(runs), FOREST_CAPTION, pdf=True)
    return (
        Section("", (hypothesis_sentence(runs), hypothesis_parts(runs), "The words:", WORDS)),
        Section("What was found, advice first", (advice(runs, trained, found), forest)),
        Section("Against the baseline and the original form", _explained(differences, ABOUT_DIFFERENCES)),
        Section(f"Table 1 with {matching_place.title}", (tables[matching_place],)),
        Section(f"Table 1 with {literal.title}", (tables[literal], ABOUT_TABLES, conditions(runs))),
        Section(f"Table 2 with {table2.title}", (tables[table2] if TABLE2_N9 not in runs.planned else "",)),
        Section("Form by affinity", (form_by_affinity_table(runs, trained), ABOUT_FORM_BY_AFFINITY)),
        Section("Spectra", _explained(spectra_table(runs), ABOUT_SPECTRA)),
    )


def _explained(table: Table, text: str) -> tuple[Table | str, ...]:
    return (table, text) if table else ()


def errors_table(runs: Table1Runs, backbone: str, other: tuple[str, ...] = ()) -> Table:
    """Return a line for each number of blocks: both forms, the proposed one with either affinity."""
    baseline = runs.find(form=None, backbone=backbone, other=other)
    lines = [("baseline", _score(baseline), _published(baseline), "–", "–", "–", "–")] if baseline else []
    for blocks in range(1, 7):
        original, own, one = (
            runs.find(kind, blocks=blocks, backbone=backbone, other=other) for kind in KINDS.values()
        )
        if original or own or one:
            minus = own_minus_one(runs, blocks, backbone, other).format()
            scores = (_score(original), _published(original), _score(own), _score(one), _published(own, one))
            lines.append((str(blocks), *scores, minus))
    _, *proposed = KINDS
    header = ("blocks", "original", "published, original", *proposed, "published, proposed", "own minus one")
    return Table(header, lines)


def _published(*rows: RowRecord | None) -> str:
    return format_score(next(_numbers(rows), None))


def _numbers(rows: Iterable[RowRecord | None]) -> Iterator[float]:
    """The published numbers of these rows, which the paper does not tell apart."""
    return (row.published for row in rows if row is not None and row.published is not None)


def _score(row: RowRecord | None) -> str:
    """Such as "8.13 (7.95 to 8.31, n = 5)", with the number of diverged runs where there are some."""
    if row is None:
        return "–"
    gone = f"{len(row.diverged)} of {len(row.started)} diverged" if row.diverged else ""
    spread = f"{format_range(row)}, " if len(row.scores) > 1 else ""
    known = f"{format_score(row.median)} ({spread}n = {len(row.scores)})" if row.scores else ""
    return "; ".join(filter(None, (known, gone))) or "–"


def form_by_affinity_table(runs: Table1Runs, trained: TrainabilityMap) -> Table:
    """Return the four combinations of form and affinity: diverged runs, and errors; a dash where none was run."""
    lines: list[tuple[str, tuple[str, ...]]] = []
    for compared in by_affinity(trained):
        n, first, second, *alone = count_pairs(compared.ends)
        name = f"{NAMES[compared.first[0]]}, {format_blocks(cell.blocks for cell in compared.cells[0])}"
        counts = (f"{first} of {n}", f"{second} of {n}", format_chance(*alone))
        lines.append((f"diverged, {group_size(N2)}", (name, *counts)))
    endings = start_endings(runs)
    for form, name in NAMES.items():
        kinds = [(form, is_one) for is_one in AFFINITIES]
        ended = [endings.get(kind, {}) for kind in kinds]
        if any(ended):
            name = f"{name}, {format_blocks(n for some in ended for _, n, _ in some)}"
            gone = [f"{sum(some.values())} of {len(some)}" if some else "–" for some in ended]
            chance = format_chance(*count_pairs(start_pairs(runs, *kinds))[-2:]) if all(ended) else "–"
            lines.append((f"diverged, {group_size(N3)}", (name, *gone, chance)))
    for backbone, blocks in ((N2, (2, 3, 4)), (N2, (5, 6)), (N3, (2, 3, 4))):
        for form, name in NAMES.items():
            own, one = (
                [runs.find((form, is_one), blocks=n, backbone=backbone) for n in blocks]
                for is_one in AFFINITIES
            )
            means = [mean_of([Contrast("", ((1.0, row),)) for row in rows]) for rows in (own, one)]
            minus = mean_of([difference(*pair) for pair in zip(own, one, strict=True)])
            if any(mean.is_known for mean in means):
                title = f"error, {group_size(backbone)}"
                label = f"{name}, {blocks[0]} to {blocks[-1]} blocks"
                lines.append((title, (label, *(mean.format() for mean in means), minus.format())))
    return Table.grouped(("stages", *AFFINITIES.values(), "own minus one"), lines)


OWN_MINUS_ONE = "own minus one affinity"
Lines = list[tuple[str, str, Contrast | None]]  # label, colour, what is drawn; None below a title


def forest_lines(runs: Table1Runs, backbone: str) -> Lines:
    """Return the differences of a backbone in the order in which they are drawn, recorded or not."""
    lines: Lines = [(OWN_MINUS_ONE, INK, None)]
    lines += [(str(n), INK, own_minus_one(runs, n, backbone)) for n in BLOCKS]
    lines.append(("mean", INK, primary(runs, backbone)))
    for title, kind, less, blocks in (
        ("original minus baseline", ORIGINAL, None, (1, 2, 3, 4)),
        ("proposed, own affinities, minus baseline", OWN, None, BLOCKS),
        ("proposed, one affinity, minus baseline", ONE, None, BLOCKS),
        ("proposed, own affinities, minus original", OWN, ORIGINAL, COMPARED),
        ("proposed, one affinity, minus original", ONE, ORIGINAL, COMPARED),
    ):
        form, is_one = kind
        colour = SHADES[form][1 if is_one else 0]
        lines.append((title, colour, None))
        for n in blocks:
            pair = [runs.find(one, blocks=n, backbone=backbone) for one in (kind, (form, not is_one))]
            row = pair[0] and replace(pair[0], published=next(_numbers(pair), None))
            lines.append((str(n), colour, difference(row, runs.find(less, blocks=n, backbone=backbone))))
    return lines


def forest_figure(runs: Table1Runs) -> Figure | None:
    """Draw the differences of both backbones side by side; None where none is recorded."""
    panels = {backbone: forest_lines(runs, backbone) for backbone in BACKBONES}
    drawn = [contrast for lines in panels.values() for _, _, contrast in lines if contrast is not None]
    values = [value for contrast in drawn for value in contrast.every.values()]
    if not values:
        return None
    limits = (min(*values, -0.5) - 0.2, max(*values, 0.5) + 0.2)
    with style():
        figure = Figure(figsize=(NARROW, 7.6), layout="constrained")
        for axes, (backbone, lines) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
            axes.axvline(0, color=CHANCE, linewidth=1)
            axes.set(title=group_size(backbone), xlabel="points of error", xlim=limits)
            axes.set(ylim=(0.4 - len(lines), 0.5))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            numbers = {
                -place: label for place, (label, _, contrast) in enumerate(lines) if contrast is not None
            }
            axes.set_yticks(list(numbers), list(numbers.values()))
            axes.yaxis.grid(False)
            axes.set_ylabel("blocks" if backbone == N3 else "")
            axes.tick_params(axis="y", length=0)
            for place, (label, colour, contrast) in enumerate(lines):
                if contrast is not None:
                    _draw(axes, -place, colour, contrast)
                elif backbone == N3:
                    axes.text(limits[0] + 0.03, -place, label, va="center", fontsize=9, color=colour)
        looks = {
            "mean, 95 %": ("s", INK),
            "a seed": ("o", INK),
            "seed 0, seen before": ("o", "none"),
            "published": ("D", "none"),
        }
        handles = [
            Line2D(
                [], [], color=INK, marker=mark, markerfacecolor=face, linestyle="", markersize=5, label=text
            )
            for text, (mark, face) in looks.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1)
    return figure


def _draw(axes: Axes, y: float, colour: str, contrast: Contrast) -> None:
    """Draw every seed, the mean and the interval of those that count, and the published difference."""
    counting, (low, high) = contrast.values, axes.get_xlim()
    for seed, value in contrast.every.items():
        face = colour if seed in counting else "none"
        axes.plot([value], [y - 0.25], "o", color=colour, markerfacecolor=face, markersize=3, alpha=0.7)
    found, published = contrast.interval, contrast.published
    if found is not None:
        axes.plot([found.mean], [y], "s", color=colour, markersize=5)
        if found.n > 1:
            axes.plot([max(found.low, low), min(found.high, high)], [y, y], color=colour, linewidth=1.6)
    if published is None:
        return
    if low <= published <= high:
        axes.plot([published], [y], "D", color=colour, markerfacecolor="none", markersize=6)
    else:
        is_left = published < low
        note = f"◂ {signed(published)} ◇" if is_left else f"◇ {signed(published)} ▸"
        edge, side = (low, "left") if is_left else (high, "right")
        axes.text(edge, y + 0.3 * is_left, note, ha=side, va="center", fontsize=8, color=colour)
