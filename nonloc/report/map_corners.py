"""Form or affinity: the paper's stage differs from the original one in two things, and the map has all four stages."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nonloc.paper.map_cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc.report.figures import WIDTH
from nonloc.report.statistics import sign_test
from nonloc.report.style import style
from nonloc.report.tables import Table
from nonloc.report.trainability import Cell, TrainabilityMap, inits

FORMS = ("original", "diffusive")
EACH, ONE = "an affinity for each block", "one affinity for all blocks"
KNOWN = {("original", EACH): " (the original stage)", ("diffusive", ONE): " (the paper's stage)"}
# The part of the map that has a form with an affinity for each block, and the one that has it with one for all.
PARTS = {"original": (TEN_EPOCHS, SHARED), "diffusive": (RECOMPUTED, TEN_EPOCHS)}

ABOUT = (
    "The paper's stage differs from the original one in two things: it adds differences, and it computes its affinity "
    "once. Here are all four combinations, ten epochs at rate 0.1. A pair is two runs with the same form, number of "
    "blocks, start and seed, and thus the same images in the same order; p is that of an exact sign test, two-sided, "
    "over the pairs of which just one diverged. These runs were planned when the others had been seen, and decide no "
    "sentence of the paper."
)
CAPTION = (
    "Which stages come through ten epochs at the paper's rate. ✕: how many of the seeds diverged; the number below is "
    "the median test error (%) of those that did not. Above: original stages, which add sums; below: the paper's, "
    "which add differences. Left: every block computes an affinity of its own; right: one is computed for all."
)


@dataclass(frozen=True)
class Pairing:
    """Runs of one form with an affinity for each block, beside the same with one for all.

    each, one       the cells that both parts have, in the same order
    n               pairs of runs with the same seed
    each_diverged   of so many pairs the run with an affinity for each block diverged
    one_diverged    of so many the other
    each_alone      of so many the first, and not the other
    one_alone       of so many the other, and not the first
    """

    form: str
    each: tuple[Cell, ...]
    one: tuple[Cell, ...]
    n: int
    each_diverged: int
    one_diverged: int
    each_alone: int
    one_alone: int

    @property
    def p(self) -> float:
        """How often as uneven by chance."""
        return sign_test(self.each_alone, self.one_alone)

    @property
    def p_told(self) -> str:
        """Such as "= 0.0078" or "< 0.001"."""
        return f"= {self.p:.2g}" if self.p >= 0.001 else "< 0.001"

    @property
    def blocks(self) -> list[int]:
        return sorted({cell.blocks for cell in self.each})


def pairings(found: TrainabilityMap) -> list[Pairing]:
    """For each form of which both kinds are recorded."""
    parts = {part.name: cells for part, cells in found.parts}
    paired = []
    for form, names in PARTS.items():
        each, one = (_cells(parts[part.name], form) for part in names)
        places = [place for place in each if place in one]
        if places:
            paired.append(_pairing(form, [each[place] for place in places], [one[place] for place in places]))
    return paired


def corners_table(found: TrainabilityMap) -> Table:
    """Diverged runs by form and affinity, the pairs of which just one diverged, and how likely that is by chance."""
    lines = []
    for pair in pairings(found):
        lines.append(
            (
                f"{pair.form}, {', '.join(map(str, pair.blocks))} blocks",
                f"{pair.each_diverged} of {pair.n}",
                f"{pair.one_diverged} of {pair.n}",
                str(pair.each_alone),
                str(pair.one_alone),
                pair.p_told.removeprefix("= "),
            )
        )
    header = (
        "stage",
        f"diverged: {EACH}",
        f"diverged: {ONE}",
        "pairs: only the first",
        "only the second",
        "p",
    )
    return Table(header, (("", tuple(lines)),))


def corners_sentence(found: TrainabilityMap) -> str:
    """Both forms in a sentence; empty where neither has a pair."""
    told = [
        f"{pair.form}: {pair.each_diverged} of {pair.n} with {EACH}, {pair.one_diverged} of {pair.n} with {ONE} "
        f"(p {pair.p_told})"
        for pair in pairings(found)
    ]
    return "; ".join(told)


def corners_figure(found: TrainabilityMap) -> Figure | None:
    """Start by number of blocks, a line for each form, a column for each kind of affinity; None without a pair."""
    paired = pairings(found)
    if not paired:
        return None
    starts = inits(cell.init for pair in paired for cell in pair.each)
    with style():
        figure = Figure(
            figsize=(WIDTH, 0.5 + (0.75 + 0.42 * len(starts)) * len(paired)), layout="constrained"
        )
        grid = figure.subplots(len(paired), 2, squeeze=False)
        for line, pair in zip(grid, paired, strict=True):
            for axes, cells, name in zip(line, (pair.each, pair.one), (EACH, ONE), strict=True):
                for cell in cells:
                    _square(axes, pair.blocks.index(cell.blocks), starts.index(cell.init), cell)
                axes.set(xlim=(-0.5, len(pair.blocks) - 0.5), ylim=(len(starts) - 0.5, -0.5))
                axes.set_xticks(range(len(pair.blocks)), [f"{number} blocks" for number in pair.blocks])
                axes.set_yticks(range(len(starts)), starts)
                known = KNOWN.get((pair.form, name), "")
                axes.set(title=f"{pair.form}, {name}{known}")
                axes.grid(False)
                axes.spines[:].set_visible(False)
                axes.tick_params(length=0)
    return figure


def _cells(cells: tuple[Cell, ...], form: str) -> dict[tuple[float, str, int], Cell]:
    return {(cell.rate, cell.init, cell.blocks): cell for cell in cells if cell.family == form}


def _pairing(form: str, each: list[Cell], one: list[Cell]) -> Pairing:
    ends = []
    for first, second in zip(each, one, strict=True):
        gone, others = (
            {line["seed"]: line["ending"] == "diverged" for line in cell.runs} for cell in (first, second)
        )
        ends += [(gone[seed], others[seed]) for seed in sorted(gone.keys() & others.keys())]
    return Pairing(
        form,
        tuple(each),
        tuple(one),
        n=len(ends),
        each_diverged=sum(first for first, _ in ends),
        one_diverged=sum(second for _, second in ends),
        each_alone=sum(first and not second for first, second in ends),
        one_alone=sum(second and not first for first, second in ends),
    )


def _square(axes: Axes, column: int, line: int, cell: Cell) -> None:
    gone = len(cell.diverged)
    share = gone / cell.n
    face = colormaps["Greys"](0.1 + 0.7 * share)
    axes.add_patch(Rectangle((column - 0.47, line - 0.45), 0.94, 0.9, facecolor=face, edgecolor="none"))
    told = [f"✕ {gone} of {cell.n}" if gone else "", "" if cell.error is None else f"{cell.error:.1f} %"]
    axes.text(
        column,
        line,
        "\n".join(text for text in told if text),
        ha="center",
        va="center",
        fontsize=8.5,
        color="white" if share > 0.5 else "black",
        linespacing=1.1,
    )
