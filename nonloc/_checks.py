"""Checks of plain values: whole numbers, numbers, flags, choices and sizes. Each names the argument. No torch.

Numpy's numbers are numbers; True and False are not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    # int is an Integral, too; it is tested first because an abstract class is slow to test.
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def shortened(text: str, most: int = 100) -> str:
    """Return `text`, with its middle left out if it has more than `most` characters."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    return f"{text[:head]} … {text[-tail:]} ({len(text):,} characters)"


def shown(value: object) -> str:
    """Return `repr(value)` for a message, shortened."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python refuses to write numbers of thousands of digits
        return f"a {type(value).__name__} with too many digits to be shown"


def check_whole(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int; ValueError unless it is a whole number from `least` to `most`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {shown(value)}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}")
    return int(value)


def check_memory(what: str, needed: int, fix: str) -> None:
    """ValueError if `what` needs more bytes than this machine has memory."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise ValueError(
            f"{what} would need {shown(needed >> 30)} GiB of memory, and this machine has {available >> 30}; {fix}"
        )


def check_positive(name: str, value: object) -> None:
    """ValueError unless `value` is a finite number > 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {shown(value)}")


def check_flag(name: str, value: object) -> None:
    """ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """ValueError, listing the choices, unless `value` is one of them."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}={shown(value)} is unknown; choose one of {', '.join(known)}")
