"""The paper, and the demo, as data: each table row and figure panel -> Recipe and the published number. No torch.

"Nonlocal Neural Networks, Nonlocal Diffusion and Nonlocal Modeling", Tao, Sun, Du and Liu, 2018. The protocol is the
one nearest the text. What the text leaves open is decided once, here, and every decision is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nonloc.networks.spec import StageOptions
from nonloc.training.recipe import Recipe


@dataclass(frozen=True)
class Row:
    """One line of a table: a recipe, to be run with several seeds.

    label      as the table has it
    recipe     with seed 0
    published  the paper's number, the median of 5 runs: validation error in %; None where it has none
    note       what the text does not say about this row, and what was chosen
    group      the heading it stands under
    seeds      how many, where it differs from the suite's
    """

    label: str
    recipe: Recipe
    published: float | None = None
    note: str = ""
    group: str = ""
    seeds: int | None = None


@dataclass(frozen=True)
class Panel:
    """One panel of a figure: the spectrum of one sub-block of a row's network, or a row's training curve.

    kind   "spectrum" or "curve"
    row    the row's label
    block  the sub-block, from 1, of a spectrum
    epoch  after which the spectrum was taken; None is the last
    """

    title: str
    kind: str
    row: str
    block: int | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class Suite:
    """A table or a figure: rows, each to be run with `seeds` seeds (0, 1, …).

    pairs    labels of two rows whose scores the report compares in a sentence, the one of interest first
    notes    what the text leaves open for all rows alike, and what was chosen
    threads  processor threads to run with; None is torch's choice. Small networks gain nothing from several, and
             with one the numbers do not depend on how many cores there are.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    seeds: int
    panels: tuple[Panel, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    threads: int | None = None

    def recipes(self, row: Row) -> list[Recipe]:
        """The row's recipe once for each seed."""
        return [row.recipe.with_(seed=seed) for seed in range(row.seeds or self.seeds)]

    def with_seeds(self, seeds: int) -> Suite:
        """The same suite with so many seeds for every row."""
        if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
            raise ValueError(f"seeds must be a whole number ≥ 1, got {seeds!r}")
        return replace(self, seeds=seeds, rows=tuple(replace(row, seeds=None) for row in self.rows))

    def with_threads(self, threads: int) -> Suite:
        """The same suite, to be run with so many processor threads."""
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ValueError(f"threads must be a whole number ≥ 1, got {threads!r}")
        return replace(self, threads=threads)

    def with_changes(self, changes: Mapping[str, Any]) -> Suite:
        """The same suite with some fields of all recipes changed; `stage` may be a dict of options to change."""
        if "seed" in changes:
            raise ValueError("seed cannot be changed for all rows; seeds says how many there are, from 0")
        rows = (replace(row, recipe=row.recipe.with_(**changes)) for row in self.rows)
        return replace(self, rows=tuple(rows))

    def with_rows(self, names: Sequence[str]) -> Suite:
        """Only the rows that are named: by their number from 1, their label, or a part of label or network."""
        wanted: list[Row] = []
        for name in names:
            wanted.extend(row for row in self._named(name) if row not in wanted)
        return replace(self, rows=tuple(row for row in self.rows if row in wanted))

    def _named(self, name: str) -> list[Row]:
        if name.isdecimal() and 1 <= int(name) <= len(self.rows):
            return [self.rows[int(name) - 1]]
        exact = [row for row in self.rows if name in (row.label, row.recipe.network)]
        found = exact or [row for row in self.rows if name in row.label or name in row.recipe.network]
        if not found or name.isdecimal():
            choices = "; ".join(
                f"{number} {row.label} [{row.recipe.network}]" for number, row in enumerate(self.rows, 1)
            )
            raise ValueError(f"{name!r} is no row of {self.name}; choose a number or a part of: {choices}")
        return found


SPECTRUM_EPOCHS = (36, 82, 125)  # Figure 2

_STAGE = StageOptions(
    affinity="embedded_gaussian",
    scaled=False,
    weight="factored",
    init="normal",
    init_std=0.01,
    batch_norm=False,
)
_CIFAR10 = Recipe(stage=_STAGE, spectrum_epochs=SPECTRUM_EPOCHS)
_CIFAR100 = _CIFAR10.with_(data="cifar100")

_NOTES = (
    "Backbone: 64 channels after residual block 2 mean bottleneck blocks of He's widths, 9n + 2 layers.",
    "Affinity: not stated; embedded Gaussian with separate θ and φ and softmax, not divided by √d, as Wang et al.",
    "W: W_Z W_g of rank C/2 in both forms (Figure 4 shows 32 values).",
    "Initialisation and normalisation of the stage: not stated; all four maps normal with deviation 0.01, with which "
    "both forms train, no batch normalisation after W_Z.",
    "Scale of the pixels: not stated; the per-pixel mean is subtracted, then divided by 64.",
    "Score: last epoch; no Nesterov momentum; weight decay on all parameters; float32.",
)


def _table(base: Recipe, network: str, published: Mapping[str, float]) -> tuple[Row, ...]:
    """The rows "in the same place": blocks right after the second residual block."""
    rows = [Row("baseline", base.with_(network=f"{network}/baseline"), published["baseline"])]
    for key, number in published.items():
        if key != "baseline":
            form, blocks = key.split("-")
            name = "proposed" if form == "diffusive" else "original"
            note = _FOUR if key == "original-4" else ""
            recipe = base.with_(network=f"{network}/{key}@2")
            rows.append(Row(f"{blocks}-block ({name})", recipe, number, note, "The same place"))
    return (replace(rows[0], group="The same place"), *rows[1:])


_FOUR = (
    "The text says that 4 blocks do not converge at rate 0.1 and trains them at 0.01 for Figure 3; which rate the "
    "published number belongs to is not stated. This row has 0.1; figure3 has the run at 0.01."
)
_PLACES = "The places are not stated; after residual blocks 2, 4 and 6."

_TABLE1 = Suite(
    name="table1",
    title="Table 1: validation error of PreResNet-20 on CIFAR-10",
    rows=(
        *_table(
            _CIFAR10,
            "preresnet20",
            {
                "baseline": 8.19,
                "original-2": 7.83,
                "original-3": 8.28,
                "original-4": 15.02,
                "diffusive-2": 7.74,
                "diffusive-3": 7.62,
                "diffusive-4": 7.37,
                "diffusive-5": 7.29,
                "diffusive-6": 7.55,
            },
        ),
        Row(
            "3 blocks in different places (original)",
            _CIFAR10.with_(network="preresnet20/original-1@2,4,6"),
            8.07,
            _PLACES,
            "Different places",
        ),
        Row(
            "3 blocks in different places (proposed)",
            _CIFAR10.with_(network="preresnet20/diffusive-1@2,4,6"),
            7.33,
            _PLACES,
            "Different places",
        ),
    ),
    seeds=5,
    pairs=(
        *((f"{n}-block (proposed)", f"{n}-block (original)") for n in (2, 3, 4)),
        ("3 blocks in different places (proposed)", "3 blocks in different places (original)"),
        ("5-block (proposed)", "baseline"),
    ),
    notes=_NOTES,
)

_TABLE2 = Suite(
    name="table2",
    title="Table 2: validation error of PreResNet-56 on CIFAR-100",
    rows=_table(
        _CIFAR100,
        "preresnet56",
        {
            "baseline": 26.57,
            "original-2": 26.13,
            "original-3": 26.26,
            "original-4": 34.89,
            "diffusive-2": 26.04,
            "diffusive-3": 25.57,
            "diffusive-4": 25.43,
            "diffusive-5": 25.29,
            "diffusive-6": 25.49,
        },
    ),
    seeds=5,
    pairs=(
        *((f"{n}-block (proposed)", f"{n}-block (original)") for n in (2, 3, 4)),
        ("5-block (proposed)", "baseline"),
    ),
    notes=(*_NOTES, "Place in PreResNet-56: not stated; after residual block 2."),
)


def _original(blocks: int) -> Row:
    label = f"{blocks} original block{'s' if blocks > 1 else ''}"
    return Row(label, _CIFAR10.with_(network=f"preresnet20/original-{blocks}@2"))


def _spectra(row: Row, blocks: int) -> tuple[Panel, ...]:
    return tuple(Panel(f"{row.label}, block {n}", "spectrum", row.label, n) for n in range(1, blocks + 1))


_ONE, _TWO, _THREE = (_original(blocks) for blocks in (1, 2, 3))
_SLOW_FOUR = Row(
    "4 original blocks, rate 0.01",
    _CIFAR10.with_(network="preresnet20/original-4@2", learning_rate=0.01),
    note="The text reduces the learning rate by the ratio of 0.1 for this network.",
)
_FOUR_PROPOSED = Row("4 proposed blocks", _CIFAR10.with_(network="preresnet20/diffusive-4@2"))

_FIGURE1 = Suite(
    name="figure1",
    title="Figure 1: spectra of sym(W) after training with 1, 2 and 3 original blocks",
    rows=(_ONE, _TWO, _THREE),
    seeds=1,
    panels=(*_spectra(_ONE, 1), *_spectra(_TWO, 2), *_spectra(_THREE, 3)),
    notes=_NOTES,
)
_FIGURE2 = Suite(
    name="figure2",
    title="Figure 2: the spectrum of sym(W) of 1 original block during training",
    rows=(_ONE,),
    seeds=1,
    panels=tuple(Panel(f"epoch {epoch}", "spectrum", _ONE.label, 1, epoch) for epoch in SPECTRUM_EPOCHS),
    notes=_NOTES,
)
_FIGURE3 = Suite(
    name="figure3",
    title="Figure 3: training curves of 1 to 4 original blocks, and the spectra of 4",
    rows=(_ONE, _TWO, _THREE, _SLOW_FOUR),
    seeds=1,
    panels=(
        *(Panel(row.label, "curve", row.label) for row in (_ONE, _TWO, _THREE, _SLOW_FOUR)),
        *_spectra(_SLOW_FOUR, 4),
    ),
    notes=_NOTES,
)
_FIGURE4 = Suite(
    name="figure4",
    title="Figure 4: spectra of sym(W) after training with 4 proposed blocks",
    rows=(_FOUR_PROPOSED,),
    seeds=1,
    panels=_spectra(_FOUR_PROPOSED, 4),
    notes=_NOTES,
)

_RESTORATION = Recipe(
    network="restorer16/baseline",
    data="motifs",
    stage=_STAGE,
    epochs=10,
    steps_per_epoch=50,
    batch_size=16,
    optimizer="adam",
    learning_rate=0.01,
    schedule="onecycle",
    milestones=(),
    weight_decay=0.0,
    augment=False,
    noise=0.4,
)
_LARGE = _RESTORATION.with_(epochs=6, stage={"init_std": 0.5})
_ORDINARY = "Small start: the maps of the stage begin normal with deviation 0.01"
_DEEP = "Large start: they begin with deviation 0.5"

_DEMO = Suite(
    name="demo",
    title="The demo: removing noise from images that repeat a motif",
    rows=(
        Row("local baseline", _RESTORATION, group=_ORDINARY),
        Row("2 original blocks", _RESTORATION.with_(network="restorer16/original-2@2"), group=_ORDINARY),
        Row("4 diffusive blocks", _RESTORATION.with_(network="restorer16/diffusive-4@2"), group=_ORDINARY),
        Row("4 original, large start", _LARGE.with_(network="restorer16/original-4@2"), group=_DEEP, seeds=2),
        Row(
            "4 diffusive, large start", _LARGE.with_(network="restorer16/diffusive-4@2"), group=_DEEP, seeds=2
        ),
    ),
    seeds=3,
    pairs=(
        ("4 diffusive blocks", "2 original blocks"),
        ("4 diffusive blocks", "local baseline"),
        ("2 original blocks", "local baseline"),
        ("4 diffusive, large start", "4 original, large start"),
    ),
    notes=(
        "The demo is not in the paper: it asks the paper's question of a task that two processor cores can train.",
        "2 original and 4 diffusive blocks are not equally many; the table has the numbers of parameters.",
        "Rows with a small start train for 500 steps, rows with a large one for 300.",
        "The large start is chosen to show the two forms apart; with a small one both train.",
    ),
    threads=1,
)

SUITES: dict[str, Suite] = {
    suite.name: suite for suite in (_DEMO, _TABLE1, _TABLE2, _FIGURE1, _FIGURE2, _FIGURE3, _FIGURE4)
}


def find_suite(name: str) -> Suite:
    """The suite called `name`; a name that is not one lists the choices."""
    if name not in SUITES:
        raise ValueError(f"{name!r} is not a suite; choose one of {', '.join(SUITES)}")
    return SUITES[name]


def arranged_suite(
    name: str,
    *,
    rows: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    seeds: int | None = None,
) -> Suite:
    """The suite called `name` with only some rows, changed recipes, or another number of seeds."""
    suite = find_suite(name)
    if rows:
        suite = suite.with_rows(rows)
    if changes:
        suite = suite.with_changes(changes)
    return suite if seeds is None else suite.with_seeds(seeds)
