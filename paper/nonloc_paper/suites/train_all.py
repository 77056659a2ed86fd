"""train_all: train many recipes into one folder of runs, through any number of interruptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nonloc.outcomes import LockedRunError, NonlocError
from nonloc_paper.runs import Run
from nonloc_paper.training.machine import device_or_best, machine
from nonloc_paper.training.observe import observe
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.scheduler import Ending, SharedData, fit_many


@dataclass(frozen=True)
class SuiteProgress:
    """How far `train_all` came.

    done      the recipes whose runs came to an end, good or bad, now or before
    left      those that still have to be run, or run on
    locked    those of them that another process is working on
    reason    why it stopped before the end, as a sentence; empty if it did not
    signal    the number of the signal that stopped it
    errors    of the runs that failed
    spent     seconds on each device by its name, where other machines have worked
    """

    done: tuple[Recipe, ...]
    left: tuple[Recipe, ...]
    locked: tuple[Recipe, ...] = ()
    reason: str = ""
    signal: int | None = None
    errors: tuple[Exception, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)


def train_all(
    recipes: Sequence[Recipe],
    folder: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    budget: float | None = None,
    side_by_side: int | None = None,
    progress: bool = True,
    others: Sequence[tuple[Recipe, Run]] = (),
    label: Callable[[Recipe], str] = lambda recipe: recipe.name,
    tell: Callable[[int, Recipe], None] = lambda index, recipe: None,
) -> SuiteProgress:
    """Train and observe every recipe in `folder`/<its name>, each unless it is finished.

    A diverged run is a result like any other. A run that another process holds is skipped, so two processes may work
    through one folder. A run that fails, or whose name something else has, does not stop the others; its error is in
    `SuiteProgress.errors`. SIGINT, SIGTERM and a spent `budget` (seconds) end the call with the running runs saved; the
    same call continues them.

    budget        runs known not to fit into the rest are begun last; a run's time is known from other seeds
    others        finished runs elsewhere, to know times from
    side_by_side  how many runs to train at once: None is 1 on the CPU, and on CUDA the number that gave most
                  finished runs an hour when it was measured
    label         returns the name of a run in the progress
    tell          called before each run with the number of its recipe, from 0, and the recipe
    """
    where = device_or_best(device)
    data = SharedData(where, data_dir=data_dir)
    locked: list[Recipe] = []
    errors: list[Exception] = []
    runs: dict[Recipe, Run] = {}
    for recipe in recipes:
        try:
            runs[recipe] = Run(Path(folder) / recipe.name)
        except (ValueError, OSError) as error:
            # Something else has the name of this run; the others have theirs.
            errors.append(error)
    usable = list(runs)

    seeds: dict[Recipe, list[Run]] = {}
    for recipe, run in (*runs.items(), *others):
        seeds.setdefault(recipe.with_(seed=0), []).append(run)
    device_name = machine(where)["device"]

    def may_fit(number: int, seconds: float) -> bool:
        """Whether a run has begun, or is not known to take more than so many seconds."""
        recipe = usable[number]
        try:
            times = seconds_of_whole_runs(seeds[recipe.with_(seed=0)], device_name)
            return runs[recipe].has_begun or not times or sum(times) / len(times) <= seconds
        except (NonlocError, OSError):
            # A damaged folder is reported when its run begins; the others can be chosen.
            return True

    def choose(left: Sequence[int], seconds: float | None) -> int:
        return next((number for number in left if seconds is None or may_fit(number, seconds)), left[0])

    def ended(number: int, ending: Ending) -> None:
        if isinstance(ending.error, LockedRunError):
            locked.append(ending.recipe)
        elif ending.error is not None:
            errors.append(ending.error)
        elif ending.has_result:
            try:
                observe(ending.run, data.loaded(ending.recipe.data), data_dir=data_dir, device=where)
            except Exception as error:
                errors.append(error)

    endings = fit_many(
        usable,
        list(runs.values()),
        side_by_side=side_by_side,
        data=data,
        device=where,
        progress=progress,
        stop_after=budget,
        labels=[label(recipe) for recipe in usable],
        choose=choose,
        begun=lambda number: tell(number, usable[number]),
        ended=ended,
    )
    done = {recipe for recipe, run in runs.items() if run.is_finished}
    return SuiteProgress(
        done=tuple(recipe for recipe in recipes if recipe in done),
        left=tuple(recipe for recipe in recipes if recipe not in done),
        locked=tuple(recipe for recipe in locked if recipe not in done),
        reason=endings.reason,
        signal=endings.signal,
        errors=tuple(errors),
    )


def is_finished(path: Path) -> bool:
    """Return whether there is a finished run; where something else has its name, training reports it."""
    try:
        return Run(path).is_finished
    except (ValueError, OSError):
        return False


def seconds_of_whole_runs(runs: Iterable[Run], device: str) -> list[float]:
    """Return the seconds of the runs that ran to their end on this device, and nowhere else.

    device  as result.json has it in machine.device
    """
    results = [run.read_result() for run in runs if run.is_finished]
    return [
        float(result["seconds"])
        for result in results
        if result["outcome"]["ending"] == "converged"
        and not result.get("earlier")
        and result["machine"]["device"] == device
    ]
