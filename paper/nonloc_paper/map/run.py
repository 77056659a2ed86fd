"""run_part: train the runs of a part of the map, many side by side; each becomes a line of its table.

A row is {"cell", "rate", "init", "form", "blocks", "seed", "ending", "step", "first_loss", "last_loss", "mean_loss",
"error", "test_loss", "epochs", "seconds", "side_by_side", "device", "recipe_sha256", "before_error", "before",
"after"}:

    ending        "converged" (it ran to its end, however badly) or "diverged"
    step          the first step, from 0, whose loss was not finite; null if there was none
    first_loss    of step 0; null for a run that was interrupted on its way
    last_loss     the last finite one: of the last step, or of the step before the divergence
    mean_loss     over the LAST_LOSSES steps up to that one
    error         on the test images after the last epoch, %; null for a run that diverged
    epochs        [{"epoch", "train_loss", "test_loss", "error"}] of the whole epochs
    seconds       of work, with `side_by_side` runs under way at once
    before        the last steps before a divergence, as `Watcher.before`
    after         the stages near the end of a run that came to it, as `Watcher.after`; null for one that diverged
    before_error  why the stages could not be measured; null if they were
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nonloc.outcomes import LockedRunError
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.map.cells import MapCell, MapPart
from nonloc_paper.map.table import MapTable
from nonloc_paper.map.watcher import Watcher
from nonloc_paper.runs import Run
from nonloc_paper.training.machine import device_or_best
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.scheduler import SIDE_BY_SIDE, Ending, SharedData, fit_many

LAST_LOSSES = 50
EPOCH_FIELDS = ("epoch", "train_loss", "test_loss", "error")


@dataclass(frozen=True)
class MapProgress:
    """How far `run_part` came.

    total   runs of the part
    new     how many of them were finished now
    left    (cell, seed) of those that still have to be run, or run on
    reason  why it stopped before the end, as a sentence; empty if it did not
    signal  the number of the signal that stopped it
    """

    total: int
    new: int
    left: tuple[tuple[MapCell, int], ...]
    reason: str = ""
    signal: int | None = None


def run_part(
    part: MapPart,
    table: MapTable,
    working: str | os.PathLike[str],
    *,
    data: Mapping[str, Dataset] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    budget: float | None = None,
    side_by_side: int | None = None,
    tell: Callable[[int, Recipe], None] = lambda index, recipe: None,
) -> MapProgress:
    """Train all runs of `part` that `table` does not have, and add a row for each as it ends.

    A run's folder is in `working` while it is trained, and removed once its row is in the table. SIGINT, SIGTERM and
    a spent `budget` (seconds) end the call with the running runs saved; the same call continues them. A run that fails
    does not stop the others; its error is raised at the end.

    tell  called with the number of runs begun before this one, and the recipe
    """
    where = device_or_best(device)
    shared = SharedData(where, data, data_dir)
    planned = [(cell, seed, cell.recipe(part.base, seed)) for cell, seed in part.runs()]
    todo = [(cell, seed, recipe) for cell, seed, recipe in planned if not table.has(cell, seed, recipe)]
    if not todo:
        return MapProgress(len(planned), 0, ())
    folder = Path(working) / part.name
    runs = {recipe: Run(folder / recipe.name) for _, _, recipe in todo}
    at_once = min(side_by_side or (SIDE_BY_SIDE if where.type == "cuda" else 1), len(todo))
    watcher = Watcher()
    errors: list[Exception] = []
    begun = set[Recipe]()
    under_way, started, seconds = todo, time.monotonic(), budget

    def begin(index: int) -> None:
        recipe = under_way[index][2]
        tell(len(planned) - len(todo) + len(begun - {recipe}), recipe)
        begun.add(recipe)

    def end(index: int, ending: Ending) -> None:
        cell, seed, recipe = under_way[index]
        try:
            if ending.error is not None:
                raise ending.error
            if ending.has_result and watcher.saw_the_end(ending.run):
                row = cell.to_dict() | {"seed": seed}
                row |= _measured(ending.run, recipe, shared.load(recipe.data), where, watcher)
                table.append(row | {"side_by_side": at_once, "recipe_sha256": recipe.sha256})
            if ending.has_result:
                # Stopped after its last step and before its end it was not watched: without a row it is done again.
                shutil.rmtree(ending.run.path)
        except Exception as error:
            errors.append(error)
        finally:
            watcher.forget(ending.run)

    with Run(folder / "table").lock():
        for run in runs.values():
            # Its last steps were not watched, so its row cannot be written: it is done again.
            if run.is_finished:
                shutil.rmtree(run.path)
        while under_way:
            recipes = [recipe for _, _, recipe in under_way]
            endings = fit_many(
                recipes,
                [runs[recipe] for recipe in recipes],
                side_by_side=side_by_side,
                data=shared,
                device=where,
                progress=False,
                stop_after=seconds,
                watch=watcher,
                begun=begin,
                ended=end,
            )
            missing = [one for one in under_way if not table.has(*one)]
            under_way = [] if errors or endings.reason else missing
            seconds = None if budget is None else max(0.0, budget - (time.monotonic() - started))
    for error in errors:
        if not isinstance(error, LockedRunError):
            raise error
    left = tuple((cell, seed) for cell, seed, recipe in todo if not table.has(cell, seed, recipe))
    return MapProgress(len(planned), len(todo) - len(left), left, endings.reason, endings.signal)


def _measured(
    run: Run, recipe: Recipe, data: Dataset, device: torch.device, watcher: Watcher
) -> dict[str, Any]:
    result, metrics, losses = run.read_result(), run.read_metrics(), watcher.losses(run)
    outcome = result["outcome"]
    has_diverged = outcome["ending"] == "diverged"
    before: list[dict[str, Any]] = []
    after = trouble = None
    if has_diverged:
        losses = {step: loss for step, loss in losses.items() if step < outcome["step"]}
    try:
        if has_diverged:
            before = watcher.before(run, recipe, data, device, outcome["step"])
        else:
            after = watcher.after(run, recipe, data, device)
    except Exception as error:
        # The ending is known all the same; the run must not be repeated.
        trouble = f"{type(error).__name__}: {error}"
    last = max(losses, default=None)
    recent = [losses[step] for step in sorted(losses)[-LAST_LOSSES:]]
    return {
        "ending": outcome["ending"],
        "step": outcome["step"] if has_diverged else None,
        "first_loss": losses.get(0),
        "last_loss": None if last is None else losses[last],
        "mean_loss": sum(recent) / len(recent) if recent else None,
        "error": None if has_diverged else result["metrics"].get("error"),
        "test_loss": None if has_diverged else result["metrics"].get("test_loss"),
        "epochs": [{name: line.get(name) for name in EPOCH_FIELDS} for line in metrics],
        "seconds": result["seconds"],
        "device": result["machine"]["device"],
        "before_error": trouble,
        "before": before,
        "after": after,
    }
