"""Means of differences with a confidence interval, and the sign test: in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n numbers, and where the mean of all such numbers lies with probability LEVEL.

    low, high  −∞ and ∞ for n = 1, which has no deviation
    """

    n: int
    mean: float
    low: float
    high: float

    def told(self, near: float = math.nan, *, tells_n: bool = True) -> str:
        """Such as "−0.31 [−0.52, −0.10], n = 5"; the interval is left out where there is none.

        near     what the ends are held against, besides 0: they have as many decimals as it takes to tell on which side
        tells_n  False: without n
        """
        text = signed(self.mean)
        if self.n > 1:
            text += f" [{_end(self.low, near)}, {_end(self.high, near)}]"
        return f"{text}, n = {self.n}" if tells_n else text


def _end(value: float, near: float) -> str:
    bounds = () if math.isnan(near) else (0.0, near, -near)
    for digits in range(2, 6):
        shown = round(value, digits)
        if all((shown > bound, shown < bound) == (value > bound, value < bound) for bound in bounds):
            break
    return signed(value, digits)


def interval(values: Sequence[float]) -> Interval | None:
    """The t-interval of the mean of `values`; None for none at all."""
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
    """one − other for every seed that both have, in the order of the seeds.

    Rounded, so that what is 0 but for the last digits of floats is on neither side of it.
    """
    return [round(one[seed] - other[seed], 12) for seed in sorted(one.keys() & other.keys())]


def side(found: Interval | None, claimed: int, delta: float = 0.0) -> bool | None:
    """Whether the mean lies on the claimed side of 0 (−1 below, +1 above); None where that is open.

    True: the whole interval does. False: the whole interval lies on the other side, or within ±delta.
    """
    if found is None or found.n < 2:
        return None
    low, high = (found.low, found.high) if claimed > 0 else (-found.high, -found.low)
    if low > 0:
        return True
    return False if high < 0 or (low >= -delta and high <= delta) else None


def sign_test(more: int, less: int) -> float:
    """The exact sign test, two-sided: how often more + less fair coins fall at least as unevenly."""
    tosses = more + less
    tail = sum(math.comb(tosses, heads) for heads in range(min(more, less) + 1))
    return min(1.0, 2 * tail / 2**tosses)


@lru_cache(maxsize=256)
def t_quantile(probability: float, freedom: int) -> float:
    """The t that a variable with so many degrees of freedom stays below with this probability (≥ ½)."""
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
    """P(T ≤ t) for t ≥ 0: the finite sums that the integral has for whole degrees of freedom."""
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
    """A difference to two decimals, such as "−0.31"."""
    text = f"{value:+.{digits}f}"
    # Rounded to nothing, a number has no sign.
    return text[1:] if float(text) == 0 else text.replace("-", "−")
