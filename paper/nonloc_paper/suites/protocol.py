"""The protocol suite: runs that settle what the text leaves open, before the table is run. No torch."""

from __future__ import annotations

from typing import Any

from nonloc_paper.suites.rows import Row, Suite
from nonloc_paper.suites.stated import CIFAR10, NOTES
from nonloc_paper.suites.tables import SAME_PLACE

SHORT = CIFAR10.with_(epochs=20, milestones=(10, 15), spectrum_epochs=())

_BACKBONES = {
    "preresnet20": "He's widths, n = 2: what the text says literally",
    "preresnet29": "He's widths, n = 3: 20 if layers are counted as 6n + 2",
    "preresnet20-keras": "the widths of the Keras example, n = 2",
    "preresnet20-basic": "two layers a block, n = 3: 16 channels after residual block 2, where the text has 64",
}
_NEAREST = ("preresnet29", "preresnet20-basic")
"""The two whose first two seeds came nearest the paper's 8.19 %; they get five."""
_FACTORS: dict[str, dict[str, Any]] = {
    "default": {},
    "pixel_scale std": {"pixel_scale": "std"},
    "pixel_scale 1": {"pixel_scale": 1.0},
    "init_std 0.03": {"stage": {"init_std": 0.03}},
    "init_std 0.05": {"stage": {"init_std": 0.05}},
    "batch_norm": {"stage": {"batch_norm": True}},
    "scaled": {"stage": {"scaled": True}},
    "shared_embedding": {"stage": {"shared_embedding": True}},
}
_NETWORKS = ("diffusive-4", "original-3")

PROTOCOL = Suite(
    name="protocol",
    title="The protocol: backbones, and one factor of the stage at a time",
    rows=(
        *(
            Row(
                f"{network} baseline",
                CIFAR10.with_(network=f"{network}/baseline"),
                SAME_PLACE["baseline"],
                note,
                "Backbones, 164 epochs",
                seeds=5 if network in _NEAREST else None,
            )
            for network, note in _BACKBONES.items()
        ),
        *(
            Row(
                f"{key}, {factor}",
                SHORT.with_(network=f"preresnet20/{key}@2", **changes),
                group=f"preresnet20/{key}@2, 20 epochs, one factor changed",
            )
            for key in _NETWORKS
            for factor, changes in _FACTORS.items()
        ),
    ),
    seeds=2,
    pairs=tuple(
        (f"{key}, {factor}", f"{key}, default") for key in _NETWORKS for factor in list(_FACTORS)[1:]
    ),
    notes=(
        *NOTES,
        "Rows of 20 epochs divide the rate by 10 after epochs 10 and 15; `default` is the protocol of the tables, and "
        "each other row departs from it in the one thing that it is named after.",
    ),
)
