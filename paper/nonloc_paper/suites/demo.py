"""The demo: the paper's question, asked of a task that two processor cores can train. No torch."""

from __future__ import annotations

from nonloc_paper.suites.rows import Row, Suite
from nonloc_paper.suites.tables import STAGE
from nonloc_paper.training.recipe import Recipe

_RESTORATION = Recipe(
    network="restorer16/baseline",
    data="motifs",
    stage=STAGE,
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
_OTHER = "Large start, with the affinity of the other form: one for all blocks, or each block its own"

# A first look, in half a minute: one seed of two rows, and half of the steps.
QUICK_ROWS = ("local baseline", "4 diffusive blocks")
QUICK_EPOCHS = 5

DEMO = Suite(
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
        Row(
            "4 original, large start, one affinity",
            _LARGE.with_(network="restorer16/original-4@2", stage={"share_affinity": True}),
            group=_OTHER,
            seeds=2,
            former="4 original, large start, shared affinity",
        ),
        Row(
            "4 diffusive, large start, own affinities",
            _LARGE.with_(network="restorer16/diffusive-4@2", stage={"share_affinity": False}),
            group=_OTHER,
            seeds=2,
            former="4 diffusive, large start, recomputed affinity",
        ),
    ),
    seeds=3,
    pairs=(
        ("4 diffusive blocks", "2 original blocks"),
        ("4 diffusive blocks", "local baseline"),
        ("2 original blocks", "local baseline"),
        ("4 diffusive, large start", "4 original, large start"),
        ("4 original, large start, one affinity", "4 original, large start"),
        ("4 diffusive, large start, own affinities", "4 diffusive, large start"),
    ),
    notes=(
        "The demo is not in the paper: it asks the paper's question of a task that two processor cores can train.",
        "Rows with more blocks have more parameters; the table has their numbers.",
        "Rows with a small start train for 500 steps, rows with a large one for 300.",
        "The large start is chosen to show the two forms apart; with a small one both train.",
        "The forms differ in two things, differences and one affinity for all blocks; the last two rows have one "
        "of each.",
    ),
    threads=1,
)
