"""train_all_by_ray: many recipes as tasks of a Ray cluster, on as many machines as it has."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from nonloc._checks import check_whole
from nonloc.outcomes import NonlocError
from nonloc_paper.paths import real_path
from nonloc_paper.suites.train_all import SuiteProgress, is_finished, train_all
from nonloc_paper.training.machine import machine
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.scheduler import SIDE_BY_SIDE
from nonloc_paper.training.stopping import Stopping

POLL = 0.5  # seconds between two looks at signals
RETRIES = 3  # of a task that loses its worker

TaskEnding = tuple[SuiteProgress, str, float]
"""(how a task went, the name of its device, its seconds)"""


def train_all_by_ray(
    recipes: Sequence[Recipe],
    folder: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    budget: float | None = None,
    side_by_side: int | None = None,
    tell: Callable[[int, Recipe], None] = lambda index, recipe: None,
) -> SuiteProgress:
    """`train_all`, with one task of Ray for each recipe. All machines must share `folder` and `data_dir`.

    A task that loses its worker is begun again, on any machine, and continues its run from the last checkpoint. Ray's
    own settings say which cluster: RAY_ADDRESS, or this machine.

    device        None is "cuda" if the cluster has GPUs, else "cpu"
    side_by_side  how many tasks share a GPU; on the CPU a task takes as many cores as torch has threads here
    tell          called after each run with how many ended before it, and its recipe
    """
    import ray

    side_by_side = SIDE_BY_SIDE if side_by_side is None else side_by_side
    check_whole("side_by_side", side_by_side)
    where = real_path(folder)
    data_dir = None if data_dir is None else real_path(data_dir)
    threads = torch.get_num_threads()
    until = None if budget is None else time.time() + budget
    is_ours = not ray.is_initialized()
    # Ray prints on stdout, which is for the result alone.
    with redirect_stdout(sys.stderr):
        if is_ours:
            ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
        try:
            if device is None:
                device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
            gpus = 1 / side_by_side if device.startswith("cuda") else 0
            cpus = 1 if gpus else threads
            task = ray.remote(_train).options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)
            # After ray.init, which installs handlers of signals, too.
            with Stopping(budget) as stopping:
                _warn_of_too_little(ray, cpus, gpus)
                waiting = {task.remote(one, where, data_dir, device, threads, until): one for one in recipes}
                endings, errors = _wait_for(ray, waiting, stopping, tell)
        finally:
            if is_ours:
                ray.shutdown()
    spent: dict[str, float] = {}
    for _, name, seconds in endings:
        spent[name] = spent.get(name, 0.0) + seconds * (gpus or 1)
    done = tuple(recipe for recipe in recipes if is_finished(where / recipe.name))
    left = tuple(recipe for recipe in recipes if recipe not in done)
    return SuiteProgress(
        done=done,
        left=left,
        locked=tuple(recipe for progress, _, _ in endings for recipe in progress.locked),
        reason=stopping.reason if left else "",
        signal=stopping.signal,
        errors=tuple(error for progress, _, _ in endings for error in progress.errors) + tuple(errors),
        spent=spent,
    )


def _warn_of_too_little(ray: Any, cpus: int, gpus: float) -> None:
    """Warn where no machine can take a task. That is no error: clusters may grow."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(one.get("CPU", 0) >= cpus and one.get("GPU", 0) >= gpus for one in machines):
        what = "a GPU" if gpus else f"{cpus} cores, as many as torch has threads here"
        fix = "choose --device cpu" if gpus else "fewer --threads ask for less"
        warnings.warn(f"no machine of the cluster has {what}: runs wait until one joins; {fix}", stacklevel=3)


def _wait_for(
    ray: Any, waiting: dict[Any, Recipe], stopping: Stopping, tell: Callable[[int, Recipe], None]
) -> tuple[list[TaskEnding], list[Exception]]:
    """Return how the tasks ended, and the errors of those that Ray could not bring to an end."""
    endings: list[TaskEnding] = []
    errors: list[Exception] = []
    total, is_cancelled = len(waiting), False
    while waiting:
        if stopping.signal is not None and not is_cancelled:
            is_cancelled = True
            for reference in waiting:
                ray.cancel(reference)  # for a worker it is a SIGINT: the run is saved
        for reference in ray.wait(list(waiting), timeout=POLL)[0]:
            recipe = waiting.pop(reference)
            tell(total - len(waiting) - 1, recipe)
            try:
                endings.append(ray.get(reference))
            except ray.exceptions.TaskCancelledError:
                continue
            except ray.exceptions.RayError as error:
                errors.append(NonlocError(f"{recipe.name}: Ray could not run it: {error}"))
    return endings, errors


def _train(
    recipe: Recipe, folder: Path, data_dir: Path | None, device: str, threads: int, until: float | None
) -> TaskEnding:
    """Train one recipe, in a worker."""
    started = time.monotonic()
    torch.set_num_threads(threads)
    budget = None if until is None else max(0.0, until - time.time())
    progress = train_all(
        [recipe], folder, data_dir=data_dir, device=device, budget=budget, side_by_side=1, progress=False
    )
    return progress, machine(torch.device(device))["device"], time.monotonic() - started
