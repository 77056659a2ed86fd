"""What the files of runs and records hold, as data, and one check of it. Standard library only.

A schema is one of

    Number, Text, FLAG             a plain value
    {"name": …, "other?": …}       an object with these fields and no others; one with "?" may be missing
    {"*": …}                       an object with any fields, each of this schema
    [schema]                       a list of such items
    (schema, schema)               a list of exactly so many; all are the same schema
    Maybe(schema)                  that or null: a number that was not finite is written as null
    ANY                            anything: what is checked elsewhere

`check` names the first field that does not fit. The functions below the schemas compare fields that say the same thing.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nonloc.outcomes import CorruptDataError

DEEPEST = 32  # levels of nesting; the files have up to 8
LARGEST = sys.float_info.max
DIGITS = 7  # of the floats in records; results have all of theirs
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
class Flag:
    text = "true or false"

    def fits(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Anything:
    text = "anything"

    def fits(self, value: object) -> bool:
        return True


@dataclass(frozen=True)
class Maybe:
    schema: Any


Schema = dict[str, Any]

ANY, FLAG, TEXT, NUMBER = Anything(), Flag(), Text(), Number()
COUNT, POSITIVE = Number(0, whole=True), Number(1, whole=True)
SECONDS = LOSS = SIZE = Number(0)
PERCENT = Number(0, 100)
SHARE = Number(0, 1 + 1e-6)  # a quotient of two sums, which are rounded
DEVICE = Text(pattern=r"[\w .,:;()/+@#™®-]*")  # it is in Markdown, too
HASH = Text(pattern="[0-9a-f]{64}")
FORM = Text(("original", "diffusive"))
ENDING = Text(("converged", "finished", "diverged"))  # an interrupted run has no result
VERDICT = Text(("stable", "unstable", "not decided"))

_MACHINE: Schema = {"cpu": TEXT, "cores": POSITIVE, "threads": POSITIVE, "device": DEVICE, "platform": TEXT}
_PLACE: Schema = {"machine": _MACHINE, "versions": {"*": TEXT}}
_PART: Schema = {"machine": Maybe(_MACHINE), "versions?": Maybe({"*": TEXT}), "seconds": SECONDS}
_FILE: Schema = {"size": COUNT, "sha256": HASH}
_RECORDS: Schema = {"metrics.jsonl": _FILE, "spectra.jsonl": _FILE}

METRICS: Schema = {
    "epoch": POSITIVE,
    "step": POSITIVE,
    "train_loss": Maybe(LOSS),
    "test_loss": Maybe(LOSS),
    "error?": Maybe(PERCENT),
    "psnr?": Maybe(NUMBER),
    "learning_rate": Number(0),
    "seconds": SECONDS,
}
_LAST_METRICS: Schema = {
    key.rstrip("?") + "?": schema for key, schema in METRICS.items()
}  # {} before the first epoch
RESULT: Schema = {
    "outcome": {"ending": ENDING, "epoch": COUNT, "step": COUNT, "message": TEXT, "metrics": _LAST_METRICS},
    "metrics": _LAST_METRICS,
    "parameters": POSITIVE,
    "data_sha256": HASH,
    "weights_sha256": Maybe(HASH),
    "seconds": SECONDS,
    **_PLACE,
    "earlier?": [_PART],
    "recipe_sha256?": HASH,
    "records?": _RECORDS,
}
OLDER_MANIFEST: Schema = {  # of a checkpoint
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "step_in_epoch": COUNT,
    "seconds": SECONDS,
    "num_classes": COUNT,
    "data_sha256": HASH,
    "losses": [NUMBER],
    "optimizer": {"*": ANY},
    "parts?": [_PART],
    "recipe_sha256": HASH,
    "recipe": {"*": ANY},
    "versions": {"*": TEXT},
    "size": COUNT,
    "sha256": HASH,
}
MANIFEST: Schema = OLDER_MANIFEST | {"records": _RECORDS}

_SPECTRUM: Schema = {
    "eigenvalues": [NUMBER],
    "trace": NUMBER,
    "positive_energy": SIZE,
    "negative_energy": SIZE,
    "negative_share": Maybe(SHARE),
}
_BAND: Schema = {
    "low": [NUMBER],
    "high": [NUMBER],
    "trace": (NUMBER, NUMBER),
    "negative_share": (SHARE, SHARE),
    "quantile": Number(0, 1),
}
SPECTRA: Schema = {"epoch": COUNT, "stages": [{"name": TEXT, "weights": [_SPECTRUM]}]}
SPECTRUM: Schema = {
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "caption": TEXT,
    "stages": [
        {
            "name": TEXT,
            "form": FORM,
            "weights": [_SPECTRUM | {"norm": SIZE, "rank": POSITIVE, "band?": _BAND}],
        }
    ],
}

_STATE: Schema = {
    "norm": Maybe(SIZE),
    "mean": Maybe(NUMBER),
    "variance": Maybe(SIZE),
    "energy": Maybe(NUMBER),
}
_AFFINITY: Schema = {
    "stage": TEXT,
    "position": (COUNT, COUNT),
    "grid": (POSITIVE, POSITIVE),
    "spread": Maybe(SHARE),
    "apart?": Maybe(SHARE),
    "logit_spread?": Maybe(SIZE),
    "same_share": Maybe(SHARE),
    "same_chance": Maybe(SHARE),
}
_BLOCK: Schema = {
    "block": POSITIVE,
    "before": _STATE,
    "after": _STATE,
    "quotient?": Maybe(NUMBER),
    "linear?": Maybe(NUMBER),
}
_FEATURES: Schema = {
    "name": TEXT,
    "form": FORM,
    "channels": POSITIVE,
    "num_blocks": POSITIVE,
    "blocks": [_BLOCK],
}
NOT_OBSERVED: Schema = {"format": POSITIVE, "step": Maybe(COUNT)}  # it ended before its first checkpoint
OBSERVATIONS: Schema = {
    "format": POSITIVE,
    "step": COUNT,
    "epoch": COUNT,
    "task": Text(("classification", "restoration")),
    "batch_size": POSITIVE,
    "affinity": [_AFFINITY],
    "features": [_FEATURES],
    "psnr?": {"noisy": [Maybe(NUMBER)], "restored": [Maybe(NUMBER)]},
    "input_psnr?": Maybe(NUMBER),
    "tensors_sha256?": HASH,
}

_GROWTH: Schema = {"verdict": VERDICT, "growth": Maybe(SIZE)}
STABILITY: Schema = {
    "step?": COUNT,
    "images": POSITIVE,
    "stages": [
        {
            "name": TEXT,
            "form": FORM,
            "num_blocks": POSITIVE,
            "positions": POSITIVE,
            **_GROWTH,
            "repeated": Maybe(SIZE),
            "norm": TEXT,
            "reason": TEXT,
            "logit_spread?": Maybe(SIZE),
            "blocks": [{**_GROWTH, "largest": SIZE, "lowest": NUMBER, "limit": Maybe(NUMBER)}],
        }
    ],
    **_PLACE,
}

PLAN: Schema = {
    "name": TEXT,
    "rows": [TEXT],
    "changes": {"*": ANY},  # a recipe's fields, which Recipe checks
    "seeds": Maybe(POSITIVE),
    "command?": TEXT,
    "seconds?": SECONDS,
}
SPENT: Schema = {"seconds": SECONDS, "device?": DEVICE, "runs?": COUNT, "part?": TEXT}

_MOMENT: Schema = {
    "step": COUNT,
    "stages": [
        {
            "name": TEXT,
            "amplification": Maybe(SIZE),
            "logit_spread?": Maybe(SIZE),
            "logit_spreads?": [Maybe(SIZE)],
            "growth?": Maybe(SIZE),
            "verdict?": Maybe(VERDICT),
            "weights?": [{"eigenvalue": Maybe(NUMBER), "norm": Maybe(SIZE)}],
        }
    ],
}
_EPOCH: Schema = {
    "epoch": POSITIVE,
    "train_loss": Maybe(LOSS),
    "test_loss": Maybe(LOSS),
    "error": Maybe(PERCENT),
}
MAP_ROW: Schema = {
    "cell": TEXT,
    "rate": SIZE,
    "init": TEXT,
    "form": Text(("original", "diffusive", "stable")),
    "blocks": POSITIVE,
    "seed": COUNT,
    "ending": ENDING,
    "step": Maybe(COUNT),
    "first_loss": Maybe(LOSS),
    "last_loss": Maybe(LOSS),
    "mean_loss": Maybe(LOSS),
    "error": Maybe(PERCENT),
    "test_loss": Maybe(LOSS),
    "epochs": [_EPOCH],
    "seconds": SECONDS,
    "device": DEVICE,
    "before_error": Maybe(TEXT),
    "before": [_MOMENT | {"loss": Maybe(LOSS)}],
    "after?": Maybe(_MOMENT),
    "side_by_side": POSITIVE,
    "recipe_sha256": HASH,
}
FORMS: Schema = {  # of `python -m benchmarks forms`
    "command": TEXT,
    "rows": [
        {
            "form": FORM,
            "blocks": POSITIVE,
            "way": TEXT,
            "batch_size": POSITIVE,
            "precision": TEXT,
            "milliseconds": [SIZE],
        }
    ],
    **_PLACE,
}


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
        known = dict.fromkeys(value, schema["*"]) if "*" in schema else schema
        for key, of_key in known.items():
            field = key.removesuffix("?") if known is schema else key
            if field not in value:
                if field == key:
                    yield f"lacks {name}.{field}".replace(" .", " ")
            elif not (isinstance(of_key, Number) and of_key.fits(value[field])):
                yield from _faults(value[field], of_key, f"{name}.{field}".removeprefix("."))
        for key in value:
            if known is schema and f"{key}?" not in schema and (key not in schema or key.endswith("?")):
                yield f"has an unknown field {_shown(f'{name}.{key}'.strip('.'))}"
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
    return f"has {name or 'a value'} {_shown(value)}, not {what}"


def _shown(value: Any) -> str:
    """The value as text of at most 40 characters."""
    text = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else ascii(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def check_training(
    metrics: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
    *,
    epochs: int,
    steps_per_epoch: int | None,
    score: str,
    folder: Path,
) -> None:
    """Check that the lines of metrics agree with each other, with the recipe, and with the result.

    metrics, result  each as its own schema has it; the result is None before the end
    score            "error" or "psnr": which one of the two the lines have
    """

    def refuse(name: str, what: str) -> None:
        raise CorruptDataError(f"{folder / name}{what}; restore the files of that run, or train it anew")

    steps = steps_per_epoch or (metrics[0]["step"] if metrics else None)
    seconds = 0.0
    for number, line in enumerate(metrics, start=1):
        where = f", line {number}, "
        if line["epoch"] != number or number > epochs:
            refuse("metrics.jsonl", f"{where}has epoch {line['epoch']}, not {number} of {epochs}")
        if line["step"] != number * (steps or 0):
            refuse("metrics.jsonl", f"{where}has step {line['step']}, not {number * (steps or 0)}")
        if line["seconds"] < seconds:
            refuse("metrics.jsonl", f"{where}has fewer seconds than the line before")
        if {"error", "psnr"} & line.keys() != {score}:
            refuse("metrics.jsonl", f"{where}must have {score} as its score")
        seconds = line["seconds"]
    if result is None:
        return
    outcome, last = result["outcome"], metrics[-1] if metrics else {}
    if outcome["metrics"] != result["metrics"]:
        refuse("result.json", " has outcome.metrics that are not its metrics")
    if not _agree(result["metrics"], last):
        refuse("result.json", " has metrics that are not the last line of metrics.jsonl")
    if result["seconds"] < seconds * (1 - 10.0 ** (1 - DIGITS)):
        refuse("result.json", " has fewer seconds than the last line of metrics.jsonl")
    has_diverged = outcome["ending"] == "diverged"
    if has_diverged:
        is_within = steps is None or outcome["epoch"] == outcome["step"] // steps + 1 <= epochs
        # Within an epoch, or by the last step of all.
        is_at_end = len(metrics) == epochs and outcome["step"] + 1 == last.get("step")
        is_right = is_within and outcome["epoch"] == len(metrics) + (0 if is_at_end else 1)
    else:
        is_right = outcome["epoch"] == epochs == len(metrics) and outcome["step"] == last.get("step")
    if not is_right:
        where = f"epoch {outcome['epoch']}, step {outcome['step']}"
        refuse("result.json", f" ends at {where}, which its recipe and its metrics.jsonl do not")
    if has_diverged != (result["weights_sha256"] is None):
        refuse("result.json", " must have weights_sha256 just where the run did not diverge")


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects of numbers are the same to DIGITS digits."""

    def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
            for name, value in values.items()
        }

    return rounded(one) == rounded(other)


