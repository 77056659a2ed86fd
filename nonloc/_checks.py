"""Checks of plain values: whole numbers, numbers, flags and choices. Each names the argument. No torch.

Numpy's numbers are numbers; True and False are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    # int is an Integral, too; it is tested first because an abstract class is slow to test.
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int; ValueError unless it is a whole number of at least `least`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {value!r}")
    return int(value)


def check_positive(name: str, value: object) -> None:
    """ValueError unless `value` is a finite number > 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """ValueError, listing the choices, unless `value` is one of them."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}")
