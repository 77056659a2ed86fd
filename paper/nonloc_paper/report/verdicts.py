"""Verdicts: from numbers to intervals, from intervals to the parts of a claim, to one word. No torch, no files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
DEPENDS = "depends on"
UNDECIDED = "undecided"
NOT_RUN = "not run yet"

DELTA = 0.2  # points of error: two networks that differ by less are level
LEVEL = 0.95  # of confidence and prediction intervals
EQUIVALENCE = 0.90  # level of the interval that lies within ±delta where two networks are level
RUNS_PUBLISHED = 5  # behind each published number, their median


@dataclass(frozen=True)
class Part:
    """One comparison that a claim rests on.

    holds    True or False as the rule decides, None where the numbers leave it open
    n        how many pairs of runs, or runs, it was decided on; 0 where there are none
    numbers  what was measured, for readers
    varies   what the answer changes with inside the part, such as "the seed"; "" for nothing
    moot     why there is nothing to decide; "" where more runs can decide it
    left     how many of the planned pairs or runs are missing; None where that is not known
    number   the one number that decides, where `numbers` has more
    """

    name: str
    holds: bool | None
    n: int
    numbers: str
    varies: str = ""
    moot: str = ""
    left: int | None = None
    number: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    word     one of REPRODUCED, NOT_REPRODUCED, DEPENDS, UNDECIDED
    n        the smallest number of runs or pairs that a part rests on
    parts    (condition, part) for all that was measured, the backbone that it judges first
    on       what it depends on
    context  parts that help to read the others and decide nothing
    beside   the verdicts on the same claim on other backbones
    """

    word: str
    n: int
    parts: tuple[tuple[str, Part], ...]
    on: str = ""
    context: tuple[Part, ...] = ()
    beside: tuple[Verdict, ...] = ()

    @property
    def where(self) -> str:
        """On which runs it was made, such as "3 bottlenecks a group, own affinities"."""
        return self.parts[0][0]

    @property
    def text(self) -> str:
        if self.word == DEPENDS:
            return f"{DEPENDS} {self.on}"
        if self.word != UNDECIDED:
            return self.word
        moot = [part.moot for part in self._here if part.holds is None]
        return f"{UNDECIDED}: {moot[0]}" if moot and all(moot) else f"{UNDECIDED} at n = {self.n}"

    @property
    def has_failed_part(self) -> bool:
        """Whether a part does not hold there."""
        return any(part.holds is False for part in self._here)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is known, because all that is open has no run yet."""
        open_ = [part for part in self._here if part.holds is None]
        return (
            self.word == UNDECIDED
            and not self.has_failed_part
            and not any(part.n or part.moot for part in open_)
        )

    @property
    def left_open(self) -> str:
        """Why it is undecided, and whether it can still be reproduced; "" for any other verdict."""
        if self.word != UNDECIDED:
            return ""
        open_ = [part for part in self._here if part.holds is None]
        reasons = [part.moot for part in open_ if part.moot]
        waiting = [part for part in open_ if not part.moot]
        absent = [part.name for part in waiting if not part.n]
        missing = [part.name for part in waiting if part.n and part.left]
        if self.has_failed_part:
            reasons.append("a part fails, so it cannot come out as reproduced any more")
        if absent:
            reasons.append(f"not measured yet: {'; '.join(absent)}")
        if missing:
            reasons.append(f"planned runs are missing for {'; '.join(missing)}")
        if waiting and all(part.n and part.left == 0 for part in waiting):
            reasons.append("all planned runs are recorded, and leave it open")
        return ". ".join(text[0].upper() + text[1:] for text in reasons) or "More measurements would tell"

    @property
    def key_part(self) -> Part:
        """The first part there that failed where it is undecided, or else agrees with the word."""
        order = {REPRODUCED: (True,), NOT_REPRODUCED: (False,), UNDECIDED: (False, None)}.get(self.word, ())
        return next((part for holds in order for part in self._here if part.holds is holds), self._here[0])

    @property
    def _here(self) -> list[Part]:
        return [part for condition, part in self.parts if condition == self.where]


def settle(
    parts: Sequence[Part],
    other_starts: Mapping[str, Sequence[Part]] | None = None,
    *,
    varies: str = "the number of blocks",
    where: str = "default protocol",
) -> Verdict:
    """Return the verdict on a claim from its parts on a backbone and from other starts.

    parts         all of them have to hold for "reproduced", none for "not reproduced"
    other_starts  by the start in words: the claim depends on the initialisation if all parts decided from one of them
                  go the other way; parts without runs are left out
    varies        what the claim depends on if some parts hold and others do not
    where         the backbone, in words
    """
    measured = [(where, part) for part in parts]
    there = []
    for start, some in (other_starts or {}).items():
        measured += [(start, part) for part in some if part.n or part.moot]
        there.append(state([part for part in some if part.holds is not None]))
    here = state(parts)
    n = min((part.n for part in parts), default=0)
    word, on = REPRODUCED if here == "yes" else NOT_REPRODUCED, ""
    if here == "mixed":
        word, on = DEPENDS, varies
    elif here == "open":
        on = next((part.varies for part in parts if part.varies), "")
        word = DEPENDS if on else UNDECIDED
    elif ("no" if here == "yes" else "yes") in there:
        word, on = DEPENDS, "the initialisation"
    return Verdict(word, n, tuple(measured), on)


def state(parts: Sequence[Part]) -> str:
    """Return "yes" if all hold, "no" if none does, "mixed" if some do and some do not, else "open"."""
    answers = {part.holds for part in parts}
    if {True, False} <= answers:
        return "mixed"
    if not answers or None in answers:
        return "open"
    return "yes" if True in answers else "no"


@dataclass(frozen=True)
class Interval:
    """The mean of n numbers, and how well it is known by Student's t.

    error  the standard error of the mean; ∞ for n = 1, which has no deviation
    """

    n: int
    mean: float
    error: float

    def ends(self, level: float = LEVEL, error: float | None = None) -> tuple[float, float]:
        """Return the lower and the upper end; `error` replaces that of the mean."""
        half = math.inf
        if self.n > 1:
            half = float(stdtrit(self.n - 1, (1 + level) / 2)) * (self.error if error is None else error)
        return self.mean - half, self.mean + half

    @property
    def low(self) -> float:
        return self.ends()[0]

    @property
    def high(self) -> float:
        return self.ends()[1]

    @property
    def prediction(self) -> tuple[float, float]:
        """Between which ends the median of RUNS_PUBLISHED further numbers is expected: its noise adds to the mean's."""
        # A median of k normal numbers has π/2 times the variance of their mean, for large k. For 5 it is 1.43 times:
        # with the protocol's π/2 the interval is a little too wide.
        more = math.sqrt(1 + self.n * math.pi / (2 * RUNS_PUBLISHED))
        return self.ends(error=self.error * more)

    def is_level(self, delta: float) -> bool:
        """Whether the mean is equivalent to 0: two one-sided tests at 5 %, which is the 90 % interval within ±delta."""
        low, high = self.ends(EQUIVALENCE)
        return -delta <= low and high <= delta

    def format(self, write: Callable[[float], str] | None = None) -> str:
        """Return such as "−0.31 [−0.52, −0.10], n = 5"; without the interval for n = 1.

        write  makes the text of each number; None: signed decimals
        """
        text, end = (write or signed)(self.mean), write or _end
        if self.n > 1:
            text += f" [{end(self.low)}, {end(self.high)}]"
        return f"{text}, n = {self.n}"


