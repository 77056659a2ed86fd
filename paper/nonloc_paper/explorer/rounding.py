"""Numbers as the page gets them: few digits, the same on every machine."""

from __future__ import annotations


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Return the number to so many significant digits; None stays None."""
    return None if value is None else float(f"{value:.{digits}g}")
