"""Small runs that train in forked processes, where they are killed or stopped. The parent trains nothing itself."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import torch
from killing import ending
from tiny import tiny_recipe, train

from nonloc_paper.runs import Run

FORK: ForkContext = multiprocessing.get_context("fork")
LONG = tiny_recipe(epochs=8, spectrum_epochs=(3,))  # 40 steps
PATIENCE = 120.0  # seconds until a child must have shown a sign of life


def work_in(run: Run) -> None:
    """Train, or continue, a run that saves after every step."""
    train(LONG, run, checkpoint_steps=1)


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


def whole_run(folder: Path) -> Run:
    """Train the run that nothing happens to."""
    run = Run(folder / "whole")
    if do(work_in, run) != 0:
        raise RuntimeError("the run that nothing happens to did not come to its end")
    return run


def end_of(run: Run, whole: Run) -> str | None:
    """Continue a run to its end; return what differs from `whole`, None if nothing does."""
    if do(work_in, run) != 0:
        return "the run could not go on"
    return None if ending(run) == ending(whole) else "the end is not that of the whole run"


def wait_until(condition: Callable[[], bool], process: ForkProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if not process.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the run ended, or did nothing, before it was reached")
        time.sleep(0.0005)
