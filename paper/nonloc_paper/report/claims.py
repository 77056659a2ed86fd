"""The paper's sentences about its experiments as a table of data: kind of rule and rows. `judge` evaluates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from nonloc_paper.report.map.cells import TrainabilityMap
from nonloc_paper.report.map.rules import MAP_RULES
from nonloc_paper.report.matching import N2, N3
from nonloc_paper.report.rules import FAILED, RULES, Changes, step_times
from nonloc_paper.report.table1_runs import START, Table1Runs, group_size, setting
from nonloc_paper.report.verdicts import Part, Verdict, settle
from nonloc_paper.suites.matching_tables import TABLE2_N9

Comparisons = tuple[tuple[str, ...], ...]

RATES = (
    "As in the paper, the rates compared are not the same, and a lower one is slower by itself. The rows that decide "
    "nothing compare equal rates."
)
RATES_SHORT = "rate 0.01 against 0.1, as in the paper; equal rates are further below"
SLOW_FOUR: Comparisons = tuple(("4 original, rate 0.01", f"{n} original") for n in (1, 2, 3))
EQUAL_RATES: Comparisons = (
    *(("4 original", f"{n} original") for n in (1, 2, 3)),
    *(("4 original, rate 0.01", other) for other in ("2 original, rate 0.01", "baseline, rate 0.01")),
)
DIVIDED_PLACES: Comparisons = (
    ("3 proposed in different places, logits / √d", "3 original in different places, logits / √d"),
)
TABLE = "Table 1"
BY_ENERGY = "by energy; by count about half"


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
    matching  the same on the backbone that matches, where those are other rows
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
    matching: Comparisons = ()
    context: Comparisons = ()
    remark: str = ""
    short: str = ""

    @property
    def asks_affinity(self) -> bool:
        """Whether it speaks of proposed blocks in one place, which have own affinities or one."""
        return any(name.endswith(" proposed") for names in self.rows for name in names)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "negative",
        "most of the eigenvalues are negative, especially the first several with the greatest magnitudes",
        "Figure 1",
        "signs",
        rows=(("1 original",), ("2 original",), ("3 original",)),
        side=-1,
        short=BY_ENERGY,
    ),
    Claim(
        "along",
        "Similar observations can be made along the training process",
        "Figure 2",
        "signs",
        rows=(("1 original, epoch 36",), ("1 original, epoch 82",), ("1 original, epoch 125",)),
        side=-1,
        varies="the epoch",
        short=BY_ENERGY,
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
        remark="From larger starts such runs diverge, with 3 bottlenecks a group, too: map.md, matching.md.",
    ),
    Claim(
        "mitigate",
        "reducing the learning rate or increasing the learning epochs will mitigate the convergence issue",
        "Section 3.1",
        "first fails, second does not",
        rows=(("4 original", "4 original, rate 0.01"),),
        remark=f"A run fails if it diverges or errs more than {FAILED} %, halfway between the published errors of 3 "
        "and 4 blocks. A rate that raises the errors of all networks can bring a run above that, too.",
    ),
    Claim(
        "slowly",
        "the training loss decreases more slowly than the fewer blocks cases",
        "Section 3.1",
        "learning curves",
        rows=SLOW_FOUR,
        side=1,
        context=EQUAL_RATES,
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
        context=EQUAL_RATES,
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
        TABLE,
        "errors",
        rows=(("3 original", "2 original"), ("4 original", "3 original")),
        side=1,
    ),
    Claim(
        "robust",
        "the proposed nonlocal network is more robust to the number of blocks",
        TABLE,
        "ranges of errors",
        rows=(tuple(f"{n} {form}" for form in ("proposed", "original") for n in (2, 3, 4)),),
        side=-1,
    ),
    Claim(
        "better",
        "the proposed model consistently performs better than the original one",
        TABLE,
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
        context=(("4 proposed, rate 0.01",),),
        short=BY_ENERGY,
    ),
    Claim(
        "best",
        "The best performance for each case is displayed in boldface",
        TABLE,
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
        TABLE,
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
        matching=DIVIDED_PLACES,
        context=DIVIDED_PLACES,
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


def judge(runs: Table1Runs, trained: TrainabilityMap) -> Iterator[tuple[Claim, Verdict]]:
    """Yield every claim with its verdict on the literal backbone, and its verdicts on those that match."""
    literal = group_size(N2)
    others = sorted({one.start for one in runs.settings} - {START})
    starts: dict[str, Changes] = {f"{literal}, start {start}": {"start": start} for start in others}
    for claim in CLAIMS:
        if claim.kind in RULES:
            on_literal = f"{literal}, one affinity" if claim.asks_affinity else literal
            beside = [_judge_on(claim, runs, *backbone) for backbone in _beside(claim, runs).items()]
            verdict = replace(_judge_on(claim, runs, on_literal, {}, starts), beside=tuple(beside))
        else:
            parts = step_times(runs) if claim.kind == "step times" else MAP_RULES[claim.kind](trained, runs)
            verdict = settle(parts, varies=claim.varies, where=f"{literal}, {claim.source}")
        yield claim, verdict


def _judge_on(
    claim: Claim, runs: Table1Runs, where: str, changes: Changes, starts: Mapping[str, Changes] | None = None
) -> Verdict:
    """The verdict on a backbone, and what helps to read it: where that is measured and does not decide there."""

    def measure(rows: Comparisons, changes: Changes) -> list[Part]:
        return [RULES[claim.kind](runs, names, claim.side, changes) for names in rows]

    rows = (claim.matching if changes else ()) or claim.rows
    other_starts = {start: measure(rows, changes) for start, changes in (starts or {}).items()}
    verdict = settle(measure(rows, changes), other_starts, varies=claim.varies, where=where)
    others = tuple(names for names in claim.context if names not in rows)
    return replace(verdict, context=tuple(part for part in measure(others, changes) if part.n))


def _beside(claim: Claim, runs: Table1Runs) -> dict[str, Changes]:
    """The backbones that match and have runs, with the affinities that the claim leaves open, in words."""
    found: dict[str, Changes] = {}
    if any(one.backbone == N3 for one in runs.settings):
        size, on = group_size(N3), {"backbone": N3}
        found = {size: on}
        if claim.asks_affinity:
            found = {f"{size}, own affinities": {**on, "shared": False}, f"{size}, one affinity": on}
    if claim.where == TABLE and TABLE2_N9 not in runs.planned:
        what = setting(TABLE2_N9.rows[0].recipe)
        where = f"{group_size(what.backbone)}, CIFAR-100{', own affinities' if claim.asks_affinity else ''}"
        # Of one affinity too few rows are planned to decide a sentence.
        found[where] = {"backbone": what.backbone, "other": what.other, "shared": False}
    return found