def _end(value: float) -> str:
    """With as many decimals as it takes to tell on which side of 0 it is."""
    return signed(value, next((digits for digits in range(2, 6) if round(value, digits)), 2))


def interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of `values` with its standard error; None without values."""
    n = len(values)
    if n == 0:
        return None
    return Interval(n, fmean(values), stdev(values) / math.sqrt(n) if n > 1 else math.inf)


def side_of_zero(found: Interval | None, claimed: int, delta: float = 0.0) -> bool | None:
    """Return whether the mean lies on the claimed side of 0 (−1 below, +1 above); None where that is open.

    True: the whole interval does. False: the whole interval lies on the other side, or the mean is level within ±delta.
    """
    if found is None or found.n < 2:
        return None
    low, high = (found.low, found.high) if claimed > 0 else (-found.high, -found.low)
    if low > 0:
        return True
    return False if high < 0 or found.is_level(delta) else None


def sign_test(more: int, less: int) -> float:
    """Return p of the exact two-sided sign test: how often fair coins fall at least as unevenly."""
    tosses = more + less
    tail = sum(math.comb(tosses, heads) for heads in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**tosses)


def count_pairs(ends: Sequence[tuple[bool, bool]]) -> tuple[int, int, int, int, int]:
    """Return n, of how many pairs the first is true, the second, the first alone, the second alone."""
    alone = ends.count((True, False)), ends.count((False, True))
    return len(ends), sum(one for one, _ in ends), sum(other for _, other in ends), *alone


def format_chance(more: int, less: int) -> str:
    """Return p of the sign test, such as "p = 0.0078"."""
    p = sign_test(more, less)
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def signed(value: float, digits: int = 2) -> str:
    """Return a difference to two decimals, such as "−0.31"."""
    text = f"{value:+.{digits}f}"
    # Rounded to nothing, a number has no sign.
    return text[1:] if float(text) == 0 else text.replace("-", "−")
