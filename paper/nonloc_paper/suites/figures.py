"""Figures 1 to 4. No torch."""

from __future__ import annotations

from nonloc_paper.suites.rows import Panel, Row, Suite
from nonloc_paper.suites.stated import CIFAR10, NOTES, SPECTRUM_EPOCHS


def _original(blocks: int) -> Row:
    label = f"{blocks} original block{'s' if blocks > 1 else ''}"
    return Row(label, CIFAR10.with_(network=f"preresnet20/original-{blocks}@2"))


def _spectra(row: Row, blocks: int) -> tuple[Panel, ...]:
    return tuple(Panel(f"{row.label}, block {n}", "spectrum", row.label, n) for n in range(1, blocks + 1))


ONE, _TWO, _THREE = (_original(blocks) for blocks in (1, 2, 3))
SLOW_FOUR = Row(
    "4 original blocks, rate 0.01",
    CIFAR10.with_(network="preresnet20/original-4@2", learning_rate=0.01),
    note="The text reduces the learning rate by the ratio of 0.1 for this network.",
)
_FOUR_PROPOSED = Row("4 proposed blocks", CIFAR10.with_(network="preresnet20/diffusive-4@2"))

FIGURE1 = Suite(
    name="figure1",
    title="Figure 1: spectra of sym(W) after training with 1, 2 and 3 original blocks",
    rows=(ONE, _TWO, _THREE),
    seeds=1,
    panels=(*_spectra(ONE, 1), *_spectra(_TWO, 2), *_spectra(_THREE, 3)),
    notes=NOTES,
)
FIGURE2 = Suite(
    name="figure2",
    title="Figure 2: the spectrum of sym(W) of 1 original block during training",
    rows=(ONE,),
    seeds=1,
    panels=tuple(Panel(f"epoch {epoch}", "spectrum", ONE.label, 1, epoch) for epoch in SPECTRUM_EPOCHS),
    notes=NOTES,
)
FIGURE3 = Suite(
    name="figure3",
    title="Figure 3: training curves of 1 to 4 original blocks, and the spectra of 4",
    rows=(ONE, _TWO, _THREE, SLOW_FOUR),
    seeds=1,
    panels=(
        *(Panel(row.label, "curve", row.label) for row in (ONE, _TWO, _THREE, SLOW_FOUR)),
        *_spectra(SLOW_FOUR, 4),
    ),
    notes=NOTES,
)
FIGURE4 = Suite(
    name="figure4",
    title="Figure 4: spectra of sym(W) after training with 4 proposed blocks",
    rows=(_FOUR_PROPOSED,),
    seeds=1,
    panels=_spectra(_FOUR_PROPOSED, 4),
    notes=NOTES,
)
