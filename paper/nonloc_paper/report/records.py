"""collect: read the runs of a folder as records, in the rows of a suite. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from nonloc._checks import shortened
from nonloc.outcomes import CorruptDataError
from nonloc_paper.file_schemas import METRICS, NOT_OBSERVED, OBSERVATIONS, SPECTRA, SPECTRUM, STABILITY
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.report.cross_checks import check_stages, check_training
from nonloc_paper.report.tensors import Tensors, read_tensors
from nonloc_paper.runs import Run, find_runs, read_json, read_lines
from nonloc_paper.schema import RESTORE, check, check_lines
from nonloc_paper.suites import Suite, arranged_suite
from nonloc_paper.suites.rows import PLAN, read_plan
from nonloc_paper.training.recipe import Recipe

_Key = TypeVar("_Key", bound=Hashable)
ARRANGEMENT = ("name", "rows", "changes", "seeds")  # what of a plan `arranged_suite` takes
NO_SUITE = Suite(name="", title="Runs", rows=(), seeds=1)
LONGEST_VALUE = 40  # characters of one setting in a label


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds.

    ending  as files have it: "converged" (or "finished"), "diverged"; "unfinished" without a result
    score   the last epoch's PSNR in dB or error in %; None unless the run finished
    """

    path: Path
    recipe: Recipe
    metrics: list[dict[str, Any]]
    spectra: list[dict[str, Any]]
    result: dict[str, Any] | None
    observations: dict[str, Any]
    spectrum: dict[str, Any]
    stability: dict[str, Any] = field(default_factory=dict)

    @property
    def ending(self) -> str:
        return "unfinished" if self.result is None else str(self.result["outcome"]["ending"])

    @property
    def has_finished(self) -> bool:
        """Whether it ran to its end without diverging."""
        return self.result is not None and self.ending != "diverged"

    @property
    def score(self) -> float | None:
        if self.result is None or not self.has_finished:
            return None
        return self.result["metrics"].get(score_name(self.recipe))

    @property
    def diverged_at(self) -> int | None:
        """The step of the divergence; None for a run that did not diverge."""
        return None if self.result is None or self.ending != "diverged" else self.result["outcome"]["step"]

    def curve(self, name: str, over: str = "step") -> tuple[list[int], list[float]]:
        """Return (steps or epochs, values) of one of the metrics, where it was a number."""
        points = [(line[over], line[name]) for line in self.metrics if line.get(name) is not None]
        return [place for place, _ in points], [value for _, value in points]

    @cached_property
    def tensors(self) -> Tensors:
        """The observed tensors by name: images, noisy, restored, affinity.<stage>."""
        return read_tensors(self.path / "observations.safetensors", self.observations)


@dataclass(frozen=True)
class RowRecord:
    """A row of a table with its runs, one for each seed from `first_seed` on; None where there is no run yet."""

    label: str
    recipe: Recipe
    runs: tuple[RunRecord | None, ...]
    published: float | None = None
    note: str = ""
    group: str = ""
    first_seed: int = 0

    @property
    def seeds(self) -> set[int]:
        """Of its runs, also of those that are missing: any seeds beyond the planned ones have runs."""
        places = enumerate(self.runs, start=self.first_seed)
        return {place if run is None else run.recipe.seed for place, run in places}

    @property
    def started(self) -> list[RunRecord]:
        return [run for run in self.runs if run is not None]

    @property
    def scores(self) -> list[float]:
        """Of the finished runs, in the order of their seeds."""
        return [run.score for run in self.started if run.score is not None]

    @property
    def median(self) -> float | None:
        return median(self.scores) if self.scores else None

    @property
    def diverged(self) -> list[RunRecord]:
        return [run for run in self.started if run.ending == "diverged"]

    @property
    def example(self) -> RunRecord | None:
        """The run to look at: the first with a network that was observed."""
        return next((run for run in self.started if run.observations.get("step") is not None), None)

    @property
    def parameters(self) -> int | None:
        return next((run.result["parameters"] for run in self.started if run.result is not None), None)

    @property
    def seconds(self) -> float | None:
        """The median time of the finished runs."""
        seconds = [
            run.result["seconds"] for run in self.started if run.result is not None and run.has_finished
        ]
        return median(seconds) if seconds else None


