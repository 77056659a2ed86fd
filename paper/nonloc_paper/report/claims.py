"""The paper's sentences about its experiments as a table of data: kind of rule and rows. `judge` evaluates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.rules import MAP_RULES
from nonloc_paper.report.rules import RULES, Changes, step_times
from nonloc_paper.report.table1_runs import Table1Runs
from nonloc_paper.report.verdicts import Part, Verdict, settle

Comparisons = tuple[tuple[str, ...], ...]

RATES = (
    "As in the paper, the rates compared are not the same, and a lower one is slower by itself. The rows that decide "
    "nothing have 4 blocks at the rate of the others."
)
RATES_SHORT = "rate 0.01 against 0.1, as in the paper"
SLOW_FOUR: Comparisons = tuple(("4 original, rate 0.01", f"{n} original") for n in (1, 2, 3))
FOUR: Comparisons = tuple(("4 original", f"{n} original") for n in (1, 2, 3))


@dataclass(frozen=True)
class Claim:
    """One sentence; paper/protocol.md says what is measured, and when it counts as reproduced.

    quote     some of its words
    where     the table, figure or section
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
        kind="signs",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
    ),
    Claim(
        key="along",
        quote="Similar observations can be made along the training process",
        where="Figure 2",
        kind="signs",
        rows=(("1 original, epoch 36",), ("1 original, epoch 82",), ("1 original, epoch 125",)),
        side=-1,
        varies="the epoch",
    ),
    Claim(
        key="damped",
        quote="the features tend to be damped out",
        where="Section 3.1",
        kind="norm of features",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
    ),
    Claim(
        key="four",
        quote="when adding 4 blocks, it does not converge after 164 epochs",
        where="Section 3.1",
        kind="all fail",
        rows=(("4 original",),),
    ),
    Claim(
        key="mitigate",
        quote="reducing the learning rate or increasing the learning epochs will mitigate the convergence issue",
        where="Section 3.1",
        kind="first fails, second does not",
        rows=(("4 original", "4 original, rate 0.01"),),
    ),
    Claim(
        key="slowly",
        quote="the training loss decreases more slowly than the fewer blocks cases",
        where="Section 3.1",
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
        kind="some large positive",
        rows=(("4 original, rate 0.01",),),
        side=1,
    ),
    Claim(
        key="worse",
        quote="the training becomes more difficult and thus the validation performs worse",
        where="Table 1",
        kind="errors",
        rows=(("3 original", "2 original"), ("4 original", "3 original")),
        side=1,
    ),
    Claim(
        key="robust",
        quote="the proposed nonlocal network is more robust to the number of blocks",
        where="Table 1",
        kind="ranges of errors",
        rows=(tuple(f"{n} {form}" for form in ("proposed", "original") for n in (2, 3, 4)),),
        side=-1,
    ),
    Claim(
        key="better",
        quote="the proposed model consistently performs better than the original one",
        where="Table 1",
        kind="errors",
        rows=tuple((f"{n} proposed", f"{n} original") for n in (2, 3, 4)),
        side=-1,
    ),
    Claim(
        key="cost",
        quote="the proposed model also reduces the computational cost",
        where="Section 3.3",
        kind="step times",
        varies="how a step is computed",
        source="the bench",
    ),
    Claim(
        key="positive",
        quote="most of the eigenvalues are positive",
        where="Figure 4",
        kind="signs",
        rows=(("4 proposed",),),
        side=1,
    ),
    Claim(
        key="best",
        quote="The best performance for each case is displayed in boldface",
        where="Table 1",
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
        kind="errors",
        rows=(("6 proposed", "5 proposed"),),
        side=1,
    ),
    Claim(
        key="reason",
        quote="all the nonlocal blocks in a stage share the same affinity function",
        where="Section 3.3, as the reason for the sentence before",
        kind="affinities",
        rows=(tuple(f"{n} proposed, {word} affinity" for word in ("recomputed", "shared") for n in (5, 6)),),
        side=-1,
    ),
    Claim(
        key="places",
        quote="the proposed nonlocal network still performs better than the original one",
        where="Table 1, different places",
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
        kind="just one form trains",
        varies="the initialisation",
        source="the map",
        remark="This judges the paper's stage as a whole, over one epoch, in one place. Differences or the one "
        "affinity: see map.md, Form or affinity. Trained proposed stages can make signals grow: figures.md. "
        "Different places: table1.md.",
        short="the stage as a whole, over one epoch, in one place",
    ),
    Claim(
        key="initialisation",
        quote="stacking several original blocks will cast uncertainty to the model and thus requires extra work to "
        "study the initialization strategy",
        where="Section 4.4",
        kind="the start decides",
        source="the map",
        remark="Over one epoch. Within ten, some seeds diverge from starts with which all train the first: map.md.",
    ),
    Claim(
        key="small",
        quote="the stability holds as long as the weight parameters are small enough",
        where="Section 4.4",
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
