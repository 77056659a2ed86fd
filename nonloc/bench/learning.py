"""The first epochs of training by a plain PyTorch loop and by the library: one learning curve, or not."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nonloc.bench.side_by_side import PlainLoop
from nonloc.bench.table import markdown
from nonloc.bench.training_step import NETWORKS
from nonloc.data.dataset import Dataset
from nonloc.runs import Run
from nonloc.training.evaluate import evaluate
from nonloc.training.many import fit_many
from nonloc.training.recipe import Recipe

SEEDS = 4


@dataclass(frozen=True)
class Point:
    """One epoch of a curve: the mean training loss over it, and the error in % after it.

    loss, error    of the plain loop, seed 0
    losses, errors  of the library, seeds 0, 1, …
    passed         whether the plain loop's loss is no further from the library's seeds than they are from each other
    """

    network: str
    epoch: int
    loss: float
    error: float
    losses: tuple[float, ...]
    errors: tuple[float, ...]
    passed: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def curves(
    dataset: Dataset,
    device: torch.device,
    *,
    networks: Sequence[str] = NETWORKS,
    epochs: int = 5,
    seeds: int = SEEDS,
    tell: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> Iterator[Point]:
    """For each network its first epochs at the paper's rate, by the plain loop and, all seeds, by the library.

    changes  of the recipe, which is the paper's: in bfloat16 and channels-last on CUDA
    """
    if device.type == "cuda":
        changes = {"precision": "bfloat16", "channels_last": True} | changes
    for network in networks:
        recipe = Recipe(network, epochs=epochs, milestones=(), data=dataset.name, **changes)
        tell(f"{network}: {epochs} epochs, the library with {seeds} seeds")
        found = _library_curves(recipe, dataset, device, seeds)
        tell(f"{network}: {epochs} epochs, the plain loop")
        for number, (loss, error) in enumerate(_plain_curve(recipe, dataset, device)):
            losses, errors = (
                tuple(float(curve[number][name]) for curve in found) for name in ("train_loss", "error")
            )
            width = max(losses) - min(losses)
            passed = math.isfinite(loss) and min(losses) - width <= loss <= max(losses) + width
            yield Point(network, number + 1, loss, error, losses, errors, passed)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line an epoch."""
    headers = ["network", "epoch", "loss, plain", "library, all seeds", "error, plain", "library, all seeds"]
    cells = [
        [
            row["network"],
            str(row["epoch"]),
            f"{row['loss']:.3f}",
            ", ".join(f"{loss:.3f}" for loss in row["losses"]),
            f"{row['error']:.2f} %",
            ", ".join(f"{error:.2f}" for error in row["errors"]),
        ]
        for row in rows
    ]
    return markdown(headers, cells)


def _plain_curve(recipe: Recipe, dataset: Dataset, device: torch.device) -> Iterator[tuple[float, float]]:
    loop = PlainLoop(recipe, dataset, device)
    images, steps = len(loop.task.train), loop.steps_per_epoch
    sizes = torch.full([steps], recipe.batch_size, dtype=torch.float64)
    sizes[-1] = images - (steps - 1) * recipe.batch_size
    for _ in range(recipe.epochs):
        before = len(loop.losses)
        for _ in range(steps):
            loop.step()
        loss = torch.stack(loop.losses[before:]).cpu().double() @ sizes / images
        measured = evaluate(loop.model, loop.task, recipe)
        assert measured is not None
        yield float(loss), measured["error"]


def _library_curves(
    recipe: Recipe, dataset: Dataset, device: torch.device, seeds: int
) -> list[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(Path(folder, str(seed))) for seed in range(seeds)]
        recipes = [recipe.with_(seed=seed) for seed in range(seeds)]
        fit_many(recipes, runs, data={dataset.name: dataset}, device=device, progress=False)
        return [run.read_metrics() for run in runs]
