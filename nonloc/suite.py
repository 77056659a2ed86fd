"""train_all: many recipes into one folder of runs, through as many interruptions as it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nonloc.data.dataset import Dataset
from nonloc.data.load import load
from nonloc.outcomes import LockedRunError
from nonloc.runs import Run
from nonloc.training.loop import fit
from nonloc.training.observe import observe
from nonloc.training.recipe import Recipe
from nonloc.training.stopping import Stopping


@dataclass(frozen=True)
class Progress:
    """How far `train_all` came.

    done      the recipes whose runs came to an end, good or bad, now or before
    left      those that still have to be run, or run on
    locked    those of them that another process is working on
    reason    why it stopped before the end, as a sentence; empty if it did not
    signal    the number of the signal that stopped it
    """

    done: tuple[Recipe, ...]
    left: tuple[Recipe, ...]
    locked: tuple[Recipe, ...] = ()
    reason: str = ""
    signal: int | None = None


def train_all(
    recipes: Sequence[Recipe],
    folder: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    budget: float | None = None,
    progress: bool = True,
    tell: Callable[[int, Recipe], None] = lambda done, recipe: None,
) -> Progress:
    """Train and observe every recipe in `folder`/<its name>, each unless it is finished.

    A run that diverges is a result like any other. A run that another process holds is passed over, so two
    processes may work through one folder. SIGINT, SIGTERM and a spent `budget` (seconds) end the call with the
    current run saved; the same call goes on from there.

    tell  is told the number of each recipe, from 0, and the recipe, before its run
    """
    data: dict[str, Dataset] = {}
    locked: list[Recipe] = []
    started = time.monotonic()
    reason, signal = "", None
    with Stopping(budget) as stopping:
        for index, recipe in enumerate(recipes):
            if stopping.reason:
                reason, signal = stopping.reason, stopping.signal
                break
            tell(index, recipe)
            run = Run(Path(folder) / recipe.name)
            if recipe.data not in data and not run.is_finished:
                data[recipe.data] = load(recipe.data, data_dir)
            try:
                outcome = fit(
                    recipe,
                    run,
                    data=data.get(recipe.data),
                    data_dir=data_dir,
                    device=device,
                    progress=progress,
                    throw=False,
                    stop_after=None if budget is None else max(budget - (time.monotonic() - started), 0),
                )
            except LockedRunError:
                locked.append(recipe)
                continue
            if outcome.ending == "interrupted":
                reason, signal = outcome.message, outcome.metrics.get("signal")
                break
            observe(run, data.get(recipe.data), data_dir=data_dir, device=device or "cpu")
    finished = {recipe: Run(Path(folder) / recipe.name).is_finished for recipe in recipes}
    return Progress(
        done=tuple(recipe for recipe in recipes if finished[recipe]),
        left=tuple(recipe for recipe in recipes if not finished[recipe]),
        locked=tuple(locked),
        reason=reason,
        signal=None if signal is None else int(signal),
    )
