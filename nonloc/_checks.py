"""Checks of plain values: whole numbers, numbers, flags, choices, functions, sizes. Each names the argument. No torch.

Numpy's numbers are numbers; True and False are not.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable
from numbers import Integral, Rational, Real
from typing import Any, TypeGuard

MOST_WHOLE = 2**63 - 1  # what 64 bits hold
LARGEST_FLOAT = sys.float_info.max


def is_whole(value: object) -> TypeGuard[int]:
    # int is an Integral, too; it is tested first because an abstract class is slow to test.
    return isinstance(value, (int, Integral)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether `value` is a number that a float can hold: neither NaN, infinite nor 10**400."""
    # math.isfinite refuses 10**400, and torch.compile with dynamic=True refuses math.isfinite.
    if isinstance(value, (float, int, Rational)):
        return is_number(value) and abs(value) <= LARGEST_FLOAT
    return is_number(value) and math.isfinite(value)


def shortened(text: str, most: int = 100) -> str:
    """Return `text`, with its middle left out if it has more than `most` characters."""
    if len(text) <= most:
        return text
    head, tail = most - most // 3, most // 3
    return f"{text[:head]} … {text[-tail:]} ({len(text):,} characters)"


def shown(value: object) -> str:
    """Return `repr(value)` for a message: on one line, shortened."""
    try:
        return shortened(" ".join(repr(value).split()))
    except ValueError:  # Python refuses to write numbers of thousands of digits
        return f"a {type(value).__name__} with too many digits to be shown"


def check_whole(name: str, value: object, least: int = 1, most: int = MOST_WHOLE) -> int:
    """Return `value` as an int; ValueError unless it is a whole number from `least` to `most`."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number ≥ {least}, got {shown(value)}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}, got {shown(value)}; use a smaller number")
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
    if not is_finite(value) or not value > 0:
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


def check_takes_one(name: str, function: Callable[..., Any], argument: str, fix: str) -> None:
    """ValueError, with the fix, unless `function` can be called with one argument, in words `argument`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(1)
    except TypeError as error:
        called = getattr(function, "__name__", type(function).__name__)
        raise ValueError(
            f"{name}: {called} cannot be called with {argument} alone ({error}); {fix}"
        ) from error
