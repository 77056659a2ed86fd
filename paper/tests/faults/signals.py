"""SIGTERM and SIGINT: a run ends saved, with at most one step lost, and goes on to the same end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from killing import newest_step
from tiny import train

from faults._children import FORK, LONG, start, trials_of, wait_until
from faults.trial import Trial
from nonloc_paper.runs import Run
from nonloc_paper.training.session import Session

GOALS = {"SIGTERM": 50, "SIGINT": 50}


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    return trials_of(GOALS, folder, partial(stop, chance))


def stop(chance: random.Random, run: Run, kind: str, whole: Run) -> tuple[str | None, str]:
    last = whole.read_metrics()[-1]
    step, delay = chance.randrange(1, 32), chance.uniform(0, 2 * last["seconds"] / last["step"])
    begun = FORK.Value("q", 0)
    process = start(count_steps, run, begun)
    wait_until(lambda: begun.value >= step, process)
    time.sleep(delay)
    before = begun.value
    os.kill(process.pid or 0, signal.Signals[kind])
    process.join()
    lost = before - newest_step(run)
    failure = None
    if process.exitcode != 0:
        failure = f"it ended with {process.exitcode}"
    elif lost > 1:
        failure = f"{lost} steps were lost"
    return failure, f"{kind} {1000 * delay:.1f} ms after step {step} began"


def count_steps(run: Run, begun: Synchronized[int]) -> None:
    """Train a run that saves at its stops and its end alone; count the steps that begin."""
    take_step = Session.take_step

    def count_and_take(session: Session) -> None:
        begun.value += 1
        take_step(session)

    Session.take_step = count_and_take  # type: ignore[method-assign]
    train(LONG, run, checkpoint_every=LONG.epochs)
