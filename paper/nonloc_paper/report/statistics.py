"""Means of differences with a confidence interval, and the sign test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n numbers with its confidence interval at LEVEL.

    low, high  −∞ and ∞ for n = 1, which has no deviation
    """

    n: int
    mean: float
    low: float
    high: float

    def format(self, near: float = math.nan) -> str:
        """Return such as "−0.31 [−0.52, −0.10], n = 5"; without the interval for n = 1.

        near  a bound, besides 0: the ends have enough decimals to show on which side of it they lie
        """
        text = signed(self.mean)
        if self.n > 1:
            text += f" [{_end(self.low, near)}, {_end(self.high, near)}]"
        return f"{text}, n = {self.n}"


def _end(value: float, near: float) -> str:
    bounds = () if math.isnan(near) else (0.0, near, -near)
    for digits in range(2, 6):
        shown = round(value, digits)
        if all((shown > bound, shown < bound) == (value > bound, value < bound) for bound in bounds):
            break
    return signed(value, digits)


def interval(values: Sequence[float]) -> Interval | None:
    """Return the t-interval of the mean of `values`; None without values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(1, mean, -math.inf, math.inf)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / n)
    return Interval(n, mean, mean - half, mean + half)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Return one − other for every seed that both have, in the order of the seeds.

    Rounded, so that a difference that is 0 but for rounding is on neither side of 0.
    """
    return [round(one[seed] - other[seed], 12) for seed in sorted(one.keys() & other.keys())]


def side_of_zero(found: Interval | None, claimed: int, delta: float = 0.0) -> bool | None:
    """Return whether the mean lies on the claimed side of 0 (−1 below, +1 above); None where that is open.

    True: the whole interval does. False: the whole interval lies on the other side, or within ±delta.
    """
    if found is None or found.n < 2:
        return None
    low, high = (found.low, found.high) if claimed > 0 else (-found.high, -found.low)
    if low > 0:
        return True
    return False if high < 0 or (low >= -delta and high <= delta) else None


def sign_test(more: int, less: int) -> float:
    """Return p of the exact two-sided sign test: how often fair coins fall at least as unevenly."""
    tosses = more + less
    tail = sum(math.comb(tosses, heads) for heads in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**tosses)


def signed(value: float, digits: int = 2) -> str:
    """Return a difference to two decimals, such as "−0.31"."""
    text = f"{value:+.{digits}f}"
    # Rounded to nothing, a number has no sign.
    return text[1:] if float(text) == 0 else text.replace("-", "−")
