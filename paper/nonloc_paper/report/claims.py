"""The sentences of the paper about its experiments, each with the quantity and the rule that decide it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nonloc_paper.report import evidence
from nonloc_paper.report.evidence import Changes
from nonloc_paper.report.kept import DIVIDED, Kept
from nonloc_paper.report.map_evidence import deeper_parts, initialisation_parts, small_weights_parts
from nonloc_paper.report.tables import Table
from nonloc_paper.report.trainability import TrainabilityMap
from nonloc_paper.report.verdicts import Part, Verdict, settle

PARTS = Callable[[Kept, TrainabilityMap, Changes], Sequence[Part]]
SIDE = "95 % interval of the paired mean on the claimed side of 0"
SIGNS = (
    "a run agrees if that share of the energy of its W together is above the band of random weights, and the sign of "
    "the eigenvalue of largest magnitude is the claimed one in more than half of its W; a row if all runs do (n ≥ 2)"
)


@dataclass(frozen=True)
class Claim:
    """One sentence.

    quote     some of its words
    where     the table, figure or section
    quantity  what is measured
    rule      when it counts as reproduced
    parts     measures it, at the default protocol with some changes
    varies    what it depends on if some of its parts hold and others do not
    source    what decides it, where that is not runs of the table, which have a start and a backbone
    beside    measured to read the others by; decides nothing
    remark    what a reader of the verdict alone should know
    short     the same in a few words, for the table of all verdicts
    """

    key: str
    quote: str
    where: str
    quantity: str
    rule: str
    parts: PARTS
    varies: str = "the number of blocks"
    source: str = ""
    beside: PARTS | None = None
    remark: str = ""
    short: str = ""


def _original(blocks: int, **more: Any) -> dict[str, Any]:
    return {"form": "original", "blocks": blocks, **more}


def _proposed(blocks: int, **more: Any) -> dict[str, Any]:
    return {"form": "diffusive", "blocks": blocks, **more}


_SLOW = _original(4, rate=0.01)
_BASELINE: dict[str, Any] = {"form": None}
_PLACES = {"places": (2, 4, 6)}
_RATES = (
    "As in the paper, the rates compared are not the same, and a lower one is slower by itself. Beside it stands what "
    "4 blocks do at the rate of the others."
)
_RATES_SHORT = "Rate 0.01 against 0.1, as in the paper; at one rate: below"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "negative",
        "most of the eigenvalues are negative, especially the first several with the greatest magnitudes",
        "Figure 1",
        "negative share of the energy of sym(W) after training, and the sign of λ₁; 1, 2, 3 original blocks",
        SIGNS,
        lambda kept, _, changes: [evidence.sign_part(kept, _original(n), -1, changes) for n in (1, 2, 3)],
    ),
    Claim(
        "along",
        "Similar observations can be made along the training process",
        "Figure 2",
        "the same for 1 original block after epochs 36, 82 and 125",
        SIGNS,
        lambda kept, _, changes: [
            evidence.sign_part(kept, _original(1), -1, changes, epoch) for epoch in (36, 82, 125)
        ],
        "the epoch",
    ),
    Claim(
        "damped",
        "the features tend to be damped out",
        "Section 3.1",
        "log of the features' norm after the stage over that before it; 1, 2, 3 original blocks",
        "95 % interval of the mean over runs below 0; level within a factor 1.02",
        lambda kept, _, changes: [evidence.damping_part(kept, _original(n), changes) for n in (1, 2, 3)],
    ),
    Claim(
        "four",
        "when adding 4 blocks, it does not converge after 164 epochs",
        "Section 3.1",
        "runs of 4 original blocks at rate 0.1 that diverge or end with an error of 11.65 % or more (halfway between "
        "the paper's 8.28 and 15.02)",
        "all runs do (n ≥ 2)",
        lambda kept, _, changes: [evidence.failure_part(kept, _original(4), changes)],
    ),
    Claim(
        "mitigate",
        "reducing the learning rate or increasing the learning epochs will mitigate the convergence issue",
        "Section 3.1",
        "the same at rates 0.1 and 0.01 (more epochs are not tried)",
        "all runs fail at 0.1 and none at 0.01; undecided where none fails at 0.1",
        lambda kept, _, changes: [evidence.mitigation_part(kept, changes)],
    ),
    Claim(
        "slowly",
        "the training loss decreases more slowly than the fewer blocks cases",
        "Section 3.1",
        "mean training loss up to the first milestone: 4 original blocks at rate 0.01 over 1, 2, 3 at 0.1, log ratio",
        f"{SIDE} (above); level within a factor 1.02",
        lambda kept, _, changes: [
            evidence.ratio_part(kept, _SLOW, _original(n), 1, changes, evidence.early_loss) for n in (1, 2, 3)
        ],
        beside=lambda kept, _, changes: [
            evidence.ratio_part(kept, _original(4), _original(n), 1, changes, evidence.early_loss)
            for n in (1, 2, 3)
        ],
        remark=_RATES,
        short=_RATES_SHORT,
    ),
    Claim(
        "larger",
        "the training loss for the 4-block network is much larger than the others",
        "Figure 3a",
        "last training loss: 4 original blocks at rate 0.01 over 1, 2 and 3 at 0.1, log ratio less log 2",
        f"{SIDE} (above): more than twice as large",
        lambda kept, _, changes: [
            evidence.ratio_part(kept, _SLOW, _original(n), 1, changes, evidence.last_loss, least=2.0)
            for n in (1, 2, 3)
        ],
        beside=lambda kept, _, changes: [
            evidence.ratio_part(kept, _original(4), _original(n), 1, changes, evidence.last_loss, least=2.0)
            for n in (1, 2, 3)
        ],
        remark=_RATES,
        short=_RATES_SHORT,
    ),
    Claim(
        "blowup",
        "some of the positive eigenvalues have large magnitudes",
        "Figure 3b",
        "the eigenvalue of largest magnitude of each W; 4 original blocks at rate 0.01",
        "in every run it is positive, and above the band of random weights, for at least one W (n ≥ 2)",
        lambda kept, _, changes: [evidence.some_positive_part(kept, _SLOW, changes)],
    ),
    Claim(
        "worse",
        "the training becomes more difficult and thus the validation performs worse",
        "Table 1",
        "error of 3 less 2, and of 4 less 3 original blocks",
        f"{SIDE} (above); level within 0.2 points",
        lambda kept, _, changes: [
            evidence.error_part(kept, _original(n), _original(n - 1), 1, changes) for n in (3, 4)
        ],
    ),
    Claim(
        "robust",
        "the proposed nonlocal network is more robust to the number of blocks",
        "Table 1",
        "range of the error over 2, 3 and 4 blocks, seed by seed, proposed less original",
        f"{SIDE} (below); level within 0.2 points",
        lambda kept, _, changes: [evidence.spread_part(kept, changes)],
    ),
    Claim(
        "better",
        "the proposed model consistently performs better than the original one",
        "Table 1",
        "error of the proposed less that of the original form with 2, 3 and 4 blocks",
        f"{SIDE} (below) for all three; level within 0.2 points",
        lambda kept, _, changes: [
            evidence.error_part(kept, _proposed(n), _original(n), -1, changes) for n in (2, 3, 4)
        ],
    ),
    Claim(
        "cost",
        "the proposed model also reduces the computational cost",
        "Section 3.3",
        "time of a training step alone on a device, proposed over original form with 2, 3 and 4 blocks, log ratio over "
        "rounds in turns (`benchmarks forms`): by a plain loop, as in the paper, and by the library's captured step",
        "95 % interval of the mean over rounds below 0 for all three, both ways; level within a factor 1.02",
        lambda kept, _, __: evidence.cost_parts(kept),
        "how a step is computed",
        source="the bench",
    ),
    Claim(
        "positive",
        "most of the eigenvalues are positive",
        "Figure 4",
        "positive share of the energy of sym(W) after training, and the sign of λ₁; 4 proposed blocks",
        SIGNS,
        lambda kept, _, changes: [evidence.sign_part(kept, _proposed(4), 1, changes)],
    ),
    Claim(
        "best",
        "The best performance for each case is displayed in boldface",
        "Table 1",
        "error of 5 proposed blocks less that of the baseline, of 2, 3 and 4 original and of 2, 3, 4 and 6 proposed "
        "blocks",
        f"{SIDE} (below) for all eight; level within 0.2 points",
        lambda kept, _, changes: [
            evidence.error_part(kept, _proposed(5), other, -1, changes)
            for other in (
                _BASELINE,
                *(_original(n) for n in (2, 3, 4)),
                *(_proposed(n) for n in (2, 3, 4, 6)),
            )
        ],
        "what 5 blocks are compared with",
    ),
    Claim(
        "many",
        "adding too many proposed nonlocal blocks reduces the performance",
        "Table 1",
        "error of 6 less 5 proposed blocks",
        f"{SIDE} (above); level within 0.2 points",
        lambda kept, _, changes: [evidence.error_part(kept, _proposed(6), _proposed(5), 1, changes)],
    ),
    Claim(
        "reason",
        "all the nonlocal blocks in a stage share the same affinity function",
        "Section 3.3, as the reason for the sentence before",
        "what going from 5 to 6 proposed blocks costs in error, with a recomputed less with the shared affinity",
        f"{SIDE} (below); level within 0.2 points",
        lambda kept, _, changes: [evidence.interaction_part(kept, "diffusive", changes)],
    ),
    Claim(
        "places",
        "the proposed nonlocal network still performs better than the original one",
        "Table 1, different places",
        "error of the proposed less that of the original form, one block after each of three residual blocks",
        f"{SIDE} (below); level within 0.2 points",
        lambda kept, _, changes: [
            evidence.error_part(kept, _proposed(1, **_PLACES), _original(1, **_PLACES), -1, changes)
        ],
        beside=lambda kept, _, changes: [
            evidence.error_part(
                kept,
                _proposed(1, **_PLACES, other=DIVIDED),
                _original(1, **_PLACES, other=DIVIDED),
                -1,
                changes,
            )
        ],
    ),
    Claim(
        "deeper",
        "has stable dynamics, thus allowing deeper nonlocal structures",
        "Abstract",
        "map of one epoch, rate 0.1: cells with the same start and number of blocks (1 to 4) in which all seeds of one "
        "form train and some seed of the other does not",
        "there are such cells for the proposed form and none for the original one; the other way round: not "
        "reproduced; both: it depends",
        lambda _, found, __: deeper_parts(found),
        "the initialisation",
        source="the map",
        remark="This judges the paper's stage as a whole, over one epoch. Whether its differences do it or its one "
        "affinity, which the paper gives another reason for, is told in map.md, Form or affinity; that trained "
        "proposed stages can make signals grow, in figures.md. One block after each of several residual blocks, where "
        "nothing is shared in either form, is in table1.md.",
        short="The stage as a whole, over one epoch, in one place",
    ),
    Claim(
        "initialisation",
        "stacking several original blocks will cast uncertainty to the model and thus requires extra work to study the "
        "initialization strategy",
        "Section 4.4",
        "map of one epoch, rate 0.1: whether all seeds train, for 2, 3 and 4 original blocks over all starts",
        "for each number of blocks there are starts with which all seeds train and others with which some do not",
        lambda _, found, __: initialisation_parts(found),
        source="the map",
        remark="Over one epoch. Within ten, some seeds diverge from starts with which all train the first: map.md.",
    ),
    Claim(
        "small",
        "the stability holds as long as the weight parameters are small enough",
        "Section 4.4",
        'map, ten epochs: runs that diverge with weight="stable", which holds W inside the limit; and, of the proposed '
        "runs that diverge, those whose growth factor was above 1 before",
        "no run of the first kind, all of the second",
        lambda _, found, __: small_weights_parts(found),
        "how W leaves the limit",
        source="the map",
        remark="Whole runs of stable stages, from both starts and with divided logits, are in table1.md.",
    ),
)


def judge(kept: Kept, found: TrainabilityMap) -> list[tuple[Claim, Verdict]]:
    """Every claim with its verdict: at the default protocol, and at the other starts and backbones beside it."""
    elsewhere = {("the initialisation", f"start {start}"): {"start": start} for start in kept.starts}
    elsewhere |= {("the backbone", backbone): {"backbone": backbone} for backbone in kept.backbones}
    judged = []
    for claim in CLAIMS:
        verdict = settle(
            claim.parts(kept, found, {}),
            {}
            if claim.source
            else {key: claim.parts(kept, found, changes) for key, changes in elsewhere.items()},
            varies=claim.varies,
            protocol=claim.source or f"start {kept.start}",
        )
        beside = () if claim.beside is None else tuple(claim.beside(kept, found, {}))
        judged.append((claim, replace(verdict, beside=beside)))
    return judged


def rules_table() -> Table:
    """The sentences with their quantities and rules, as they stood before the runs."""
    lines = tuple((f"“{one.quote}”", one.where, one.quantity, one.rule) for one in CLAIMS)
    return Table(("the paper's words", "where", "quantity", "reproduced if"), (("", lines),), prose=True)
