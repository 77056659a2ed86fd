"""Means of differences with a confidence interval, and the sign test: in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    half = t_quantile((1 + LEVEL) / 2, n - 1) * math.sqrt(variance / n)
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


@lru_cache(maxsize=256)
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t for a probability ≥ ½."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(
            f"probability={probability!r} must be in [0.5, 1) and freedom={freedom!r} a whole number ≥ 1"
        )
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_probability(t: float, freedom: int) -> float:
    """Return P(T ≤ t) for t ≥ 0, by the finite sums for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom % 2:
        total, term = 0.0, cosine
        for k in range(1, freedom, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        total, term = 0.0, 1.0
        for k in range(0, freedom, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        inside = sine * total
    return (1 + inside) / 2


def signed(value: float, digits: int = 2) -> str:
    """Return a difference to two decimals, such as "−0.31"."""
    text = f"{value:+.{digits}f}"
    # Rounded to nothing, a number has no sign.
    return text[1:] if float(text) == 0 else text.replace("-", "−")
