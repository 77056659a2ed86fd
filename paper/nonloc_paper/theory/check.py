"""Check: one statement, looked at with numbers."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = ("holds", "fails", "hypothesis not met")


@dataclass(frozen=True)
class Check:
    """What became of one statement for one normalisation.

    name        where the paper says it, such as "Theorem 2 (i)"
    statement   what is claimed
    hypothesis  under which condition; whether it is met is told by the numbers, never assumed
    normalize   of the kernel, or "continuum" for a statement about the integral operator
    verdict     "holds"; "fails": the hypothesis is met and the claim is not true; "hypothesis not met"
    residual    by how much the claim is missed, relative to what it is about; also where the hypothesis is not met,
                for then it says what the hypothesis is for
    detail      the numbers, in words
    expected    "holds", or "fails" for a statement as the paper has it that needs a further hypothesis
    """

    name: str
    statement: str
    hypothesis: str
    normalize: str
    verdict: str
    residual: float
    detail: str
    expected: str = "holds"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict={self.verdict!r} is unknown; choose one of {', '.join(VERDICTS)}")
        if self.expected not in ("holds", "fails"):
            raise ValueError(f"expected={self.expected!r} is unknown; choose one of holds, fails")

    @property
    def is_as_expected(self) -> bool:
        """Whether nothing is wrong: a claim whose hypothesis is not met cannot be."""
        return self.verdict in (self.expected, "hypothesis not met")


def conclude(
    name: str,
    statement: str,
    hypothesis: str,
    normalize: str,
    *,
    met: bool,
    residual: float,
    tolerance: float,
    detail: str = "",
    expected: str = "holds",
) -> Check:
    """The check whose claim is residual ≤ tolerance. A residual that is not a number is no proof of anything."""
    holds = residual <= tolerance
    verdict = "hypothesis not met" if not met else "holds" if holds else "fails"
    return Check(name, statement, hypothesis, normalize, verdict, residual, detail, expected)
