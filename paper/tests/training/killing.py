"""kill -9 at exact moments. test_kill.py starts this file as a process; faults/kill.py kills from outside."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny import saved_steps, timeless_metrics, tiny_recipe, train

from nonloc_paper.files import TEMPORARY
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session

MOMENTS = ("before the tensors", "before the manifest", "in a line of metrics", "before the save of an epoch")
SHORT = tiny_recipe(epochs=2, spectrum_epochs=(1,))


def work_in(run: Run, recipe: Recipe) -> None:
    """Train, or continue, a run that saves after every step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(recipe, run, checkpoint_steps=1)
    finally:
        torch.set_num_threads(threads)


def ending(run: Run) -> tuple[object, ...]:
    """What must be equal at the end."""
    return run.read_result()["weights_sha256"], timeless_metrics(run), run.read_spectra()


def kill_at_moments(folder: Path) -> None:
    """Train a run in a new process for each of MOMENTS, which kills itself there."""
    torch.set_num_threads(1)  # no thread is started, so that forking is safe
    for moment in MOMENTS:
        process = os.fork()
        if process == 0:
            kill_itself(moment)
            work_in(Run(folder / moment), SHORT)
            os._exit(1)
        if os.waitpid(process, 0)[1] != signal.SIGKILL:
            raise RuntimeError(f"the run was not killed {moment}")


def kill_itself(moment: str) -> None:
    """Let this process kill itself, by SIGKILL, when its run comes to `moment`."""
    replace, fsync, save = os.replace, os.fsync, Session.save
    die = partial(os.kill, os.getpid(), signal.SIGKILL)
    name = {"before the tensors": "00000004.safetensors", "before the manifest": "00000007.json"}.get(moment)

    def replace_or_die(source: Any, target: Any) -> None:
        if Path(target).name == name:
            die()
        replace(source, target)

    def fsync_or_die(handle: int) -> None:
        is_metrics = os.readlink(f"/proc/self/fd/{handle}").endswith("metrics.jsonl")
        if moment == "in a line of metrics" and is_metrics:
            os.ftruncate(handle, os.fstat(handle).st_size - 9)
            die()
        fsync(handle)

    def save_or_die(session: Session) -> None:
        if moment == "before the save of an epoch" and (session.epoch, session.step_in_epoch) == (1, 0):
            die()
        save(session)

    os.replace, os.fsync, Session.save = replace_or_die, fsync_or_die, save_or_die  # type: ignore[assignment]


def temporaries(run: Run) -> tuple[str, ...]:
    if not run.checkpoints_path.exists():
        return ()
    return tuple(name for name in os.listdir(run.checkpoints_path) if name.endswith(TEMPORARY))


def newest_step(run: Run) -> int:
    """The step of the newest checkpoint; 0 without any."""
    return max(saved_steps(run), default=0)


if __name__ == "__main__":
    kill_at_moments(Path(sys.argv[1]))
