"""The rules that decide the claims, by kind: each measures one comparison of recorded rows and returns a Part.

Rows are named in words, such as "4 original, rate 0.01": see `row_changes`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nonloc_paper.report import signs
from nonloc_paper.report.contrasts import Contrast, difference
from nonloc_paper.report.records import RowRecord, RunRecord
from nonloc_paper.report.table1_runs import (
    DIVIDED,
    PROTOCOL,
    Table1Runs,
    deciding_seeds,
    errors,
    group_length,
    lost,
    setting,
)
from nonloc_paper.report.verdicts import DELTA, Interval, Part, interval, side_of_zero
from nonloc_paper.suites.tables import NAMES

PLAIN_LOOP = "plain loop"  # how `python -m benchmarks forms` calls a step written out by the equations
TWICE = 2.0  # "much larger"
FAILED = 11.65  # % error: halfway between the paper's 3 and 4 original blocks
LEVEL_RATIO = 1.02  # losses and times that differ by less are level
ENOUGH = 2  # runs of a row that have to agree before it counts
SETUP_FAILS = "the set-up fails"

Changes = Mapping[str, Any]
_T = TypeVar("_T")
Rule = Callable[[Table1Runs, Sequence[str], int, Changes], Part]


def row_changes(name: str, backbone: str) -> dict[str, Any]:
    """Return how a named row on a backbone differs from the default protocol.

    "baseline", or "<blocks> original|proposed[ in different places]", then any of ", rate 0.01",
    ", one affinity", ", own affinities", ", logits / √d". Different places: the second residual block of each group.
    """
    stage, *details = name.split(", ")
    changes: dict[str, Any] = {"form": None}
    if stage != "baseline":
        blocks, form, *apart = stage.split(" ")
        forms = {word: form for form, word in NAMES.items()}
        changes = {"form": forms[form], "blocks": int(blocks)}
        if apart:
            places = tuple(2 + group * group_length(backbone) for group in range(3))
            changes |= {"places": places, "blocks": int(blocks) // 3}
    for detail in details:
        if detail.startswith("rate "):
            changes["rate"] = float(detail.removeprefix("rate "))
        elif detail in ("one affinity", "own affinities"):
            changes["shared"] = detail == "one affinity"
        else:
            assert detail == "logits / √d", detail
            changes["other"] = DIVIDED
    return changes


def _rows(runs: Table1Runs, names: Sequence[str], changes: Changes) -> list[RowRecord | None]:
    backbone = changes.get("backbone", PROTOCOL.backbone)
    # What a name says counts, whatever the others have.
    rows = [runs.find(**{**changes, **row_changes(name, backbone)}) for name in names]
    return [row and _deciding(row) for row in rows]


def _deciding(row: RowRecord) -> RowRecord:
    """The row without the seed that had been seen before the rules were written."""
    return replace(row, runs=row.runs[1:], first_seed=1) if deciding_seeds(setting(row.recipe)) else row


def compare_errors(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the error of the first row is below (side −1) or above (+1) that of the second, paired by seed."""
    one, other = _rows(runs, names, changes)
    return _compared(difference(one, other, " − ".join(names)), names, side)


