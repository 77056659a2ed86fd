"""train_all_by_ray: many recipes as tasks of a Ray cluster, on as many machines as it has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nonloc._checks import check_whole
from nonloc.outcomes import NonlocError
from nonloc_paper.paths import real_path
from nonloc_paper.runs import Run
from nonloc_paper.suites.train_all import SuiteProgress, train_all
from nonloc_paper.training.machine import machine
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.scheduler import SIDE_BY_SIDE
from nonloc_paper.training.stopping import Stopping

POLL = 0.5  # seconds between two looks at signals and the budget


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
    try:
        import ray
    except ImportError as error:
        raise ImportError("the engine ray needs Ray; pip install 'nonloc-paper[ray]'") from error
    side_by_side = SIDE_BY_SIDE if side_by_side is None else side_by_side
    check_whole("side_by_side", side_by_side)
    if not ray.is_initialized():
        # What workers print would mix with the one JSON object on stdout.
        ray.init(include_dashboard=False, logging_level="warning", log_to_driver=False)
    if device is None:
        device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
    is_cuda = device.startswith("cuda")
    threads = torch.get_num_threads()
    task = ray.remote(_train).options(
        num_cpus=1 if is_cuda else threads, num_gpus=1 / side_by_side if is_cuda else 0, max_retries=3
    )
    until = None if budget is None else time.time() + budget
    where = real_path(folder)
    data_dir = None if data_dir is None else real_path(data_dir)
    waiting = {task.remote(recipe, where, data_dir, device, threads, until): recipe for recipe in recipes}
    ended: list[tuple[SuiteProgress, str, float]] = []
    errors: list[Exception] = []
    is_stopped = False
    with Stopping(budget) as stopping:
        while waiting:
            if stopping.signal is not None and not is_stopped:
                is_stopped = True
                for reference in waiting:
                    ray.cancel(reference)  # as by SIGINT: the run is saved
            for reference in ray.wait(list(waiting), timeout=POLL)[0]:
                recipe = waiting.pop(reference)
                tell(len(recipes) - len(waiting) - 1, recipe)
                try:
                    ended.append(ray.get(reference))
                except ray.exceptions.TaskCancelledError:
                    pass
                except ray.exceptions.RayError as error:
                    errors.append(NonlocError(f"{recipe.name}: Ray could not run it: {error}"))
    spent: dict[str, float] = {}
    for _, name, seconds in ended:
        spent[name] = spent.get(name, 0.0) + (seconds / side_by_side if is_cuda else seconds)
    done = tuple(recipe for recipe in recipes if _is_finished(where / recipe.name))
    left = tuple(recipe for recipe in recipes if recipe not in done)
    return SuiteProgress(
        done=done,
        left=left,
        locked=tuple(recipe for one, _, _ in ended for recipe in one.locked),
        reason=stopping.reason if left else "",
        signal=None if stopping.signal is None else int(stopping.signal),
        errors=tuple(error for one, _, _ in ended for error in one.errors) + tuple(errors),
        spent=spent,
    )


def _is_finished(path: Path) -> bool:
    try:
        return Run(path).is_finished
    except (ValueError, OSError):  # something else has this name: its task has returned the error
        return False


def _train(
    recipe: Recipe, folder: Path, data_dir: Path | None, device: str, threads: int, until: float | None
) -> tuple[SuiteProgress, str, float]:
    """Train one recipe in a worker; return how it went, the device's name and the seconds."""
    started = time.monotonic()
    torch.set_num_threads(threads)
    budget = None if until is None else max(0.0, until - time.time())
    progress = train_all(
        [recipe], folder, data_dir=data_dir, device=device, budget=budget, side_by_side=1, progress=False
    )
    return progress, machine(torch.device(device))["device"], time.monotonic() - started
