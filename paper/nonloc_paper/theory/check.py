"""Check: the verdict on one statement. Statement: what the paper says of a kernel, and how to measure it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nonloc.ops import NORMALIZATIONS
from nonloc_paper.theory.case import Case

Verdict = Literal["holds", "fails", "hypothesis not met"]


@dataclass(frozen=True)
class Check:
    """What became of one statement for one normalisation.

    name        where the paper says it, such as "Theorem 2 (i)"
    statement   what is claimed
    hypothesis  under which condition; numbers say whether it is met
    normalize   of the kernel, or "continuum" for a statement about the integral operator
    verdict     "holds"; "fails": the hypothesis is met and the claim is not true; "hypothesis not met"
    residual    by how much the claim is missed, relative to what it is about; also where the hypothesis is not met
    detail      the numbers, in words
    expected    "holds", or "fails" for a statement as the paper has it that needs a further hypothesis
    """

    name: str
    statement: str
    hypothesis: str
    normalize: str
    verdict: Verdict
    residual: float
    detail: str
    expected: str = "holds"

    @property
    def is_as_expected(self) -> bool:
        """Whether nothing is wrong: a claim whose hypothesis is not met cannot be."""
        return self.verdict in (self.expected, "hypothesis not met")

    @property
    def is_counterexample(self) -> bool:
        """Whether it fails as it must."""
        return self.verdict == self.expected == "fails"


def decide(met: bool, residual: float, tolerance: float) -> Verdict:
    """Return the verdict on the claim residual ≤ tolerance. A residual that is not a number proves nothing."""
    return "hypothesis not met" if not met else "holds" if residual <= tolerance else "fails"


def format_list(values: Iterable[float]) -> str:
    """Return numbers in four digits, such as "1, 0.1, 0.01"."""
    return ", ".join(f"{value:.4g}" for value in values)


class Hypothesis(NamedTuple):
    """A condition in words, and what must be true for it.

    needs  properties of a Case, or of Meshes, by name; a function of it tests what a claim adds, such as a weight W
    """

    text: str
    needs: tuple[str | Callable[[Any], bool], ...] = ()

    def of(self, subject: object) -> tuple[str, bool]:
        """Return the text, and whether everything that it needs is true of the subject."""
        return self.text, all(
            getattr(subject, need) if isinstance(need, str) else need(subject) for need in self.needs
        )


@dataclass(frozen=True)
class Statement:
    """One statement of the paper about a kernel; a call with a Case returns its Check.

    measure    returns (residual, detail); the claim is residual ≤ tolerance
    holds_for  normalisations for which it holds; () for a statement that needs more than the paper asks
    """

    name: str
    statement: str
    hypothesis: Hypothesis
    tolerance: float
    measure: Callable[[Case], tuple[float, str]]
    holds_for: tuple[str, ...] = NORMALIZATIONS

    def __call__(self, case: Case) -> Check:
        residual, detail = self.measure(case)
        text, met = self.hypothesis.of(case)
        return Check(
            self.name,
            self.statement,
            text,
            case.normalize,
            decide(met, residual, self.tolerance),
            residual,
            detail,
            "holds" if case.normalize in self.holds_for else "fails",
        )


class Statements(list[Statement]):
    """Statements in the order of the paper."""

    def add(
        self,
        name: str,
        statement: str,
        hypothesis: Hypothesis,
        tolerance: float,
        holds_for: tuple[str, ...] = NORMALIZATIONS,
    ) -> Callable[[Callable[[Case], tuple[float, str]]], Statement]:
        """Decorate the function that measures a statement; it becomes the statement."""

        def decorate(measure: Callable[[Case], tuple[float, str]]) -> Statement:
            self.append(Statement(name, statement, hypothesis, tolerance, measure, holds_for))
            return self[-1]

        return decorate
