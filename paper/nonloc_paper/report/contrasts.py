"""Contrast: errors of rows added with factors, seed by seed, such as the difference of two rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from nonloc_paper.report.records import RowRecord
from nonloc_paper.report.table1_runs import deciding_seeds, errors, lost, setting
from nonloc_paper.report.tables import Table
from nonloc_paper.report.verdicts import Interval, interval, signed


@dataclass(frozen=True)
class Contrast:
    """A sum of errors with factors, for every seed with which all rows came to their end.

    name   in words, such as "proposed minus original"
    terms  (factor, row); None is a row without runs
    seeds  those that count; None: those that decide, by its rows
    """

    name: str
    terms: tuple[tuple[float, RowRecord | None], ...]
    seeds: Container[int] | None = None

    @property
    def every(self) -> dict[int, float]:
        """The sum by seed, rounded: what is 0 but for rounding is on neither side of 0."""
        known = [(factor, errors(row)) for factor, row in self.terms]
        seeds = sorted(set.intersection(*(set(one) for _, one in known)))
        return {seed: round(math.fsum(factor * one[seed] for factor, one in known), 12) for seed in seeds}

    @property
    def values(self) -> dict[int, float]:
        """The sum by seed, of the seeds that count."""
        every = self.every
        return {seed: every[seed] for seed in self._counting(every)}

    @property
    def interval(self) -> Interval | None:
        return interval(list(self.values.values()))

    @property
    def lost(self) -> list[int]:
        """The seeds of which all runs ended, and some by diverging."""
        ended = [errors(row).keys() | lost(row) for _, row in self.terms]
        gone = set.union(*(lost(row) for _, row in self.terms))
        return self._counting(set.intersection(*ended) & gone)

    @property
    def is_known(self) -> bool:
        """Whether a seed that counts has ended in all rows."""
        return bool(self.values or self.lost)

    @property
    def published(self) -> float | None:
        """The same sum of the published numbers; None where one is missing, or where they cancel.

        They cancel in rows that differ in what the paper does not tell, such as the affinity.
        """
        networks = [row.recipe.network for _, row in self.terms if row is not None]
        totals = [
            math.fsum(factor for factor, row in self.terms if row is not None and row.recipe.network == one)
            for one in networks
        ]
        known = [f * row.published for f, row in self.terms if row is not None and row.published is not None]
        return math.fsum(known) if len(known) == len(self.terms) and any(totals) else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the published sum lies in the prediction interval of ours; None without one of the two."""
        found, published = self.interval, self.published
        if found is None or found.n < 2 or published is None:
            return None
        return found.prediction[0] <= published <= found.prediction[1]

    def format(self) -> str:
        """Return the mean, its interval and n; seeds lost by divergence are counted, not averaged."""
        found, gone = self.interval, len(self.lost)
        texts = [] if found is None else [self._unsigned(found.format())]
        texts += [f"{gone} of {gone + len(self.values)} seeds lost by divergence"] if gone else []
        return "; ".join(texts) or "–"

    def format_published(self) -> str:
        """Return such as "−0.45, inside −0.71 to +0.11": the published sum, and what ours predict."""
        found, published = self.interval, self.published
        if published is None or found is None or self.is_inside is None:
            return "–" if published is None else self._unsigned(signed(published))
        where = "inside" if self.is_inside else "outside"
        return self._unsigned(f"{signed(published)}, {where} {' to '.join(map(signed, found.prediction))}")

    def _unsigned(self, text: str) -> str:
        """Only differences have a plus sign; a sum whose factors do not cancel is an error itself."""
        return text.replace("+", "") if abs(math.fsum(factor for factor, _ in self.terms)) > 0.5 else text

    def _counting(self, seeds: Iterable[int]) -> list[int]:
        by_row = [deciding_seeds(setting(row.recipe)) for _, row in self.terms if row is not None]
        chosen = by_row if self.seeds is None else [self.seeds]
        return sorted(seed for seed in seeds if all(some is None or seed in some for some in chosen))


def difference(one: RowRecord | None, other: RowRecord | None, name: str = "") -> Contrast:
    """Return one row minus another."""
    return Contrast(name, ((1.0, one), (-1.0, other)))


def mean_of(contrasts: Sequence[Contrast], name: str = "") -> Contrast:
    """Return the mean of some contrasts, for the seeds that all of them have."""
    terms = tuple((factor / len(contrasts), row) for one in contrasts for factor, row in one.terms)
    return Contrast(name, terms)


def contrasts_table(
    title: str, contrasts: Sequence[Contrast], rule: Callable[[Contrast], str] | None = None
) -> Table:
    """Return a line for each contrast of which something is recorded: measured, published, and the word of a rule."""
    lines = [
        (one.name, one.format(), one.format_published(), *([rule(one)] if rule else []))
        for one in contrasts
        if one.is_known
    ]
    return Table((title, "mean", "published", *(["by its rule"] if rule else [])), lines, key="mean")
