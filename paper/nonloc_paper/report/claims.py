"""The paper's sentences about its experiments as a table of data: quantity, rule and rows. `judge` evaluates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.rules import MAP_RULES
from nonloc_paper.report.rules import RULES, Changes, step_times
from nonloc_paper.report.table1_runs import Table1Runs
from nonloc_paper.report.tables import Table
from nonloc_paper.report.verdicts import Part, Verdict, settle

Comparisons = tuple[tuple[str, ...], ...]

SIDE = "95 % interval of the paired mean on the claimed side of 0"
SIGNS = (
    "a run agrees if that share of the energy of its W together is above the band of random weights, and the sign of "
    "the eigenvalue of largest magnitude is the claimed one in more than half of its W; a row if all runs do (n ≥ 2)"
)
RATES = (
    "As in the paper, the rates compared are not the same, and a lower one is slower by itself. The rows “at one rate” "
    "have 4 blocks at the rate of the others."
)
RATES_SHORT = "Rate 0.01 against 0.1, as in the paper; at one rate: below"
SLOW_FOUR: Comparisons = tuple(("4 original, rate 0.01", f"{n} original") for n in (1, 2, 3))
FOUR: Comparisons = tuple(("4 original", f"{n} original") for n in (1, 2, 3))


@dataclass(frozen=True)
class Claim:
    """One sentence.

    quote     some of its words
    where     the table, figure or section
    quantity  what is measured
    rule      when it counts as reproduced
    kind      the rule that evaluates it: a key of RULES, "step times", or a key of MAP_RULES
    rows      for each part, the names of the rows that it compares; empty where no runs of the table decide
    side      which side of 0, or which sign, the sentence claims
    varies    what it depends on if some of its parts hold and others do not
    source    what decides it, where that is not runs of the table
    context   comparisons that help to read the others and decide nothing
    remark    what a reader of the verdict alone should know
    short     the same in a few words, for the table of all verdicts
    """

    key: str
    quote: str
    where: str
    quantity: str
    rule: str
    kind: str
    rows: Comparisons = ()
    side: int = 0
    varies: str = "the number of blocks"
    source: str = ""
    context: Comparisons = ()
    remark: str = ""
    short: str = ""


CLAIMS: tuple[Claim, ...] = (
    Claim(
        key="negative",
        quote="most of the eigenvalues are negative, especially the first several with the greatest magnitudes",
        where="Figure 1",
        quantity="negative share of the energy of sym(W) after training, and the sign of λ₁; 1, 2, 3 original blocks",
        rule=SIGNS,
        kind="signs",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
    ),
    Claim(
        key="along",
        quote="Similar observations can be made along the training process",
        where="Figure 2",
        quantity="the same for 1 original block after epochs 36, 82 and 125",
        rule=SIGNS,
        kind="signs",
        rows=(("1 original, epoch 36",), ("1 original, epoch 82",), ("1 original, epoch 125",)),
        side=-1,
        varies="the epoch",
    ),
    Claim(
        key="damped",
        quote="the features tend to be damped out",
        where="Section 3.1",
        quantity="log of the features' norm after the stage over that before it; 1, 2, 3 original blocks",
        rule="95 % interval of the mean over runs below 0; level within a factor 1.02",
        kind="norm of features",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
    ),
    Claim(
        key="four",
        quote="when adding 4 blocks, it does not converge after 164 epochs",
        where="Section 3.1",
        quantity="runs of 4 original blocks at rate 0.1 that diverge or end with an error of 11.65 % or more (halfway "
        "between the paper's 8.28 and 15.02)",
        rule="all runs do (n ≥ 2)",
        kind="all fail",
        rows=(("4 original",),),
    ),
    Claim(
        key="mitigate",
        quote="reducing the learning rate or increasing the learning epochs will mitigate the convergence issue",
        where="Section 3.1",
        quantity="the same at rates 0.1 and 0.01 (more epochs are not tried)",
        rule="all runs fail at 0.1 and none at 0.01; undecided where none fails at 0.1",
        kind="first fails, second does not",
        rows=(("4 original", "4 original, rate 0.01"),),
    ),
    Claim(
        key="slowly",
        quote="the training loss decreases more slowly than the fewer blocks cases",
        where="Section 3.1",
        quantity="mean training loss up to the first milestone: 4 original blocks at rate 0.01 over 1, 2, 3 at 0.1, "
        "log ratio",
        rule=f"{SIDE} (above); level within a factor 1.02",
        kind="early losses",
        rows=SLOW_FOUR,
        side=1,
        context=FOUR,
        remark=RATES,
        short=RATES_SHORT,
    ),
    Claim(
        key="larger",
        quote="the training loss for the 4-block network is much larger than the others",
        where="Figure 3a",
        quantity="last training loss: 4 original blocks at rate 0.01 over 1, 2 and 3 at 0.1, log ratio less log 2",
        rule=f"{SIDE} (above): more than twice as large",
        kind="last losses, twice",
        rows=SLOW_FOUR,
        side=1,
        context=FOUR,
        remark=RATES,
        short=RATES_SHORT,
    ),
    Claim(
        key="blowup",
        quote="some of the positive eigenvalues have large magnitudes",
        where="Figure 3b",
        quantity="the eigenvalue of largest magnitude of each W; 4 original blocks at rate 0.01",
        rule="in every run it is positive, and above the band of random weights, for at least one W (n ≥ 2)",
        kind="some large positive",
        rows=(("4 original, rate 0.01",),),
        side=1,
    ),
    Claim(
        key="worse",
        quote="the training becomes more difficult and thus the validation performs worse",
        where="Table 1",
        quantity="error of 3 less 2, and of 4 less 3 original blocks",
        rule=f"{SIDE} (above); level within 0.2 points",
        kind="errors",
        rows=(("3 original", "2 original"), ("4 original", "3 original")),
        side=1,
    ),
    Claim(
        key="robust",
        quote="the proposed nonlocal network is more robust to the number of blocks",
        where="Table 1",
        quantity="range of the error over 2, 3 and 4 blocks, seed by seed, proposed less original",
        rule=f"{SIDE} (below); level within 0.2 points",
        kind="ranges of errors",
        rows=(tuple(f"{n} {form}" for form in ("proposed", "original") for n in (2, 3, 4)),),
        side=-1,
    ),
    Claim(
        key="better",
        quote="the proposed model consistently performs better than the original one",
        where="Table 1",
        quantity="error of the proposed less that of the original form with 2, 3 and 4 blocks",
        rule=f"{SIDE} (below) for all three; level within 0.2 points",
        kind="errors",
        rows=tuple((f"{n} proposed", f"{n} original") for n in (2, 3, 4)),
        side=-1,
    ),
    Claim(
        key="cost",
        quote="the proposed model also reduces the computational cost",
        where="Section 3.3",
        quantity="time of a training step alone on a device, proposed over original form with 2, 3 and 4 blocks, log "
        "ratio over rounds in turns (`python -m benchmarks forms`): by a plain loop, as in the paper, and by the "
        "library's captured step",
        rule="95 % interval of the mean over rounds below 0 for all three, both ways; level within a factor 1.02",
        kind="step times",
        varies="how a step is computed",
        source="the bench",
    ),
    Claim(
        key="positive",
        quote="most of the eigenvalues are positive",
        where="Figure 4",
        quantity="positive share of the energy of sym(W) after training, and the sign of λ₁; 4 proposed blocks",
        rule=SIGNS,
        kind="signs",
        rows=(("4 proposed",),),
        side=1,
    ),
    Claim(
        key="best",
        quote="The best performance for each case is displayed in boldface",
        where="Table 1",
        quantity="error of 5 proposed blocks less that of the baseline, of 2, 3 and 4 original and of 2, 3, 4 and 6 "
        "proposed blocks",
        rule=f"{SIDE} (below) for all eight; level within 0.2 points",
        kind="errors",
        rows=tuple(
            ("5 proposed", other)
            for other in (
                "baseline",
                *(f"{n} original" for n in (2, 3, 4)),
                *(f"{n} proposed" for n in (2, 3, 4, 6)),
            )
        ),
        side=-1,
        varies="what 5 blocks are compared with",
    ),
    Claim(
        key="many",
        quote="adding too many proposed nonlocal blocks reduces the performance",
        where="Table 1",
        quantity="error of 6 less 5 proposed blocks",
        rule=f"{SIDE} (above); level within 0.2 points",
        kind="errors",
        rows=(("6 proposed", "5 proposed"),),
        side=1,
    ),
    Claim(
        key="reason",
        quote="all the nonlocal blocks in a stage share the same affinity function",
        where="Section 3.3, as the reason for the sentence before",
        quantity="what going from 5 to 6 proposed blocks costs in error, with a recomputed less with the shared "
        "affinity",
        rule=f"{SIDE} (below); level within 0.2 points",
        kind="affinities",
        rows=(tuple(f"{n} proposed, {word} affinity" for word in ("recomputed", "shared") for n in (5, 6)),),
        side=-1,
    ),
    Claim(
        key="places",
        quote="the proposed nonlocal network still performs better than the original one",
        where="Table 1, different places",
        quantity="error of the proposed less that of the original form, one block after each of three residual blocks",
        rule=f"{SIDE} (below); level within 0.2 points",
        kind="errors",
        rows=(("3 proposed in different places", "3 original in different places"),),
        side=-1,
        context=(
            ("3 proposed in different places, logits / √d", "3 original in different places, logits / √d"),
        ),
    ),
    Claim(
        key="deeper",
        quote="has stable dynamics, thus allowing deeper nonlocal structures",
        where="Abstract",
        quantity="map of one epoch, rate 0.1: cells with the same start and number of blocks (1 to 4) in which all "
        "seeds of one form train and some seed of the other does not",
        rule="there are such cells for the proposed form and none for the original one; the other way round: not "
        "reproduced; both: it depends",
        kind="just one form trains",
        varies="the initialisation",
        source="the map",
        remark="This judges the paper's stage as a whole, over one epoch, in one place. Differences or the one "
        "affinity: see map.md, Form or affinity. Trained proposed stages can make signals grow: figures.md. "
        "Different places: table1.md.",
        short="The stage as a whole, over one epoch, in one place",
    ),
    Claim(
        key="initialisation",
        quote="stacking several original blocks will cast uncertainty to the model and thus requires extra work to "
        "study the initialization strategy",
        where="Section 4.4",
        quantity="map of one epoch, rate 0.1: whether all seeds train, for 2, 3 and 4 original blocks over all starts",
        rule="for each number of blocks there are starts with which all seeds train and others with which some do not",
        kind="the start decides",
        source="the map",
        remark="Over one epoch. Within ten, some seeds diverge from starts with which all train the first: map.md.",
    ),
    Claim(
        key="small",
        quote="the stability holds as long as the weight parameters are small enough",
        where="Section 4.4",
        quantity='map, ten epochs: runs that diverge with weight="stable", which holds W inside the limit; and, of '
        "the proposed runs that diverge, those whose growth factor was above 1 before",
        rule="no run of the first kind, all of the second",
        kind="small weights",
        varies="how W leaves the limit",
        source="the map",
        remark="Whole runs of stable stages, from both starts and with divided logits, are in table1.md.",
    ),
)


def judge(runs: Table1Runs, trained: TrainabilityMap) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict, at the default protocol and at the other starts and backbones."""
    elsewhere: dict[tuple[str, str], Changes] = {
        **{("the initialisation", f"start {start}"): {"start": start} for start in runs.starts},
        **{("the backbone", backbone): {"backbone": backbone} for backbone in runs.backbones},
    }
    judged = []
    for claim in CLAIMS:
        if claim.kind in RULES:
            verdict = settle(
                _parts(claim, claim.rows, runs, {}),
                {key: _parts(claim, claim.rows, runs, changes) for key, changes in elsewhere.items()},
                varies=claim.varies,
                protocol=f"start {runs.start}",
            )
            verdict = replace(verdict, context=tuple(_parts(claim, claim.context, runs, {})))
        else:
            parts = step_times(runs) if claim.kind == "step times" else MAP_RULES[claim.kind](trained)
            verdict = settle(parts, varies=claim.varies, protocol=claim.source)
        judged.append((claim, verdict))
    return judged


def _parts(claim: Claim, rows: Comparisons, runs: Table1Runs, changes: Changes) -> Sequence[Part]:
    return [RULES[claim.kind](runs, names, claim.side, changes) for names in rows]


def rules_table() -> Table:
    """Return the table of the sentences with their quantities and rules, as they were written before the runs."""
    lines = tuple((f"“{one.quote}”", one.where, one.quantity, one.rule) for one in CLAIMS)
    return Table(("the paper's words", "where", "quantity", "reproduced if"), (("", lines),), prose=True)
