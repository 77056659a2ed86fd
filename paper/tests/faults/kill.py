"""kill -9: a run that is killed and resumed ends as the one that was never killed, to the last bit."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path

from killing import newest_step, temporaries, work_in

from faults._children import LONG, start, trials_of, wait_until
from faults.trial import Trial
from nonloc_paper.files import replaced_name
from nonloc_paper.runs import Run

GOALS = {"at random": 100, "during a save": 100}
ATTEMPTS = 9  # how often to try to hit a save, which takes a few milliseconds


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    return trials_of(GOALS, folder, partial(kill_run, chance))


def kill_run(chance: random.Random, run: Run, kind: str, whole: Run) -> tuple[None, str]:
    step = chance.randrange(32)
    if kind == "at random":
        last = whole.read_metrics()[-1]
        delay = chance.uniform(0, last["seconds"] / last["step"])
        kill_at_random(run, step, delay)
        return None, f"killed {1000 * delay:.1f} ms after step {step}"
    file = chance.choice((".safetensors", ".json"))
    kill_during_save(run, step, file)
    return None, f"killed while {file} was written, after step {step}"


def kill_at_random(run: Run, step: int, delay: float) -> None:
    """Kill the run `delay` seconds after `step` was saved; after step 0, while it gets ready to train."""
    process = start(work_in, run, LONG)
    pid = str(process.pid)
    wait_until(lambda: run.lock_path.exists() and run.lock_path.read_text().strip() == pid, process)
    wait_until(lambda: newest_step(run) >= step, process)
    time.sleep(delay)
    kill(process)


def kill_during_save(run: Run, step: int, kind: str) -> None:
    """Kill the run during a save after `step`, proved by the temporary file that it leaves.

    `kind` is the file to wait for: ".safetensors", or ".json" for a kill between the two renames.
    """
    for _ in range(ATTEMPTS):
        process = start(work_in, run, LONG)
        # The temporary files of an earlier process are removed by the next save.
        wait_until(lambda step=step: newest_step(run) >= step and not temporaries(run), process)
        while process.is_alive() and not any(
            (replaced_name(name) or "").endswith(kind) for name in temporaries(run)
        ):
            pass
        kill(process)
        if temporaries(run):
            return
        step = newest_step(run)
    raise RuntimeError(f"no save was hit in {ATTEMPTS} attempts")


def kill(process: ForkProcess) -> None:
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError("the run came to its end before it was killed; make it longer")
