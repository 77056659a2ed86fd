"""Suites on the backbones whose baselines match the paper's: n = 3 on CIFAR-10, n = 9 on CIFAR-100. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nonloc_paper.suites.rows import Row, Suite
from nonloc_paper.suites.tables import (
    CIFAR10,
    CIFAR100,
    DIFFERENT_PLACES,
    FRAGILE_STAGE,
    FRAGILE_START,
    NAMES,
    NOTES,
    SAME_PLACE,
    SAME_PLACE_CIFAR100,
    block_label,
)

_N3 = CIFAR10.with_(network="preresnet29/baseline")
_N9 = CIFAR100.with_(network="preresnet83/baseline")
_COUNTED = (
    "3 bottlenecks a group: 20 if layers are counted as 6n + 2, as the public code with this recipe does."
)
OWN = {"share_affinity": False}


def _stages(
    keys: Sequence[str], *, own: bool = False, suffix: str = "", group: str = "", **changes: Any
) -> tuple[Row, ...]:
    """Rows such as "5-block (proposed), own affinities"; without `own` the form's habit: proposed blocks share one."""
    base, published = changes.pop("base", _N3), changes.pop("published", {})
    stage = changes.pop("stage", {}) | (OWN if own else {})
    backbone = base.network.partition("/")[0]
    return tuple(
        Row(
            f"{block_label(key)}{', own affinities' if own else ''}{suffix}",
            base.with_(network=f"{backbone}/{key}@2", stage=stage, **changes),
            published.get(key),
            group=group,
        )
        for key in keys
    )


def _own(blocks: int) -> str:
    return f"{block_label(f'diffusive-{blocks}')}, own affinities"


def _keys(form: str, *blocks: int) -> tuple[str, ...]:
    return tuple(f"{form}-{number}" for number in blocks)


_SAME: dict[str, Any] = {"group": "The same place, 3 bottlenecks a group", "published": SAME_PLACE}
TABLE1_N3 = Suite(
    name="table1-n3",
    title="Table 1 on CIFAR-10 with 3 bottlenecks a group, each proposed row with own affinities and with one",
    rows=(
        Row("baseline", _N3, SAME_PLACE["baseline"]),
        *_stages(_keys("diffusive", 5, 2, 3, 4, 6), own=True, **_SAME),
        *_stages(_keys("diffusive", 5, 2, 3, 4, 6), **_SAME),
        *_stages(_keys("original", 1, 2, 3, 4), **_SAME),
    ),
    seeds=5,
    pairs=tuple((_own(n), block_label(f"diffusive-{n}")) for n in (2, 3, 4, 5, 6)),
    notes=(*NOTES, _COUNTED),
)

CORNERS_N3 = Suite(
    name="corners-n3",
    title="What own affinities gain by: own embeddings, or a fresh state (3 bottlenecks a group, 5 proposed blocks)",
    rows=(
        *_stages(
            ("diffusive-5",), stage={"share_affinity": "embedding"}, suffix=", one embedding of each state"
        ),
        *_stages(("diffusive-5",), stage={"share_affinity": "input"}, suffix=", own embeddings of the input"),
    ),
    seeds=3,
    weighed=(),
    notes=(
        *NOTES,
        _COUNTED,
        "The other two corners, all shared and nothing shared, are rows of `table1-n3`.",
    ),
)

RATE_N3 = Suite(
    name="rate-n3",
    title="Rate 0.01, that of the paper's 4 original blocks in Figure 3 (3 bottlenecks a group)",
    rows=(
        Row("baseline, rate 0.01", _N3.with_(learning_rate=0.01)),
        *_stages(_keys("original", 2, 4), learning_rate=0.01, suffix=", rate 0.01"),
        *_stages(("diffusive-4",), own=True, learning_rate=0.01, suffix=", rate 0.01"),
    ),
    seeds=3,
    weighed=(),
    pairs=tuple(
        (f"{label}, rate 0.01", "baseline, rate 0.01")
        for label in (block_label("original-2"), block_label("original-4"), _own(4))
    ),
    notes=(*NOTES, _COUNTED),
)

