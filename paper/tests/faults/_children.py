"""Small runs that train in forked processes, where they are broken off. The parent trains nothing itself."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import torch
from killing import ending, work_in
from tiny import tiny_recipe

from faults.trial import Trial
from nonloc_paper.runs import Run

FORK: ForkContext = multiprocessing.get_context("fork")
LONG = tiny_recipe(epochs=8, spectrum_epochs=(3,))  # 40 steps
PATIENCE = 120.0  # seconds until a child must have shown a sign of life


def start(work: Callable[..., object], *arguments: Any) -> ForkProcess:
    torch.set_num_threads(1)  # no thread is started, so that forking is safe
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


def do(work: Callable[..., object], *arguments: Any) -> int | None:
    """Do the work in a process; return its exit code."""
    process = start(work, *arguments)
    process.join()
    return process.exitcode


def trials_of(
    kinds: Iterable[str], folder: Path, break_off: Callable[[Run, str, Run], tuple[str | None, str]]
) -> Iterator[Trial]:
    """Yield a Trial of each kind in turn: a new run is broken off, and must go on to the end of a whole one.

    break_off  (run, kind, whole run) -> what is wrong already, None if nothing is; how it was broken off
    """
    whole = Run(folder / "whole")
    if do(work_in, whole, LONG) != 0:
        raise RuntimeError("the run that nothing happens to did not come to its end")
    while True:
        for kind in kinds:
            run = Run(folder / "broken")
            failure, how = break_off(run, kind, whole)
            if failure is None and do(work_in, run, LONG) != 0:
                failure = "the run could not go on"
            if failure is None and ending(run) != ending(whole):
                failure = "the end is not that of the whole run"
            shutil.rmtree(run.path)
            yield Trial(kind, failure and f"{failure}; {how}")


def wait_until(condition: Callable[[], bool], process: ForkProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if not process.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the run ended, or did nothing, before it was reached")
        time.sleep(0.0005)
