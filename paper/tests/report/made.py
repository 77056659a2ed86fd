"""Runs made by hand: what a report reads, without any training."""

from __future__ import annotations

from typing import Any

from nonloc_paper.report.records import RowRecord, RunRecord, read_run
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe

MACHINE = {"cpu": "abacus", "cores": 2, "device": "cpu", "platform": "table"}


def make_run(
    folder: Any,
    recipe: Recipe,
    score: float | None = None,
    *,
    diverged_at: int | None = None,
    observed: Any = None,
) -> RunRecord:
    """A run folder: finished with `score`, diverged at a step, or, with neither, unfinished after one epoch."""
    name = "psnr" if recipe.task == "restoration" else "error"
    run = Run(folder)
    run.write_recipe(recipe.to_dict())
    last = score if score is not None else 50.0
    for epoch, value in ((1, last / 2), (2, last)):
        run.append_metrics({"epoch": epoch, "step": 10 * epoch, "train_loss": 1 / epoch, name: value})
    if score is not None or diverged_at is not None:
        ending = "converged" if diverged_at is None else "diverged"
        step = 20 if diverged_at is None else diverged_at
        metrics = run.read_metrics()[-1]
        run.write_result(
            {
                "outcome": {"ending": ending, "epoch": 2, "step": step, "message": "", "metrics": metrics},
                "metrics": metrics,
                "parameters": 1234,
                "seconds": 5.0,
                "machine": MACHINE,
                "versions": {"python": "3"},
            }
        )
    record = read_run(run)
    return record if observed is None else RunRecord(**{**vars(record), **observed})


def make_row(
    folder: Any, label: str, scores: list[float | None], *, network: str = "restorer8/baseline", **more: Any
) -> RowRecord:
    """A row whose run of seed n has score n; None is a run that is missing."""
    recipe = Recipe(network=network, data="motifs" if network.startswith("restorer") else "cifar10")
    runs = tuple(
        None if score is None else make_run(folder / f"{label}-{seed}", recipe.with_(seed=seed), score)
        for seed, score in enumerate(scores)
    )
    return RowRecord(label, recipe, runs, **more)


def spectrum(*shares: float, form: str = "diffusive") -> dict[str, Any]:
    """What spectrum.json holds for one stage with these negative shares; chance is 30 to 70 %."""
    weights = [
        {
            "eigenvalues": [1.0, -0.5, 0.25],
            "trace": 0.75,
            "negative_share": share,
            "band": {
                "low": [-1, -0.5, -0.2],
                "high": [1, 0.5, 0.2],
                "trace": [-1, 1],
                "negative_share": [0.3, 0.7],
            },
        }
        for share in shares
    ]
    return {"caption": "How to read it.", "stages": [{"name": "s", "form": form, "weights": weights}]}