_SHORT: dict[str, Any] = {"epochs": 10, "schedule": "constant", "milestones": (), "spectrum_epochs": ()}
STARTS_N3 = Suite(
    name="starts-n3",
    title="Larger starts for ten epochs, as in the map: who diverges (3 bottlenecks a group)",
    rows=tuple(
        row
        for start, stage in ((FRAGILE_START, FRAGILE_STAGE), ("PyTorch's start", {"init": "torch"}))
        for keys, own in (
            (_keys("original", 2, 3, 4), False),
            (_keys("diffusive", 2, 4, 6), True),
            (_keys("diffusive", 2, 4, 6), False),
        )
        for row in _stages(keys, own=own, stage=stage, suffix=f", {start}", group=start, **_SHORT)
    ),
    seeds=3,
    weighed=(),
    notes=(*NOTES, _COUNTED, "The rate stays at 0.1 for all ten epochs."),
)

_SCALED: dict[str, Any] = {"stage": {"scaled": True}, "suffix": ", logits / √d"}
SCALED_N3 = Suite(
    name="scaled-n3",
    title="Logits divided by √d (3 bottlenecks a group)",
    rows=(
        *_stages(("original-4",), **_SCALED),
        *_stages(("diffusive-5",), own=True, **_SCALED),
        *_stages(("diffusive-5",), **_SCALED),
    ),
    seeds=3,
    weighed=(),
    pairs=((f"{_own(5)}, logits / √d", f"{block_label('diffusive-5')}, logits / √d"),),
    notes=(*NOTES, _COUNTED),
)

PLACES_N3 = Suite(
    name="places-n3",
    title="One block after each of the residual blocks 2, 5 and 8, with logits divided by √d (3 bottlenecks a group)",
    rows=tuple(
        Row(
            f"3 blocks in different places ({NAMES[form]}), logits / √d",
            _N3.with_(network=f"preresnet29/{form}-1@2,5,8", stage={"scaled": True}),
            published,
            "The places are not stated; without √d runs of both forms diverge with 2 bottlenecks a group.",
        )
        for form, published in DIFFERENT_PLACES.items()
    ),
    seeds=3,
    weighed=(),
    pairs=(
        (
            "3 blocks in different places (proposed), logits / √d",
            "3 blocks in different places (original), logits / √d",
        ),
    ),
    notes=(*NOTES, _COUNTED),
)

_ON_N9: dict[str, Any] = {
    "base": _N9,
    "group": "The same place, 9 bottlenecks a group",
    "published": SAME_PLACE_CIFAR100,
}
TABLE2_N9 = Suite(
    name="table2-n9",
    title="Table 2 on CIFAR-100 with 9 bottlenecks a group in He's layout",
    rows=(
        Row("baseline", _N9, SAME_PLACE_CIFAR100["baseline"]),
        *_stages(_keys("original", 2, 4), **_ON_N9),
        *_stages(_keys("diffusive", 5, 3, 4), own=True, **_ON_N9),
        *_stages(("original-3",), **_ON_N9),
        *_stages(_keys("diffusive", 2, 6), own=True, **_ON_N9),
        *_stages(_keys("diffusive", 5, 3), **_ON_N9),
    ),
    seeds=3,
    weighed=("baseline", block_label("original-4"), _own(5)),
    pairs=(
        *((_own(n), block_label(f"original-{n}")) for n in (2, 3, 4)),
        *((_own(n), block_label(f"diffusive-{n}")) for n in (3, 5)),
    ),
    notes=(*NOTES, "9 bottlenecks a group: 56 if layers are counted as 6n + 2."),
)

MATCHING = (TABLE1_N3, CORNERS_N3, RATE_N3, STARTS_N3, SCALED_N3, PLACES_N3, TABLE2_N9)
