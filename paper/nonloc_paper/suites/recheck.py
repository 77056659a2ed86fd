"""recheck: compute the score in a run's result again from its weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from nonloc.outcomes import CorruptDataError
from nonloc_paper.data import load
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import weights_sha256
from nonloc_paper.training.evaluate import CapturedEvaluation, evaluate
from nonloc_paper.training.graph_group import CaptureError
from nonloc_paper.training.machine import device_or_best, machine
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import new_stream, on_stream, slow_precision
from nonloc_paper.training.tasks import TASKS, Task
from nonloc_paper.training.trained import trained_network

# On another kind of hardware sums are taken in another order: 5 of 10,000 images.
TOLERANCE = 0.05
# A PSNR in dB has no last image: what the order of sums does to it.
PSNR_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Recheck:
    """The recomputed score next to the stored one.

    score             "error" in %, or "psnr" in dB
    stored            what result.json says
    recomputed        what was computed now
    images            by how many test images the two differ; None for a PSNR
    is_same_hardware  whether both were computed on one kind of device
    tolerance         by how much they may differ
    precision         that of now; `stored_precision` is the record's
    """

    score: str
    stored: float
    recomputed: float
    images: int | None
    is_same_hardware: bool
    tolerance: float
    device: str
    stored_device: str
    precision: str
    stored_precision: str

    @property
    def agrees(self) -> bool:
        # Far below one image of 10,000, and above rounding: a difference of just the tolerance agrees.
        return abs(self.recomputed - self.stored) <= self.tolerance + 1e-9

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"agrees": self.agrees}


def recheck(
    run: Run | str | os.PathLike[str],
    data: Dataset | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    precision: str | None = None,
    tell: Callable[[str], object] | None = None,
) -> Recheck:
    """Evaluate the network of a finished run again.

    The weights must have the hash, and the data, that the result names.

    precision  None is the recipe's
    tell       called with a sentence if the evaluation may take long
    """
    run = Run.open(run)
    recipe = Recipe.of(run)
    result = run.read_result()
    if result["outcome"]["ending"] != "converged":
        raise ValueError(f"{run.path} diverged, so there is no network to evaluate")
    where = device_or_best(device)
    model = trained_network(run, where)
    if weights_sha256(model) != result["weights_sha256"]:
        raise CorruptDataError(
            f"the weights in {run.path} are not those of its result.json; restore them or begin anew"
        )
    dataset = data if data is not None else load(recipe.data, data_dir)
    if dataset.sha256 != result["data_sha256"]:
        raise ValueError(
            f"{run.path} was trained on other data called {recipe.data!r}; give --data-dir of those"
        )
    now = recipe if precision is None else recipe.with_(precision=precision)
    layout = torch.channels_last if now.channels_last else torch.contiguous_format
    # torch's own annotation of Module.to does not know the memory format alone.
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    task = TASKS[recipe.task](now, dataset, where)
    if tell is not None and (slow := slow_precision(now, where)):
        tell(slow)
    if result["metrics"].get(task.score) is None:
        raise ValueError(
            f"{run.path} ended with a {task.score} that is not a finite number; there is nothing to compare"
        )
    recomputed = _evaluate(model, task, now)[task.score]
    stored = float(result["metrics"][task.score])
    here = machine(where)
    named_by = ("device", "cpu") if where.type == "cpu" else ("device",)
    is_same = now == recipe and all(here[name] == result["machine"][name] for name in named_by)
    exact = PSNR_TOLERANCE if task.score == "psnr" else 0.0
    return Recheck(
        score=task.score,
        stored=stored,
        recomputed=recomputed,
        images=round((recomputed - stored) * len(task.test) / 100) if task.score == "error" else None,
        is_same_hardware=is_same,
        tolerance=exact if is_same else TOLERANCE,
        device=here["device"],
        stored_device=result["machine"]["device"],
        precision=now.precision,
        stored_precision=recipe.precision,
    )


def _evaluate(model: nn.Module, task: Task, recipe: Recipe) -> dict[str, float]:
    """Evaluate as the run itself did: on CUDA as a graph, in its batches."""
    if task.device.type == "cuda":
        try:
            with on_stream(new_stream(task.device)):
                captured = CapturedEvaluation(model, task, recipe)
                captured.launch()
                return captured.read()
        except CaptureError:
            pass
    measured = evaluate(model, task, recipe)
    assert measured is not None
    return measured
