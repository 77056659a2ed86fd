"""The names that the modules' keywords accept, and the checks of plain values.

No torch here, so that specifications of networks can be checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nonloc.numeric import is_number, is_whole

FORMS = ("original", "diffusive")
AFFINITY_NAMES = ("gaussian", "embedded_gaussian", "dot", "concat", "heat", "delta")
NORMALIZATIONS = ("row", "count", "none", "symmetric", "sinkhorn")
WEIGHTS = ("factored", "full", "stable")
INITS = ("normal", "zero", "kaiming", "torch", "fan_in")
LAYOUTS = ("channels_first", "positions")


def check_choice(argument: str, value: object, choices: Iterable[str]) -> None:
    """ValueError, listing the choices, unless `value` is one of them."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{argument}={value!r} is unknown; choose one of {', '.join(known)}")


def check_size(argument: str, value: object, minimum: int = 1) -> int:
    """`value` as an int; ValueError unless it is a whole number of at least `minimum`."""
    if not is_whole(value) or value < minimum:
        raise ValueError(f"{argument}={value!r} must be a whole number ≥ {minimum}")
    return int(value)


def check_flag(argument: str, value: object) -> None:
    """ValueError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{argument}={value!r} must be True or False")


def check_deviation(argument: str, value: object) -> None:
    """ValueError unless `value` is a finite number > 0."""
    if not is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"{argument}={value!r} must be a finite number > 0")
