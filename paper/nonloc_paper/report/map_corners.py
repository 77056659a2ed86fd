"""Form or affinity: the paper's stage differs from the original one in two things, and the map has all four stages."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nonloc.nn.options import FORMS
from nonloc.plots import style
from nonloc_paper.map.cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc_paper.report.figures import WIDTH
from nonloc_paper.report.map_figures import frame_squares
from nonloc_paper.report.statistics import sign_test
from nonloc_paper.report.tables import Table
from nonloc_paper.report.trainability import Cell, TrainabilityMap, blocks_told, inits

EACH, ONE = "an affinity for each block", "one affinity for all blocks"
AFFINITIES = (EACH, ONE)
# A form and an affinity, and the part of the map that has them.
PARTS = {
    ("original", EACH): TEN_EPOCHS,
    ("original", ONE): SHARED,
    ("diffusive", EACH): RECOMPUTED,
    ("diffusive", ONE): TEN_EPOCHS,
}
KNOWN = {("original", EACH): " (the original stage)", ("diffusive", ONE): " (the paper's stage)"}

ABOUT = (
    "The paper's stage differs from the original one in two things: it adds differences, and it computes its affinity "
    "once. Here are all four combinations, ten epochs at rate 0.1. A pair is two runs with the same number of blocks, "
    "kind of start and seed, and thus the same backbone at first, and the same images in the same order. p is that of "
    "an exact sign test, two-sided, over the pairs of which just one diverged; it takes pairs for independent, though "
    "the same three seeds are in all cells. A block with an affinity of its own has θ and φ of its own, too. These "
    "runs were planned when the others had been seen, and decide no sentence of the paper."
)
CAPTION = (
    "Which stages come through ten epochs at the paper's rate. ✕: how many of the seeds diverged; the number below is "
    "the median test error (%) of those that did not. Original stages add sums, diffusive ones differences. Left: "
    "every block computes an affinity of its own; right: one is computed for all. The numbers of blocks are those "
    "that were run, and not the same for both forms."
)

Corner = tuple[str, str]
Place = tuple[float, str, int]


@dataclass(frozen=True)
class Comparison:
    """Two of the four stages in the cells that both have, run by run.

    first, second      (form, affinity) of each
    cells              of the first, of the second, in the same order
    n                  pairs of runs with the same cell and seed
    first_gone         of so many pairs the first diverged; second_gone: the second
    only_first         of so many pairs the first alone diverged; only_second: the second alone
    """

    first: Corner
    second: Corner
    cells: tuple[tuple[Cell, ...], tuple[Cell, ...]]
    n: int
    first_gone: int
    second_gone: int
    only_first: int
    only_second: int

    @property
    def p(self) -> str:
        """Of the sign test, such as "= 0.0078" or "< 0.001"."""
        value = sign_test(self.only_first, self.only_second)
        return f"= {value:.2g}" if value >= 0.001 else "< 0.001"

    @property
    def blocks(self) -> list[int]:
        return sorted({cell.blocks for cell in self.cells[0]})


def compare(found: TrainabilityMap, first: Corner, second: Corner) -> Comparison | None:
    """None where no cell and seed of both is recorded."""
    one, other = _corner(found, first), _corner(found, second)
    places = [place for place in one if place in other]
    ends = []
    for place in places:
        gone, others = (
            {line["seed"]: line["ending"] == "diverged" for line in cells[place].runs}
            for cells in (one, other)
        )
        ends += [(gone[seed], others[seed]) for seed in sorted(gone.keys() & others.keys())]
    if not ends:
        return None
    return Comparison(
        first,
        second,
        (tuple(one[place] for place in places), tuple(other[place] for place in places)),
        n=len(ends),
        first_gone=sum(a for a, _ in ends),
        second_gone=sum(b for _, b in ends),
        only_first=sum(a and not b for a, b in ends),
        only_second=sum(b and not a for a, b in ends),
    )


def by_affinity(found: TrainabilityMap) -> list[Comparison]:
    """Either affinity in each form."""
    made = [compare(found, (form, EACH), (form, ONE)) for form in FORMS]
    return [one for one in made if one is not None]


def by_form(found: TrainabilityMap) -> list[Comparison]:
    """Either form with each affinity."""
    made = [compare(found, (FORMS[0], affinity), (FORMS[1], affinity)) for affinity in AFFINITIES]
    return [one for one in made if one is not None]


def corners_table(found: TrainabilityMap) -> Table:
    """Diverged runs by affinity in each form and by form with each affinity, and how likely that is by chance."""
    groups = (
        (f"first: {EACH}; second: {ONE}", [(one.first[0], one) for one in by_affinity(found)]),
        (f"first: {FORMS[0]}; second: {FORMS[1]}", [(one.first[1], one) for one in by_form(found)]),
    )
    header = ("stages", "first diverged", "second diverged", "only the first", "only the second", "p")
    return Table(
        header, tuple((title, tuple(_line(name, one) for name, one in lines)) for title, lines in groups)
    )


def corners_sentence(found: TrainabilityMap) -> str:
    """Either affinity in each form, in a sentence; empty where there is no pair."""
    told = [
        f"{one.first[0]} stages, {blocks_told(one.cells[0])}: {one.first_gone} of {one.n} with {EACH}, "
        f"{one.second_gone} of {one.n} with {ONE} (p {one.p})"
        for one in by_affinity(found)
    ]
    return "; ".join(told)


def corners_figure(found: TrainabilityMap) -> Figure | None:
    """Start by number of blocks, a line for each form, a column for each affinity; None without a pair."""
    shown = by_affinity(found)
    if not shown:
        return None
    starts = inits(cell.init for one in shown for cell in one.cells[0])
    with style():
        figure = Figure(figsize=(WIDTH, 0.5 + (0.75 + 0.42 * len(starts)) * len(shown)), layout="constrained")
        grid = figure.subplots(len(shown), 2, squeeze=False)
        for line, one in zip(grid, shown, strict=True):
            for axes, corner, cells in zip(line, (one.first, one.second), one.cells, strict=True):
                for cell in cells:
                    _square(axes, one.blocks.index(cell.blocks), starts.index(cell.init), cell)
                frame_squares(axes, [f"{number} blocks" for number in one.blocks], starts)
                axes.set(title=f"{', '.join(corner)}{KNOWN.get(corner, '')}")
    return figure


def _corner(found: TrainabilityMap, corner: Corner) -> dict[Place, Cell]:
    form, _ = corner
    parts = {part.name: cells for part, cells in found.parts}
    return {
        (cell.rate, cell.init, cell.blocks): cell for cell in parts[PARTS[corner].name] if cell.form == form
    }


def _line(name: str, one: Comparison) -> tuple[str, ...]:
    return (
        f"{name}, {blocks_told(one.cells[0])}",
        f"{one.first_gone} of {one.n}",
        f"{one.second_gone} of {one.n}",
        str(one.only_first),
        str(one.only_second),
        one.p.removeprefix("= "),
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
