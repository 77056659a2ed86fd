"""Runs made by hand: what a report reads, without any training."""

from __future__ import annotations

import json
from typing import Any

from nonloc_paper.report.records import RowRecord, RunRecord, read_run
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe

MACHINE = {"cpu": "abacus", "cores": 2, "threads": 1, "device": "cpu", "platform": "table"}
RESTORER = Recipe(network="restorer8/baseline", data="motifs")
STEPS = 10  # an epoch, if the recipe does not say


def metrics_line(epoch: int, step: int, loss: float, **score: float) -> dict[str, Any]:
    """What metrics.jsonl holds for an epoch."""
    line = {"epoch": epoch, "step": step, "train_loss": loss, "test_loss": loss, **score}
    return line | {"learning_rate": 0.1, "seconds": epoch / 100}


def make_result(
    metrics: dict[str, Any],
    epochs: int,
    diverged_at: int | None,
    *,
    steps: int,
    parameters: int = 1234,
    seconds: float = 5.0,
) -> dict[str, Any]:
    """What result.json holds, with these last metrics, of a run of so many epochs of so many steps."""
    ending, epoch, step = "converged", epochs, epochs * steps
    if diverged_at is not None:
        ending, epoch, step = "diverged", diverged_at // steps + 1, diverged_at
    return {
        "outcome": {"ending": ending, "epoch": epoch, "step": step, "message": "", "metrics": metrics},
        "metrics": metrics,
        "parameters": parameters,
        "data_sha256": "d" * 64,
        "weights_sha256": None if diverged_at is not None else "e" * 64,
        "seconds": seconds,
        "machine": MACHINE,
        "versions": {"python": "3"},
    }


def make_run(
    folder: Any,
    recipe: Recipe,
    score: float | None = None,
    *,
    diverged_at: int | None = None,
    observed: Any = None,
) -> RunRecord:
    """A run folder: finished with `score`, diverged at a step, or, with neither, unfinished after two epochs.

    An epoch has 10 steps. The score of every epoch but the last is half of it.
    """
    name = "psnr" if recipe.task == "restoration" else "error"
    run = Run(folder)
    run.write_recipe(recipe.to_dict())
    last = score if score is not None else 50.0
    steps = recipe.steps_per_epoch or STEPS
    epochs = recipe.epochs if score is not None else 2 if diverged_at is None else diverged_at // steps
    lines = [
        metrics_line(epoch, steps * epoch, 1 / epoch, **{name: last if epoch == epochs else last / 2})
        for epoch in range(1, epochs + 1)
    ]
    run.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if score is not None or diverged_at is not None:
        run.write_result(make_result(lines[-1] if lines else {}, recipe.epochs, diverged_at, steps=steps))
    record = read_run(run)
    return record if observed is None else RunRecord(**{**vars(record), **observed})


def make_row(
    folder: Any, label: str, scores: list[float | None], *, network: str = "restorer8/baseline", **more: Any
) -> RowRecord:
    """A row whose run of seed n has score n; None is a run that is missing."""
    data = "motifs" if network.startswith("restorer") else "cifar10"
    recipe = Recipe(network=network, data=data, epochs=2)
    runs = tuple(
        None if score is None else make_run(folder / f"{label}-{seed}", recipe.with_(seed=seed), score)
        for seed, score in enumerate(scores)
    )
    return RowRecord(label, recipe, runs, **more)
