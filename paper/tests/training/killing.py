"""kill -9 as an experiment: kill a small run at random moments and during saves, resume it, compare the ends.

    python paper/tests/training/killing.py --kills 20

Each trial is a new run that is killed, in half of the trials while a temporary file lies in its checkpoints
folder, and then resumed to its end. It succeeds if the final weights, the spectra and all metrics but the
seconds are those of a run that was never killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc_paper.runs import TEMPORARY, Run, replaced_name
from nonloc_paper.training.loop import fit

MOMENTS = ("random", "save")
LAST_STEP = 80
PATIENCE = 120.0  # seconds until a victim must have shown a sign of life
ATTEMPTS = 9  # how often to try to hit a save, which takes a few milliseconds


@dataclass(frozen=True)
class Trial:
    """One killed and resumed run; `found` are the temporary files that each kill left behind."""

    moments: tuple[str, ...]
    found: tuple[tuple[str, ...], ...]
    resumed_at: int
    is_equal: bool


def experiment(folder: Path, plan: Sequence[tuple[str, ...]], seed: int = 0) -> list[Trial]:
    """One trial for each entry of `plan`, which says at what moments its run is killed in turn."""
    chance = random.Random(seed)
    whole = Run(folder / "whole")
    work_in(whole)
    [*_, last] = whole.read_metrics()
    step_seconds = last["seconds"] / last["step"]
    trials = []
    for number, moments in enumerate(plan):
        run = Run(folder / f"killed-{number}")
        found = []
        for kills_left in range(len(moments), 0, -1):
            step = some_step(run, chance, kills_left)
            if moments[-kills_left] == "save":
                found.append(kill_during_save(run, step, chance.choice((".safetensors", ".json"))))
            else:
                found.append(kill_at_random(run, step, chance.uniform(0, step_seconds)))
        resumed_at = saved_steps(run)
        work_in(run)
        trials.append(Trial(moments, tuple(found), resumed_at, ending(run) == ending(whole)))
    return trials


def some_step(run: Run, chance: random.Random, kills_left: int) -> int:
    """A step to come, early enough that the kills after this one find the run still at work."""
    done = saved_steps(run)
    return done + chance.randrange(max(1, int(0.8 * (LAST_STEP - done)) // kills_left))


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

    `kind` is the file waited for: ".safetensors", or ".json" for a kill between the two renames.
    """
    for _ in range(ATTEMPTS):
        process = start(run)
        wait_until(partial(has_saved, run, step), process)
        while process.poll() is None and not any(
            (replaced_name(name) or "").endswith(kind) for name in temporaries(run)
        ):
            pass
        kill(process)
        if found := temporaries(run):
            return found
        step = saved_steps(run)
    raise RuntimeError(f"no save was hit in {ATTEMPTS} attempts")


def has_saved(run: Run, step: int) -> bool:
    """Whether `step` was saved and no temporary file of an earlier process is left, which the next save removes."""
    return saved_steps(run) >= step and not temporaries(run)


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
    """How many steps the newest checkpoint holds."""
    return max((int(path.stem) for path in run.checkpoints_path.glob("*.json")), default=0)


def ending(run: Run) -> tuple[object, ...]:
    """What must be equal at the end."""
    return run.read_result()["weights_sha256"], timeless_metrics(run), run.read_spectra()


def work_in(run: Run) -> None:
    """Train, or go on with, a run of a few seconds that saves after every step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    recipe = tiny_recipe(epochs=LAST_STEP // 5, spectrum_epochs=(3,))
    try:
        fit(recipe, run, data=tiny_data(), device="cpu", progress=False, checkpoint_steps=1)
    finally:
        torch.set_num_threads(threads)


def main() -> int:
    parser = argparse.ArgumentParser(description="kill and resume small runs, and compare how they end")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--victim", help="train in this folder instead: what the experiment starts and kills")
    arguments = parser.parse_args()
    if arguments.victim:
        work_in(Run(arguments.victim))
        return 0
    plan = [(MOMENTS[number % 2],) for number in range(arguments.kills)]
    with tempfile.TemporaryDirectory() as folder:
        trials = experiment(Path(folder), plan, arguments.seed)
    for number, trial in enumerate(trials, start=1):
        left = ", ".join(trial.found[0]) or "no temporary file left"
        verdict = "equal" if trial.is_equal else "DIFFERENT"
        print(f"{number:3}  {trial.moments[0]:6} ({left}), resumed at step {trial.resumed_at}: {verdict}")
    equal = sum(trial.is_equal for trial in trials)
    print(f"{equal} of {len(trials)} ended as the run that was never killed")
    return 0 if equal == len(trials) else 1


if __name__ == "__main__":
    raise SystemExit(main())