def check_stages(
    stages: Sequence[Mapping[str, Any]], form: str | None, blocks: int, places: Sequence[int], where: object
) -> None:
    """Check what was measured of stages: they are the network's, in its order, and spectra agree with their sums.

    form, blocks, places  as the network's specification has them
    """
    wrong = next(_stage_faults(stages, form, blocks, places), None)
    if wrong is not None:
        raise CorruptDataError(f"{where} {wrong}; {RESTORE}")


def _stage_faults(
    stages: Sequence[Mapping[str, Any]], form: str | None, blocks: int, places: Sequence[int]
) -> Iterator[str]:
    names, own = [stage["name"] for stage in stages], [f"trunk.stages.{place}" for place in places]
    if names != [name for name in own if name in names]:
        yield f"has the stages {_shown(', '.join(names))}, the recipe {', '.join(own) or 'none'}"
    for stage in stages:
        weights = stage.get("weights", [])
        numbers = [
            block.get("block", number) for number, block in enumerate(stage.get("blocks", []), start=1)
        ]
        if stage.get("form", form) != form or stage.get("num_blocks", blocks) != blocks:
            yield f"has a stage of another form or size than its recipe, {form} of {blocks}"
        for what, indices in (("weights", range(1, len(weights) + 1)), ("blocks", numbers)):
            if what in stage and list(indices) != list(range(1, blocks + 1)):
                yield f"has other {what} in {stage['name']} than its recipe, 1 to {blocks}"
        if len({len(weight["eigenvalues"]) for weight in weights}) > 1:
            yield f"has weights of different sizes in {stage['name']}"
        for number, weight in enumerate(weights, start=1):
            for what in _spectrum_faults(weight):
                yield f"has {what} in {stage['name']}, weight {number}"


def _spectrum_faults(weight: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not agree with the eigenvalues; numbers are rounded to DIGITS digits."""
    values = weight["eigenvalues"]
    if not values or sorted(values, key=abs, reverse=True) != values:
        yield "eigenvalues that are not sorted by magnitude"
    positive, negative = (sum(value * value for value in values if sign * value > 0) for sign in (1, -1))
    energy = positive + negative
    for name, sum_of_values, size in (
        ("trace", sum(values), sum(map(abs, values))),
        ("positive_energy", positive, energy),
        ("negative_energy", negative, energy),
        ("negative_share", negative / energy if energy else None, 1.0),
    ):
        known = weight[name]
        if (known is None) != (sum_of_values is None) or (
            sum_of_values is not None and abs(known - sum_of_values) > 1e-5 * size
        ):
            yield f"a {name} that is not that of its eigenvalues"
    if "norm" in weight and energy > weight["norm"] ** 2 * (1 + 1e-5):
        yield "a norm that is too small for its eigenvalues"
    if "band" in weight:
        low, high = (weight["band"][side] for side in ("low", "high"))
        if not len(low) == len(high) == len(values) or any(
            map(float.__gt__, map(float, low), map(float, high))
        ):
            yield "a band that does not fit its eigenvalues"
