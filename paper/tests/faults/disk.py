"""A full disk: the save fails with the file's name, all that was saved before stays, and the run goes on to its end."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from killing import newest_step, work_in

from faults._children import LONG, do, trials_of
from faults.trial import Trial
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import latest_valid

FAILED_AS_IT_SHOULD = 77
GOALS = {"a write": 25, "a sync": 25}


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    return trials_of(GOALS, folder, partial(fill_disk, chance))


def fill_disk(chance: random.Random, run: Run, kind: str, whole: Run) -> tuple[str | None, str]:
    largest = max(path.stat().st_size for path in whole.checkpoints_path.iterdir())
    number, room = chance.randrange(2, 150), chance.randrange(largest)
    code = do(work_until_full, run, kind, number, room)
    failure = None
    if code != FAILED_AS_IT_SHOULD:
        failure = f"it ended with {code}, not with an error that names a file of the run"
    elif newest_step(run) and latest_valid(run) is None:
        failure = "what was saved before is gone"
    return failure, f"{kind} failed at sync {number} with {room} bytes of room"


def work_until_full(run: Run, kind: str, number: int, room: int) -> None:
    """Train until the disk is full: from sync `number` on, writes beyond `room` bytes fail, or syncs do."""
    fsync, done = os.fsync, 0

    def fsync_or_fail(handle: int) -> None:
        nonlocal done
        done += 1
        if done >= number and kind == "a sync":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if done == number:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        fsync(handle)

    os.fsync = fsync_or_fail
    try:
        work_in(run, LONG)
    except OSError as error:
        if str(run.path) in str(error.filename):
            os._exit(FAILED_AS_IT_SHOULD)
        raise
