"""Fields of a record that say the same thing are compared: metrics, result, recipe and spectra. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nonloc.outcomes import CorruptDataError
from nonloc_paper.file_schemas import DIGITS
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.runs import to_digits
from nonloc_paper.schema import RESTORE, in_words
from nonloc_paper.training.recipe import Recipe


def check_training(
    metrics: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any] | None,
    recipe: Recipe,
    score: str,
    folder: Path,
) -> None:
    """Check that the lines of metrics agree with each other, with the recipe, and with the result.

    metrics, result  each as its own schema has it; the result is None before the end
    score            "error" or "psnr": which one of the two the lines have
    """

    def refuse(name: str, what: str) -> None:
        raise CorruptDataError(f"{folder / name}{what}; restore the files of that run, or train it anew")

    epochs, seconds = recipe.epochs, 0.0
    steps = recipe.steps_per_epoch or (metrics[0]["step"] if metrics else 0)  # 0: not known
    for number, line in enumerate(metrics, start=1):
        where = f", line {number}, "
        if line["epoch"] != number or number > epochs:
            refuse("metrics.jsonl", f"{where}has epoch {line['epoch']}, not {number} of {epochs}")
        if line["step"] != number * steps:
            refuse("metrics.jsonl", f"{where}has step {line['step']}, not {number * steps}")
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
    if to_digits(result["metrics"]) != to_digits(last):
        refuse("result.json", " has metrics that are not the last line of metrics.jsonl")
    if result["seconds"] < seconds * (1 - 10.0 ** (1 - DIGITS)):
        refuse("result.json", " has fewer seconds than the last line of metrics.jsonl")
    has_diverged = outcome["ending"] == "diverged"
    if has_diverged:
        is_within = not steps or outcome["epoch"] == outcome["step"] // steps + 1 <= epochs
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


def check_stages(stages: Sequence[Mapping[str, Any]], spec: NetworkSpec | None, where: object) -> None:
    """Check what was measured of stages: they are the network's, in its order, and spectra agree with their sums.

    spec  None: of a network of one's own, whose stages no recipe says
    """
    wrong = next(_stage_faults(stages, spec), None)
    if wrong is not None:
        raise CorruptDataError(f"{where} {wrong}; {RESTORE}")


def _stage_faults(stages: Sequence[Mapping[str, Any]], spec: NetworkSpec | None) -> Iterator[str]:
    if spec is not None:
        yield from _recipe_faults(stages, spec)
    for stage in stages:
        weights = stage.get("weights", [])
        if len({len(weight["eigenvalues"]) for weight in weights}) > 1:
            yield f"has weights of different sizes in {stage['name']}"
        for number, weight in enumerate(weights, start=1):
            for what in _spectrum_faults(weight):
                yield f"has {what} in {stage['name']}, weight {number}"


def _recipe_faults(stages: Sequence[Mapping[str, Any]], spec: NetworkSpec) -> Iterator[str]:
    form, blocks = spec.form, spec.num_blocks
    names, own = [stage["name"] for stage in stages], [f"trunk.stages.{place}" for place in spec.places]
    if names != [name for name in own if name in names]:
        yield f"has the stages {in_words(', '.join(names))}, the recipe {', '.join(own) or 'none'}"
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
        if not len(low) == len(high) == len(values) or any(a > b for a, b in zip(low, high, strict=True)):
            yield "a band that does not fit its eigenvalues"