@dataclass(frozen=True)
class Collection:
    """The rows of a folder of runs.

    suite  without rows for a folder of runs of none
    plan   suite.json, as `write_plan` wrote it; {} for a folder of runs of no suite
    """

    folder: Path
    rows: tuple[RowRecord, ...]
    suite: Suite = NO_SUITE
    plan: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> list[RunRecord]:
        return [run for row in self.rows for run in row.started]

    @property
    def input_psnr(self) -> float | None:
        """The PSNR of the noisy test images, where all runs have the same."""
        found = {run.observations["input_psnr"] for run in self.runs if "input_psnr" in run.observations}
        return found.pop() if len(found) == 1 else None


def score_name(recipe: Recipe) -> str:
    return "psnr" if recipe.task == "restoration" else "error"


def of_stage(recipe: Recipe, name: str) -> str:
    """Return the name of a stage after a comma, such as ", trunk.stages.2"; "" in a network with one stage."""
    return f", {name}" if len(NetworkSpec.parse(recipe.network).places) > 1 else ""


def collect(folder: str | os.PathLike[str]) -> Collection:
    """Read all runs below `folder` into the rows of its suite, or into rows of their own where there is none."""
    root = Path(folder)
    records = [read_run(run) for run in find_runs(root)]
    plan = read_plan(root)
    suite = _suite(root, plan) if plan else replace(NO_SUITE, title=f"Runs in {root.resolve().name}")
    if not records and not plan:
        raise ValueError(f"{root} holds no runs; name a folder with run folders in it, or a run folder")
    by_recipe, copies = separate_copies(records, lambda record: record.recipe)
    rows = []
    for row in suite.rows:
        runs = tuple(by_recipe.pop(recipe, None) for recipe in suite.recipes(row))
        rows.append(RowRecord(row.label, row.recipe, runs, row.published, row.note, row.group))
    group = "Other runs in this folder" if rows else ""
    others = list(by_recipe.values())
    rows.extend(own_rows(others, group))
    rows.extend(own_rows(copies, "Runs that are there twice", others))
    return Collection(root, tuple(rows), suite, plan)


def _suite(root: Path, plan: dict[str, Any]) -> Suite:
    try:
        return arranged_suite(**{key: plan[key] for key in ARRANGEMENT})
    except ValueError as error:
        raise CorruptDataError(f"{root / PLAN} is no plan of this version: {error}") from error


def read_run(run: Run) -> RunRecord:
    """Read all files of a run; a CorruptDataError for what does not fit its schema, the recipe or another file."""
    # Also if what stands in its place is no file.
    has_ended = os.path.lexists(run.result_path)
    seen = {name: read_json(run.path / f"{name}.json") for name in ("observations", "spectrum", "stability")}
    record = RunRecord(
        path=run.path,
        recipe=Recipe.of(run),
        metrics=read_lines(run.metrics_path, may_be_torn=not has_ended),
        spectra=read_lines(run.spectra_path, may_be_torn=not has_ended),
        result=run.read_result() if has_ended else None,
        **seen,
    )
    if record.result is not None and "records" in record.result:
        run.check_records(record.result["records"], run.result_path, whole=True)
    check_lines(record.metrics, METRICS, run.metrics_path)
    check_lines(record.spectra, SPECTRA, run.spectra_path)
    observed = NOT_OBSERVED if record.observations.get("step") is None else OBSERVATIONS
    for (name, value), schema in zip(seen.items(), (observed, SPECTRUM, STABILITY), strict=True):
        path = run.path / f"{name}.json"
        if os.path.lexists(path):
            check(value, schema, path)
    _check_agreement(record)
    at_the_end: dict[str, Any] = {name: _of_the_end(value, record.result) for name, value in seen.items()}
    return replace(record, **at_the_end)


