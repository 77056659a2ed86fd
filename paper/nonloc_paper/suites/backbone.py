"""The paper on the backbone whose baseline matches: baselines of both layouts, and Table 1 with n = 3. No torch."""

from __future__ import annotations

from nonloc_paper.suites.rows import Row, Suite
from nonloc_paper.suites.stated import CIFAR10, CIFAR100, NOTES
from nonloc_paper.suites.tables import SAME_PLACE, SAME_PLACE_CIFAR100, block_label

_PUBLIC = "stride in the 3×3 convolution, shortcut from x: the layout of the public PyTorch code"
_HE = "stride in the first 1×1 convolution, shortcut from its activation: He's layout"

BACKBONES = Suite(
    name="backbones",
    title="Baselines with n = 3 and n = 9 in the two layouts of the residual block",
    rows=(
        Row(
            "CIFAR-10, n = 3, public layout",
            CIFAR10.with_(network="preresnet29-public/baseline"),
            SAME_PLACE["baseline"],
            _PUBLIC,
            "CIFAR-10",
        ),
        Row(
            "CIFAR-100, n = 9, He's layout",
            CIFAR100.with_(network="preresnet83/baseline"),
            SAME_PLACE_CIFAR100["baseline"],
            _HE,
            "CIFAR-100",
        ),
        Row(
            "CIFAR-100, n = 9, public layout",
            CIFAR100.with_(network="preresnet83-public/baseline"),
            SAME_PLACE_CIFAR100["baseline"],
            _PUBLIC,
            "CIFAR-100",
        ),
    ),
    seeds=2,
    notes=NOTES,
)


def _row(key: str, *, own_affinities: bool = False) -> Row:
    """A row of Table 1 with n = 3; without `own_affinities` the form's habit: proposed blocks share one affinity."""
    return Row(
        f"{block_label(key)}{', own affinities' if own_affinities else ''}",
        CIFAR10.with_(
            network=f"preresnet29/{key}@2", stage={"share_affinity": False} if own_affinities else {}
        ),
        SAME_PLACE.get(key),
        group="The same place, n = 3",
    )


TABLE1_N3 = Suite(
    name="table1-n3",
    title="Table 1 on CIFAR-10 with n = 3, each proposed row with own affinities and with one",
    rows=(
        Row("baseline", CIFAR10.with_(network="preresnet29/baseline"), SAME_PLACE["baseline"]),
        *(_row(f"diffusive-{blocks}", own_affinities=True) for blocks in (5, 2, 3, 4, 6)),
        *(_row(f"diffusive-{blocks}") for blocks in (5, 2, 3, 4, 6)),
        *(_row(f"original-{blocks}") for blocks in (1, 2, 3, 4)),
    ),
    seeds=5,
    pairs=tuple(
        (f"{block_label(f'diffusive-{n}')}, own affinities", block_label(f"diffusive-{n}"))
        for n in (2, 3, 4, 5, 6)
    ),
    notes=(
        *NOTES,
        "n = 3 bottlenecks a group: 20 if layers are counted as 6n + 2, as the public code with this recipe does.",
    ),
)
