"""The first epochs of training by a plain PyTorch loop and by the library: one learning curve, or not."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.side_by_side import PlainLoop
from benchmarks.table import markdown
from benchmarks.training_step import NETWORKS
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.evaluate import evaluate
from nonloc_paper.training.many import fit_many
from nonloc_paper.training.recipe import Recipe

# If both ways draw from one distribution, one group of five lies above the other in 2 of 252 cases.
SEEDS = 5

Curve = list[tuple[float, float]]
"""(mean training loss, error in % after it) of each epoch"""


@dataclass(frozen=True)
class Point:
    """One epoch of all curves: the mean training losses over it, and the errors in % after it, seed by seed.

    passed  whether all losses are finite, and the plain loop's neither all above nor all below the library's
    """

    network: str
    epoch: int
    plain_losses: tuple[float, ...]
    losses: tuple[float, ...]
    plain_errors: tuple[float, ...]
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
    """For each network its first epochs at the paper's rate, by the plain loop and by the library, all seeds.

    changes  of the recipe, which is the paper's: in bfloat16 and channels-last on CUDA
    """
    if device.type == "cuda":
        changes = {"precision": "bfloat16", "channels_last": True} | changes
    for network in networks:
        recipe = Recipe(network, epochs=epochs, milestones=(), data=dataset.name, **changes)
        recipes = [recipe.with_(seed=seed) for seed in range(seeds)]
        tell(f"{network}: {epochs} epochs, {seeds} seeds, the library")
        found = _library_curves(recipes, dataset, device)
        tell(f"{network}: {epochs} epochs, {seeds} seeds, the plain loop")
        plain = _plain_curves(recipes, dataset, device)
        for number in range(epochs):
            (theirs, their_errors), (ours, our_errors) = (
                zip(*(curve[number] for curve in group), strict=True) for group in (plain, found)
            )
            overlap = min(theirs) <= max(ours) and min(ours) <= max(theirs)
            passed = overlap and all(math.isfinite(loss) for loss in (*theirs, *ours))
            yield Point(network, number + 1, theirs, ours, their_errors, our_errors, passed)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line an epoch."""
    headers = ["network", "epoch", "loss, plain loop", "the library", "error in %, plain loop", "the library"]
    cells = []
    for row in rows:
        losses = (", ".join(f"{loss:.3f}" for loss in row[name]) for name in ("plain_losses", "losses"))
        errors = (", ".join(f"{error:.1f}" for error in row[name]) for name in ("plain_errors", "errors"))
        cells.append([row["network"], str(row["epoch"]), *losses, *errors])
    return markdown(headers, cells)


def plain_curve(recipe: Recipe, dataset: Dataset, device: torch.device) -> Curve:
    """All epochs of the recipe by the plain loop."""
    loop, found = PlainLoop(recipe, dataset, device), []
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
        found.append((float(loss), measured["error"]))
    return found


def _plain_curves(recipes: Sequence[Recipe], dataset: Dataset, device: torch.device) -> list[Curve]:
    if device.type == "cpu":
        return [plain_curve(recipe, dataset, device) for recipe in recipes]
    # What the plain loop waits for is its host: processes of their own do not keep each other from the device.
    with ProcessPoolExecutor(len(recipes), get_context("spawn")) as pool:
        jobs = [pool.submit(plain_curve, recipe, dataset, device) for recipe in recipes]
        return [job.result() for job in jobs]


def _library_curves(recipes: Sequence[Recipe], dataset: Dataset, device: torch.device) -> list[Curve]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(Path(folder, str(number))) for number in range(len(recipes))]
        fit_many(recipes, runs, data={dataset.name: dataset}, device=device, progress=False)
        return [_curve(run, recipe.epochs) for run, recipe in zip(runs, recipes, strict=True)]


def _curve(run: Run, epochs: int) -> Curve:
    """With NaN for the epochs after a run diverged."""
    found = [(float(line["train_loss"]), float(line["error"])) for line in run.read_metrics()]
    return found + [(math.nan, math.nan)] * (epochs - len(found))
