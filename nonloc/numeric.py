"""What counts as a number where one is asked for: Python's own and numpy's, and never True or False. No torch."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    # int is Integral, too, but asked first: most are, and an abstract class takes long to answer.
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int = 1) -> None:
    """ValueError unless `value` is a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")