def _check_agreement(record: RunRecord) -> None:
    """Raise CorruptDataError where two files of a run, or a file and the recipe, say different things."""
    recipe, path = record.recipe, record.path
    check_training(record.metrics, record.result, recipe, score_name(recipe), path)
    spec = None if recipe.is_own_network else NetworkSpec.parse(recipe.network)
    epochs = [line["epoch"] for line in record.spectra]
    planned = sorted({0, recipe.epochs, *(one for one in recipe.spectrum_epochs if one < recipe.epochs)})
    # A run that ended early has the first of them.
    if epochs != planned[: None if epochs and record.has_finished else len(epochs)]:
        raise CorruptDataError(f"{path / 'spectra.jsonl'} has other epochs than its recipe; {RESTORE}")
    seen, lines = record.observations, f"{path / 'spectra.jsonl'}, line"
    for where, stages in (
        *((f"{lines} {number},", line["stages"]) for number, line in enumerate(record.spectra, start=1)),
        (path / "spectrum.json", record.spectrum.get("stages", [])),
        (path / "stability.json", record.stability.get("stages", [])),
        (path / "observations.json", seen.get("features", [])),
        (path / "observations.json", [{"name": one["stage"]} for one in seen.get("affinity", [])]),
    ):
        check_stages(stages, spec, where)
    wrong = seen.get("task", recipe.task) != recipe.task
    for one in seen.get("affinity", []):
        wrong |= any(place >= size for place, size in zip(one["position"], one["grid"], strict=True))
    if recipe.task == "restoration" and seen.get("step") is not None:
        counts = {len(values) for values in seen.get("psnr", {}).values()}
        wrong |= "input_psnr" not in seen or len(counts) != 1
    if wrong:
        raise CorruptDataError(f"{path / 'observations.json'} is not of its recipe's task; {RESTORE}")


def _of_the_end(seen: dict[str, Any], result: dict[str, Any] | None) -> dict[str, Any]:
    """What was observed of a run; {} where it was observed before its end, and is another network now."""
    if result is None or result["outcome"]["ending"] == "diverged":
        return seen
    end = result["outcome"]["step"]
    return seen if seen.get("step", end) == end else {}


def separate_copies(
    records: Sequence[RunRecord], key: Callable[[RunRecord], _Key]
) -> tuple[dict[_Key, RunRecord], list[RunRecord]]:
    """Return one record for each key, and the copies: the first by path counts, finished ones before others."""
    first: dict[_Key, RunRecord] = {}
    copies = []
    for record in sorted(records, key=lambda record: (record.result is None, str(record.path))):
        if first.setdefault(key(record), record) is not record:
            copies.append(record)
    return first, copies


def own_rows(records: Sequence[RunRecord], group: str, others: Sequence[RunRecord] = ()) -> list[RowRecord]:
    """Return one row for the runs that differ in their seed alone, labelled by how it differs, from `others` too."""
    together, before = _by_recipe(records), _by_recipe(others)
    alike: dict[str, list[Recipe]] = {}
    for recipe in before | together:
        alike.setdefault(f"{recipe.network} on {recipe.data}", []).append(recipe)
    labels = {
        recipe: name + apart
        for name, recipes in alike.items()
        for recipe, apart in zip(recipes, _apart(recipes), strict=True)
    }
    return [RowRecord(labels[recipe], recipe, tuple(runs), group=group) for recipe, runs in together.items()]


def _by_recipe(records: Sequence[RunRecord]) -> dict[Recipe, list[RunRecord]]:
    """Return the records by their recipe but for its seed."""
    together: dict[Recipe, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.recipe.network, record.recipe.seed)):
        together.setdefault(record.recipe.with_(seed=0), []).append(record)
    return together


def _apart(recipes: Sequence[Recipe], longest: int = LONGEST_VALUE) -> list[str]:
    """How each recipe differs from the first: by the few settings that tell all apart, and how many others."""
    differing = [
        {
            name: f"{name} is {shortened(repr(value), longest)}"
            for name, (value, _) in recipe.differing(recipes[0]).items()
        }
        for recipe in recipes
    ]
    names, named = list(dict.fromkeys(name for one in differing for name in one)), list[str]()

    def told_apart(names: Sequence[str]) -> int:
        return len({tuple(one.get(name) for name in names) for one in differing})

    while told_apart(named) < told_apart(names):
        named.append(max(names, key=lambda name: told_apart([*named, name])))
    texts = []
    for one in differing:
        shown = [one[name] for name in named if name in one]
        others = len(one) - len(shown)
        shown += [f"and {others} more"] if others else []
        texts.append(f" ({'; '.join(shown)})" if shown else "")
    # Values may differ where they are shortened.
    are_apart = len(set(texts)) == len(texts) or not any("…" in text for text in texts)
    return texts if are_apart else _apart(recipes, 2 * longest)