def compare_affinities(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether going from 5 to 6 blocks costs less with own affinities (rows 1, 2) than with one."""
    terms = tuple(zip((-1, 1, 1, -1), _rows(runs, names, changes), strict=True))
    return _compared(Contrast("(6 − 5 proposed) own affinities − one", terms), names, side)


def _compared(contrast: Contrast, names: Sequence[str], side: int) -> Part:
    """The part that a contrast decides. Diverged runs are counts; where they leave no two pairs, the set-up fails."""
    rows = dict(zip(names, (row for _, row in contrast.terms), strict=True))
    found, published = contrast.interval, contrast.format_published()
    numbers = "no pair of runs" if found is None else found.format()
    numbers += f"; published {published}" if found is not None and published != "–" else ""
    numbers += _diverged(rows)
    holds = side_of_zero(found, side, DELTA)
    n, left = len(contrast.values), _left(*rows.values())
    moot = SETUP_FAILS if contrast.lost and n < ENOUGH and not left else ""
    return Part(contrast.name, holds, n, numbers, moot=moot, left=left, number=numbers)


def _diverged(rows: Mapping[str, RowRecord | None]) -> str:
    """Such as "; 4 original: 1 of 5 diverged" for each row with diverged runs."""
    gone = {name: row for name, row in rows.items() if row is not None and row.diverged}
    return "".join(
        f"; {name}: {len(row.diverged)} of {len(row.started)} diverged" for name, row in gone.items()
    )


def compare_curves(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the training loss of the first row is the larger one (side +1) over the epochs, paired by seed.

    Of each epoch the mean log ratio has an interval. It holds if most lie on the claimed side and none on the other; it
    fails if none lies on the claimed side and some on the other.
    """
    rows = _rows(runs, names, changes)
    one, other = (_by_seed(row, _log_losses) for row in rows)
    seeds = sorted(one.keys() & other.keys())
    epochs = (
        set.intersection(*(set(curve[seed]) for curve in (one, other) for seed in seeds)) if seeds else set()
    )
    ratios = [[one[seed][epoch] - other[seed][epoch] for seed in seeds] for epoch in sorted(epochs)]
    sides = [side_of_zero(interval(values), side) for values in ratios]
    yes, no, gone = sides.count(True), sides.count(False), _gone(*rows)
    holds = None
    if not gone and len(seeds) >= ENOUGH:
        holds = True if 2 * yes > len(epochs) and not no else False if no and not yes else None
    apart = ("larger", "smaller") if side > 0 else ("smaller", "larger")
    numbers = f"{apart[0]} in {yes} of {len(epochs)} epochs, {apart[1]} in {no}, n = {len(seeds)}"
    varies = "the epoch" if yes and no and not gone else ""
    numbers = (numbers if seeds else "no pair of runs") + gone
    return Part(" / ".join(names), holds, len(seeds), numbers, varies, left=_left(*rows))


def _log_losses(run: RunRecord) -> dict[int, float]:
    """The logarithm of the training loss by the last step of each epoch."""
    return {step: math.log(loss) for step, loss in zip(*run.curve("train_loss"), strict=True) if loss > 0}


def compare_last_losses(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the last training loss of the first row is more than twice the second's: mean log ratio of pairs."""
    rows = _rows(runs, names, changes)
    one, other = (_by_seed(row, last_loss) for row in rows)
    values = [math.log(one[seed] / other[seed]) for seed in sorted(one.keys() & other.keys())]
    gone = _gone(*rows)
    holds = side_of_zero(interval([value - math.log(TWICE) for value in values]), side)
    numbers = f"{_ratio(interval(values))}, to be above {TWICE:g}{gone}"
    # Diverged runs had losses, too: the others alone do not stand for the row.
    return Part(" / ".join(names), None if gone else holds, len(values), numbers, left=_left(*rows))


def _by_seed(row: RowRecord | None, measure: Callable[[RunRecord], _T | None]) -> dict[int, _T]:
    """What was measured of each finished run of a row."""
    runs = [] if row is None else [run for run in row.started if run.has_finished]
    return {run.recipe.seed: found for run in runs if (found := measure(run))}


def compare_ranges(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the error varies less over the first half of the rows (proposed) than over the second (original)."""
    rows = dict(zip(names, _rows(runs, names, changes), strict=True))
    found = [errors(row) for row in rows.values()]
    half = len(found) // 2

    def spread(seed: int, some: Sequence[Mapping[int, float]]) -> float:
        return max(one[seed] for one in some) - min(one[seed] for one in some)

    seeds = sorted(set.intersection(*(set(one) for one in found)))
    values = [round(spread(seed, found[:half]) - spread(seed, found[half:]), 12) for seed in seeds]
    mean = interval(values)
    numbers = "no seed with all six runs" if mean is None else mean.format()
    holds, left = side_of_zero(mean, side, DELTA), _left(*rows.values())
    name = "range over 2–4 blocks, proposed − original"
    return Part(name, holds, len(values), numbers + _diverged(rows), left=left)


def sign_of_spectra(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the large eigenvalues of every trained run have this sign, beyond chance; ", epoch 36" names an epoch."""
    row_name, _, epoch = names[0].partition(", epoch ")
    (row,) = _rows(runs, [row_name], changes)
    found = _trained_weights(row, int(epoch) if epoch else None)
    answers = [signs.agrees(weights, side) for weights in found]
    numbers = [signs.format_signs(weights, side) for weights in found]
    verb = "are positive" if side > 0 else "are negative"
    part = _counted(names[0], answers, numbers, verb, _gone(row))
    counts = [signs.count_negative(weights) for weights in found]
    if not counts:
        return part
    span = " to ".join(map(str, sorted({min(counts), max(counts)})))
    top = f"of the {signs.TOP * len(found[0])} largest {span} are negative"
    return replace(part, number=f"{part.number} by energy; {top}")


def some_large_positive(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether in every trained run some W has a positive eigenvalue above the band of the largest one."""
    (row,) = _rows(runs, names, changes)
    found = _trained_weights(row, None)
    answers = [signs.has_large_positive(weights) for weights in found]
    numbers = [signs.format_largest(weights) for weights in found]
    return _counted(names[0], answers, numbers, "have one above chance", _gone(row))


def all_fail(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether every run of a row diverges, or ends with an error nearer the paper's 15.02 than its 8.28."""
    (row,) = _rows(runs, names, changes)
    known = errors(row)
    seeds = sorted(known.keys() | lost(row))
    numbers = ["diverged" if seed in lost(row) else f"{known[seed]:.2f} %" for seed in seeds]
    return _counted(names[0], [seed in lost(row) or known[seed] >= FAILED for seed in seeds], numbers, "fail")


def first_fails_second_does_not(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether 4 original blocks fail at rate 0.1 and not at 0.01; open where none fails at 0.1."""
    fast, slow = (all_fail(runs, [name], side, changes) for name in names)
    holds = None if fast.holds is not True or slow.holds is None else not slow.holds
    numbers = f"rate 0.1: {fast.numbers}; rate 0.01: {slow.numbers}"
    moot = "nothing fails at rate 0.1" if fast.holds is False else ""
    # What 0.01 does matters only where 0.1 fails.
    varies = fast.varies or (slow.varies if fast.holds else "")
    name, number = f"{names[0]}, rate 0.1 and 0.01", f"{fast.number}, at rate 0.1"
    return Part(name, holds, min(fast.n, slow.n), numbers, varies, moot, number=number)


def norm_of_features(runs: Table1Runs, names: Sequence[str], side: int, changes: Changes) -> Part:
    """Whether the norm of the features is smaller (side −1) after the stage: mean log ratio of the runs."""
    (row,) = _rows(runs, names, changes)
    ratios = list(_by_seed(row, norm_ratio).values())
    found = interval([math.log(ratio) for ratio in ratios])
    every = ", ".join(f"{ratio:#.3g}" for ratio in ratios)
    numbers = f"norm × {every}; mean {_ratio(found)}" if ratios else "no features recorded"
    holds = side_of_zero(found, side, math.log(LEVEL_RATIO))
    number = "" if found is None else _ratio(found)
    return Part(names[0], holds, len(ratios), numbers + _gone(row), left=_left(row), number=number)


def step_times(runs: Table1Runs) -> list[Part]:
    """Whether a step of the proposed form takes less time than one of the original form: each way, 2 to 4 blocks."""
    times = {(row["way"], row["blocks"], row["form"]): row["milliseconds"] for row in runs.steps}
    # The library's own step has another name where it is not captured.
    ways = sorted({PLAIN_LOOP, *({way for way, _, _ in times} - {PLAIN_LOOP} or {"captured"})})
    parts = []
    for way, blocks in itertools.product(ways, (2, 3, 4)) if times else ():
        original, proposed = (times.get((way, blocks, form), []) for form in NAMES)
        found = None
        if original and len(original) == len(proposed):
            found = interval(
                [math.log(ours / theirs) for ours, theirs in zip(proposed, original, strict=True)]
            )
        holds = side_of_zero(found, -1, math.log(LEVEL_RATIO))
        numbers = "not measured" if found is None else _ratio(found)
        parts.append(Part(f"{way}, {blocks} blocks", holds, 0 if found is None else found.n, numbers))
    return parts or [Part("a step of both forms", None, 0, "not measured")]


def norm_ratio(run: RunRecord) -> float | None:
    """Return the features' norm after the last sub-block of a finished run, over that before the first."""
    if not run.has_finished or not run.observations.get("features"):
        return None
    blocks = run.observations["features"][0]["blocks"]
    before, after = blocks[0]["before"]["norm"], blocks[-1]["after"]["norm"]
    return after / before if before and after else None


def last_loss(run: RunRecord) -> float | None:
    """Return the training loss of the last epoch of a finished run; None where none was recorded."""
    _, values = run.curve("train_loss")
    return values[-1] if values else None


RULES: dict[str, Rule] = {
    "errors": compare_errors,
    "learning curves": compare_curves,
    "last losses, twice": compare_last_losses,
    "ranges of errors": compare_ranges,
    "affinities": compare_affinities,
    "signs": sign_of_spectra,
    "some large positive": some_large_positive,
    "all fail": all_fail,
    "first fails, second does not": first_fails_second_does_not,
    "norm of features": norm_of_features,
}


def _left(*rows: RowRecord | None) -> int | None:
    """How many seeds planned for all of these rows are not recorded in all; None where a row has no run."""
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    planned = set.intersection(*(row.seeds for row in known))
    ended = [{run.recipe.seed for run in row.started if run.result is not None} for row in known]
    return len(planned) - len(planned.intersection(*ended))


def _gone(*rows: RowRecord | None) -> str:
    """Such as "; 1 of 5 runs diverged and have no such number"; "" where none diverged."""
    gone = sum(len(lost(row)) for row in rows)
    all_runs = sum(len(row.started) for row in rows if row is not None)
    return f"; {gone} of {all_runs} runs diverged and have no such number" if gone else ""


def _ratio(found: Interval | None) -> str:
    """Of logarithms, such as "ratio 0.91 [0.88, 0.94], n = 5"."""
    return "no pair of runs" if found is None else f"ratio {found.format(_exponential)}"


def _exponential(value: float) -> str:
    """Such as "0.891" or "1.00"; "1.003" where "1.00" would hide on which side of 1 it lies."""
    ratio = math.exp(value)
    text = f"{ratio:#.3g}"
    return text if float(text) != 1 or ratio == 1 else f"{ratio:.3f}"


def _trained_weights(row: RowRecord | None, epoch: int | None) -> list[list[dict[str, Any]]]:
    """The W of every finished run of a row, run by run; one that was recorded without bands is no evidence."""
    every = _by_seed(row, lambda run: signs.weights_at(run, epoch)).values()
    return [weights for weights in every if signs.has_bands(weights)]


def _counted(name: str, answers: Sequence[bool], numbers: Sequence[str], verb: str, more: str = "") -> Part:
    """A part that holds if all runs say so and fails if none does, from ENOUGH runs on.

    verb  what so many of the runs do
    """
    n = len(answers)
    differ = len(set(answers)) > 1
    holds = None if n < ENOUGH or differ else answers[0]
    varies = "the seed" if n >= ENOUGH and differ else ""
    text = (", ".join(numbers) if numbers else "no run") + more
    return Part(name, holds, n, text, varies, number=f"{sum(answers)} of {n} runs {verb}")
