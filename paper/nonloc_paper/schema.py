"""Schemas: what a file may hold, as data; strict JSON, and one check. Standard library only. file_schemas.py has them.

A schema is one of

    Number, Text                   a plain value
    {"name": …, "other?": …}       an object with these fields and no others; one with "?" may be missing
    {"*": …}                       an object with any fields, each of this schema
    [schema]                       a list of such items
    (schema, schema)               a list of exactly so many; all are the same schema
    Maybe(schema)                  that or null: a number that was not finite is written as null
    ANY                            anything: what is checked elsewhere

`check` names the first field that does not fit.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nonloc.outcomes import CorruptDataError

DEEPEST = 32  # levels of nesting; the files have up to 8
LARGEST = sys.float_info.max
PRINTED = r"[^\x00-\x08\x0b-\x1f\x7f]*"
RESTORE = "restore it, or delete it and run the command that wrote it again"


@dataclass(frozen=True)
class Number:
    """A finite number from `least` to `most`; True and False are none."""

    least: float = -LARGEST
    most: float = LARGEST
    whole: bool = False

    def fits(self, value: object) -> bool:
        is_number = type(value) is int or (type(value) is float and not self.whole)
        return is_number and self.least <= value <= self.most  # type: ignore[operator]

    @property
    def text(self) -> str:
        kind = "a whole number" if self.whole else "a finite number"
        low = "" if self.least == -LARGEST else f" ≥ {self.least:g}"
        return kind + low + ("" if self.most == LARGEST else f" ≤ {self.most:g}")


@dataclass(frozen=True)
class Text:
    """A string without control characters; one of `choices`, or of `pattern`."""

    choices: tuple[str, ...] = ()
    pattern: str = PRINTED

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and (
            value in self.choices if self.choices else re.fullmatch(self.pattern, value) is not None
        )

    @property
    def text(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return "printed text" if self.pattern == PRINTED else f"text of the form {self.pattern}"


@dataclass(frozen=True)
class Anything:
    text = "anything"

    def fits(self, value: object) -> bool:
        return True


@dataclass(frozen=True)
class Maybe:
    schema: Any


Schema = dict[str, Any]
ANY, TEXT, NUMBER = Anything(), Text(), Number()
COUNT, POSITIVE = Number(0, whole=True), Number(1, whole=True)
HASH = Text(pattern="[0-9a-f]{64}")


def parse(content: bytes) -> Any:
    """Return the value of strict JSON in UTF-8; a ValueError says what is wrong with it.

    A repeated name, a number that is not finite or has more than 64 bits, a lone surrogate and nesting beyond DEEPEST
    are wrong, too.
    """
    try:
        value = _DECODER.decode(content.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_plain(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name is there twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _check_plain(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        inside: list[Any] = []
        for item in level:
            if isinstance(item, float):
                if not math.isfinite(item):
                    raise ValueError("it has a number that is not finite")
            elif isinstance(item, int):
                if item.bit_length() > 64:
                    raise ValueError("it has a number of more than 64 bits")
            elif isinstance(item, str):
                item.encode()  # A lone surrogate cannot be written.
            elif item is not None:
                inside += item
                inside += item.values() if isinstance(item, dict) else ()
        if not inside:
            return
        level = inside
    raise ValueError("it is nested too deeply")


def check(value: Any, schema: Any, where: object, fix: str = RESTORE) -> None:
    """Raise CorruptDataError, with the fix, for the first field of `value`, read from `where`, that does not fit."""
    wrong = next(_faults(value, schema, ""), None)
    if wrong is not None:
        raise CorruptDataError(f"{where} {wrong}; {fix}")


def check_lines(lines: Sequence[Any], schema: Any, path: Path) -> None:
    """Do `check` for every line of a file."""
    for number, line in enumerate(lines, start=1):
        check(line, schema, f"{path}, line {number},", "restore the file, or delete that line")


def _faults(value: Any, schema: Any, name: str) -> Iterator[str]:
    """Yield such as "lacks outcome.step" and "has seconds '5', not a finite number ≥ 0"."""
    if isinstance(schema, Maybe):
        if value is None:
            return
        schema = schema.schema
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield _not(name, value, "an object")
            return
        if "*" in schema:
            fields = dict.fromkeys(value, (schema["*"], False))
        else:
            fields = {key.removesuffix("?"): (one, not key.endswith("?")) for key, one in schema.items()}
        for key, (of_key, is_needed) in fields.items():
            if key in value:
                yield from _faults(value[key], of_key, f"{name}.{key}".removeprefix("."))
            elif is_needed:
                yield f"lacks {name}.{key}".replace(" .", " ")
        for key in value:
            if key not in fields:
                yield f"has an unknown field {in_words(f'{name}.{key}'.strip('.'))}"
    elif isinstance(schema, list | tuple):
        if not isinstance(value, list):
            yield _not(name, value, "a list")
        elif isinstance(schema, tuple) and len(value) != len(schema):
            yield f"has {name} with {len(value)} items, not {len(schema)}"
        # Quickly: eigenvalues are most of all numbers.
        elif not (isinstance(schema[0], Number) and all(map(schema[0].fits, value))):
            for number, item in enumerate(value):
                yield from _faults(item, schema[0], f"{name}[{number}]")
    elif not schema.fits(value):
        yield _not(name, value, schema.text)


def _not(name: str, value: Any, what: str) -> str:
    return f"has {name or 'a value'} {in_words(value)}, not {what}"


def in_words(value: Any) -> str:
    """Return the value as text of at most 40 characters."""
    text = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
