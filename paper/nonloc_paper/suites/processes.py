"""train_all_by_processes: many recipes by several processes of this machine, for networks too small for its cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch

from nonloc_paper.suites.train_all import SuiteProgress, is_finished, train_all
from nonloc_paper.training.recipe import Recipe


def train_all_by_processes(
    recipes: Sequence[Recipe],
    folder: str | os.PathLike[str],
    *,
    processes: int,
    data_dir: str | os.PathLike[str] | None = None,
    device: str | None = None,
    budget: float | None = None,
    **options: Any,
) -> SuiteProgress:
    """`train_all` here, with its options, and in other processes that begin elsewhere in the list.

    Locks keep them apart. What a process leaves that ends early, this one does.
    """
    common: dict[str, Any] = {"data_dir": data_dir, "device": device, **options}
    processes = min(processes, sum(not is_finished(Path(folder) / recipe.name) for recipe in recipes))
    if processes < 2:
        return train_all(recipes, folder, budget=budget, **common)
    until = None if budget is None else time.time() + budget
    # A forked process must not use torch's threads, and none may use CUDA.
    context = multiprocessing.get_context("spawn")
    helpers = []
    for number in range(1, processes):
        start = number * len(recipes) // processes
        order = [*recipes[start:], *recipes[:start]]
        arguments = (order, os.fspath(folder), data_dir, device, torch.get_num_threads(), until)
        helpers.append(context.Process(target=_help, args=arguments, daemon=False))
    # Ctrl-C reaches all processes: it waits until a helper can end without a traceback of its imports.
    resource_tracker.ensure_running()  # else its own start, within that of a helper, would not let it wait
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        for helper in helpers:
            helper.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    is_stopped = True
    try:
        progress = train_all(recipes, folder, budget=budget, **common)
        is_stopped = progress.signal is not None
    finally:
        for helper in helpers:
            if is_stopped:
                helper.terminate()  # a SIGTERM, which not every way to stop this process sends them: runs are saved
            helper.join()
    if not progress.left:
        return progress
    if progress.reason or progress.signal is not None:
        # Nothing is begun: this counts what the others have done.
        now = train_all(recipes, folder, budget=0.0, **common)
        return replace(progress, done=now.done, left=now.left)
    left = None if until is None else max(0.0, until - time.time())
    return train_all(recipes, folder, budget=left, **common)


def _help(
    recipes: Sequence[Recipe],
    folder: str,
    data_dir: Any,
    device: str | None,
    threads: int,
    until: float | None,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    torch.set_num_threads(threads)
    budget = None if until is None else max(0.0, until - time.time())
    train_all(recipes, folder, data_dir=data_dir, device=device, budget=budget, progress=False)
