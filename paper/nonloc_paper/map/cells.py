"""The trainability map as data: which rate, which initialisation, how many blocks of which form. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nonloc._checks import shown
from nonloc_paper.suites.tables import CIFAR10
from nonloc_paper.training.recipe import Recipe

RATES = (0.1, 0.03, 0.01)
DEVIATIONS = (0.01, 0.03, 0.05, 0.07, 0.1)
INITS: dict[str, dict[str, Any]] = {
    **{f"normal {std}": {"init": "normal", "init_std": std} for std in DEVIATIONS},
    "torch": {"init": "torch", "init_std": None},
    "fan_in": {"init": "fan_in", "init_std": None},
    "zero": {"init": "zero", "init_std": None},
    "zero, batch norm": {"init": "zero", "init_std": None, "batch_norm": True},
}


@dataclass(frozen=True)
class MapCell:
    """One square of the map.

    init    a key of INITS
    form    "original", "diffusive", or "stable": diffusive with a W that cannot make a signal grow
    blocks  after residual block 2
    """

    rate: float
    init: str
    form: str
    blocks: int

    @property
    def name(self) -> str:
        """Such as "rate 0.1, normal 0.05, original 4"; what the tables know it by."""
        return f"rate {self.rate:g}, {self.init}, {self.form} {self.blocks}"

    def recipe(self, base: Recipe, seed: int) -> Recipe:
        """`base` with the network, rate and initialisation of this cell."""
        form = "original" if self.form == "original" else "diffusive"
        weight = {"weight": "stable"} if self.form == "stable" else {}
        return base.with_(
            network=f"preresnet20/{form}-{self.blocks}@2",
            learning_rate=self.rate,
            stage=INITS[self.init] | weight,
            seed=seed,
        )

    def to_dict(self) -> dict[str, Any]:
        return {"cell": self.name, **asdict(self)}


@dataclass(frozen=True)
class MapPart:
    """One part of the map, one table.

    name    of the table's file
    base    the recipe of all cells but for what the cell says; at a constant rate
    change  what is changed, in words that follow "with"
    sign    the same in a few characters, for figures
    """

    name: str
    title: str
    base: Recipe
    cells: tuple[MapCell, ...]
    seeds: int
    change: str = ""
    sign: str = ""

    def runs(self) -> list[tuple[MapCell, int]]:
        """(cell, seed), seed by seed: what an interruption cuts off is then a seed, not a corner of the map."""
        return [(cell, seed) for seed in range(self.seeds) for cell in self.cells]


_BASE = CIFAR10.with_(schedule="constant", milestones=(), spectrum_epochs=())
_FORMS = {"original": range(1, 5), "diffusive": range(1, 7)}


def _late_cells(**numbers: tuple[int, ...]) -> tuple[MapCell, ...]:
    """At the paper's rate, with starts from calm to fragile: the forms, each with its numbers of blocks."""
    return tuple(
        MapCell(0.1, init, form, blocks)
        for init in ("normal 0.05", "normal 0.07", "torch")
        for form, those in numbers.items()
        for blocks in those
    )


ONE_EPOCH = MapPart(
    name="one_epoch",
    title="One epoch of every rate, initialisation and number of blocks",
    base=_BASE.with_(epochs=1),
    cells=tuple(
        MapCell(rate, init, form, blocks)
        for rate in RATES
        for init in INITS
        for form, numbers in _FORMS.items()
        for blocks in numbers
    ),
    seeds=2,
)
TEN_EPOCHS = MapPart(
    name="ten_epochs",
    title="Ten epochs at rate 0.1, because divergence can come late and by chance",
    base=_BASE.with_(epochs=10),
    cells=_late_cells(original=(2, 3, 4), diffusive=(2, 4, 5, 6), stable=(4, 12)),
    seeds=3,
)


def _changed(name: str, stage: dict[str, Any], change: str, sign: str, **numbers: tuple[int, ...]) -> MapPart:
    """Cells of the ten epochs with something changed in their stages."""
    only = f", {next(iter(numbers))} stages only" if len(numbers) == 1 else ""
    return MapPart(
        name=f"ten_epochs_{name}",
        title=f"The same with {change}{only}",
        base=TEN_EPOCHS.base.with_(stage=stage),
        cells=_late_cells(**numbers),
        seeds=TEN_EPOCHS.seeds,
        change=change,
        sign=sign,
    )


# Two other kernels, added when runs above had diverged with growing logits.
SCALED = _changed(
    "scaled",
    {"scaled": True},
    "logits divided by √d",
    "1/√d",
    original=(2, 3, 4),
    diffusive=(6,),
    stable=(4, 12),
)
HEAT = _changed("heat", {"affinity": "heat"}, "the heat kernel", "heat", stable=(4, 12))
# The paper's stage differs from the original one in two things: differences, and an affinity that is computed once.
SHARED = _changed("shared", {"share_affinity": True}, "one affinity", "one ω", original=(2, 3, 4))
RECOMPUTED = _changed("recomputed", {"share_affinity": False}, "own affinities", "own ω", diffusive=(2, 4, 6))
# Whether divided logits are enough for the stages that diverged first.
RECOMPUTED_SCALED = _changed(
    "recomputed_scaled",
    {"share_affinity": False, "scaled": True},
    "own affinities and logits divided by √d",
    "own ω, 1/√d",
    diffusive=(6,),
)
PARTS: dict[str, MapPart] = {
    part.name: part for part in (ONE_EPOCH, TEN_EPOCHS, SCALED, HEAT, SHARED, RECOMPUTED, RECOMPUTED_SCALED)
}


def find_part(name: str) -> MapPart:
    """Return the part called `name`; an unknown name lists the choices."""
    if name.replace("-", "_") not in PARTS:
        raise ValueError(f"{shown(name)} is no part of the map; choose one of {', '.join(PARTS)}")
    return PARTS[name.replace("-", "_")]
