"""kill -9 as an experiment: kill small runs, resume them, and compare their ends with a run that was never killed.

The tests in test_kill.py start this file in processes of their own.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tiny import timeless_metrics, tiny_recipe, train

from nonloc_paper.runs import TEMPORARY, Run, replaced_name
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session

MOMENTS = ("before the tensors", "before the manifest", "in a line of metrics", "before the save of an epoch")
SHORT = tiny_recipe(epochs=2, spectrum_epochs=(1,))
LONG = tiny_recipe(epochs=16, spectrum_epochs=(3,))
PATIENCE = 120.0  # seconds until a victim must have shown a sign of life
ATTEMPTS = 9  # how often to try to hit a save, which takes a few milliseconds


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


@dataclass(frozen=True)
class Trial:
    """One run that was killed and resumed; `left` are the temporary files that the kill left behind."""

    in_save: bool
    left: tuple[str, ...]
    resumed_at: int
    is_equal: bool


def experiment(folder: Path, kills: int, seed: int = 0) -> list[Trial]:
    """Kill one new run after another from outside: in turn at a random moment and during a save."""
    chance = random.Random(seed)
    whole = Run(folder / "whole")
    work_in(whole, LONG)
    [*_, last] = whole.read_metrics()
    trials = []
    for number in range(kills):
        run, step, in_save = Run(folder / f"killed-{number}"), chance.randrange(64), number % 2 == 1
        if in_save:
            left = kill_during_save(run, step, chance.choice((".safetensors", ".json")))
        else:
            left = kill_at_random(run, step, chance.uniform(0, last["seconds"] / last["step"]))
        resumed_at = saved_steps(run)
        work_in(run, LONG)
        trials.append(Trial(in_save, left, resumed_at, ending(run) == ending(whole)))
    return trials


def kill_at_random(run: Run, step: int, delay: float) -> tuple[str, ...]:
    """Kill the run `delay` seconds after `step` was saved; after step 0, while it gets ready to train."""
    process = start(run)
    pid = str(process.pid)
    wait_until(lambda: run.lock_path.exists() and run.lock_path.read_text().strip() == pid, process)
    wait_until(lambda: saved_steps(run) >= step, process)
    time.sleep(delay)
    kill(process)
    return temporaries(run)


def kill_during_save(run: Run, step: int, kind: str) -> tuple[str, ...]:
    """Kill the run during a save after `step`, proved by the temporary file that it leaves.

    `kind` is the file to wait for: ".safetensors", or ".json" for a kill between the two renames.
    """
    for _ in range(ATTEMPTS):
        process = start(run)
        # The temporary files of an earlier process are removed by the next save.
        wait_until(lambda step=step: saved_steps(run) >= step and not temporaries(run), process)
        while process.poll() is None and not any(
            (replaced_name(name) or "").endswith(kind) for name in temporaries(run)
        ):
            pass
        kill(process)
        if left := temporaries(run):
            return left
        step = saved_steps(run)
    raise RuntimeError(f"no save was hit in {ATTEMPTS} attempts")


def start(run: Run) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--victim", str(run.path)])


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError("the run came to its end before it was killed; make it longer")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the run ended, or did nothing, before it was killed")
        time.sleep(0.0005)


def temporaries(run: Run) -> tuple[str, ...]:
    if not run.checkpoints_path.exists():
        return ()
    return tuple(name for name in os.listdir(run.checkpoints_path) if name.endswith(TEMPORARY))


def saved_steps(run: Run) -> int:
    """The step of the newest checkpoint."""
    return max((int(path.stem) for path in run.checkpoints_path.glob("*.json")), default=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exact", help="leave killed runs in this folder, one for each exact moment")
    parser.add_argument("--victim", help="train in this folder: what the experiment starts and kills")
    arguments = parser.parse_args()
    if arguments.victim:
        work_in(Run(arguments.victim), LONG)
    if arguments.exact:
        kill_at_moments(Path(arguments.exact))


if __name__ == "__main__":
    main()
