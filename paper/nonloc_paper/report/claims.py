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
        "negative",
        "most of the eigenvalues are negative, especially the first several with the greatest magnitudes",
        "Figure 1",
        "signs",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
    ),
    Claim(
        "along",
        "Similar observations can be made along the training process",
        "Figure 2",
        "signs",
        rows=(("1 original, epoch 36",), ("1 original, epoch 82",), ("1 original, epoch 125",)),
        side=-1,
        varies="the epoch",
    ),
    Claim(
        "damped",
        "the features tend to be damped out",
        "Section 3.1",
        "norm of features",
        rows=(("2 original",), ("3 original",), ("4 original",)),
        side=-1,
    ),
    Claim(
        "four",
        "when adding 4 blocks, it does not converge after 164 epochs",
        "Section 3.1",
        "all fail",
        rows=(("4 original",),),
    ),
    Claim(
        "mitigate",
        "reducing the learning rate or increasing the learning epochs will mitigate the convergence issue",
        "Section 3.1",
        "first fails, second does not",
        rows=(("4 original", "4 original, rate 0.01"),),
    ),
    Claim(
        "slowly",
        "the training loss decreases more slowly than the fewer blocks cases",
        "Section 3.1",
        "learning curves",
        rows=SLOW_FOUR,
        side=1,
        context=FOUR,
        remark=RATES,
        short=RATES_SHORT,
    ),
    Claim(
        "larger",
        "the training loss for the 4-block network is much larger than the others",
        "Figure 3a",
        "last losses, twice",
        rows=SLOW_FOUR,
        side=1,
        context=FOUR,
        remark=RATES,
        short=RATES_SHORT,
    ),
    Claim(
        "blowup",
        "some of the positive eigenvalues have large magnitudes",
        "Figure 3b",
        "some large positive",
        rows=(("4 original, rate 0.01",),),
        side=1,
    ),
    Claim(
        "worse",
        "the training becomes more difficult and thus the validation performs worse",
        "Table 1",
        "errors",
        rows=(("3 original", "2 original"), ("4 original", "3 original")),
        side=1,
    ),
    Claim(
        "robust",
        "the proposed nonlocal network is more robust to the number of blocks",
        "Table 1",
        "ranges of errors",
        rows=(tuple(f"{n} {form}" for form in ("proposed", "original") for n in (2, 3, 4)),),
        side=-1,
    ),
    Claim(
        "better",
        "the proposed model consistently performs better than the original one",
        "Table 1",
        "errors",
        rows=tuple((f"{n} proposed", f"{n} original") for n in (2, 3, 4)),
        side=-1,
    ),
    Claim(
        "cost",
        "the proposed model also reduces the computational cost",
        "Section 3.3",
        "step times",
        varies="how a step is computed",
        source="the bench",
    ),
    Claim(
        "positive",
        "most of the eigenvalues are positive",
        "Figure 4",
        "signs",
        rows=(("4 proposed",),),
        side=1,
    ),
    Claim(
        "best",
        "The best performance for each case is displayed in boldface",
        "Table 1",
        "errors",
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
        "many",
        "adding too many proposed nonlocal blocks reduces the performance",
        "Table 1",
        "errors",
        rows=(("6 proposed", "5 proposed"),),
        side=1,
    ),
    Claim(
        "reason",
        "all the nonlocal blocks in a stage share the same affinity function",
        "Section 3.3, as the reason for the sentence before",
        "affinities",
        rows=(
            tuple(f"{n} proposed, {words}" for words in ("own affinities", "one affinity") for n in (5, 6)),
        ),
        side=-1,
    ),
    Claim(
        "places",
        "the proposed nonlocal network still performs better than the original one",
        "Table 1, different places",
        "errors",
        rows=(("3 proposed in different places", "3 original in different places"),),
        side=-1,
        context=(
            ("3 proposed in different places, logits / √d", "3 original in different places, logits / √d"),
        ),
    ),
    Claim(
        "deeper",
        "has stable dynamics, thus allowing deeper nonlocal structures",
        "Abstract",
        "just one form trains",
        varies="the initialisation",
        source="the map",
        remark="This judges the paper's stage as a whole, over one epoch, in one place. Differences or the one "
        "affinity: see map.md, Form or affinity. Trained proposed stages can make signals grow: figures.md. "
        "Different places: table1.md.",
        short="the stage as a whole, over one epoch, in one place",
    ),
    Claim(
        "initialisation",
        "stacking several original blocks will cast uncertainty to the model and thus requires extra work to "
        "study the initialization strategy",
        "Section 4.4",
        "the start decides",
        source="the map",
        remark="Over one epoch. Within ten, some seeds diverge from starts with which all train the first: map.md.",
    ),
    Claim(
        "small",
        "the stability holds as long as the weight parameters are small enough",
        "Section 4.4",
        "small weights",
        varies="the moment",
        source='certificates of stages with weight="stable"',
        remark="This is about the forward map of a stage. Training is another matter: runs of such stages diverged "
        "(map.md, table1.md).",
        short="the forward map",
    ),
)


def judge(runs: Table1Runs, trained: TrainabilityMap) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict, at the default protocol and at the other starts and backbones."""
    elsewhere: dict[tuple[str, str], Changes] = {
        **{("the initialisation", f"start {start}"): {"start": start} for start in runs.starts},
        **{("the backbone", backbone): {"backbone": backbone} for backbone in runs.backbones},
        **{
            ("the affinity", f"{backbone}, own affinities"): {"backbone": backbone, "shared": False}
            for backbone in runs.backbones
        },
    }
    judged = []
    for claim in CLAIMS:
        if claim.kind in RULES:
            others: dict[tuple[str, str], Sequence[Part]] = {}
            for key, changes in elsewhere.items():
                parts = _parts(claim, claim.rows, runs, changes)
                # A sentence on original blocks alone has the same rows whatever proposed ones share.
                if parts not in others.values():
                    others[key] = parts
            verdict = settle(
                _parts(claim, claim.rows, runs, {}),
                others,
                varies=claim.varies,
                protocol=f"start {runs.start}",
            )
            verdict = replace(verdict, context=tuple(_parts(claim, claim.context, runs, {})))
        else:
            parts = step_times(runs) if claim.kind == "step times" else MAP_RULES[claim.kind](trained, runs)
            verdict = settle(parts, varies=claim.varies, protocol=claim.source)
        judged.append((claim, verdict))
    return judged


def _parts(claim: Claim, rows: Comparisons, runs: Table1Runs, changes: Changes) -> Sequence[Part]:
    return [RULES[claim.kind](runs, names, claim.side, changes) for names in rows]
