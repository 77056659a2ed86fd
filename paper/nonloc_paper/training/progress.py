"""Progress on stderr: a bar on a terminal, one line an epoch anywhere else, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

try:
    from tqdm import tqdm
except ImportError:  # an extra; without it there are lines
    tqdm = None


class Progress(Protocol):
    """What the loop tells its audience."""

    def step(self, done: int, loss: float) -> None:
        """`done` steps of the run are finished; `loss` is the last one's."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """An epoch was measured."""

    def close(self) -> None:
        """No more will come."""


class Silence:
    """Shows nothing."""

    def step(self, done: int, loss: float) -> None:
        pass

    def epoch(self, metrics: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    """A tqdm bar over the steps with the loss, the last score and the time left."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._bar = tqdm(desc=name, initial=done, total=total, unit="step", file=sys.stderr, mininterval=0.5)
        self._score = ""

    def step(self, done: int, loss: float) -> None:
        self._bar.set_postfix_str(f"loss {loss:.4g}{self._score}", refresh=False)
        self._bar.update(done - self._bar.n)

    def epoch(self, metrics: dict[str, Any]) -> None:
        self._score = f", {score_text(metrics)}"

    def close(self) -> None:
        self._bar.close()


class Lines:
    """One line an epoch, fit for a log."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._name, self._first, self._total = name, done, total
        self._started = time.monotonic()

    def step(self, done: int, loss: float) -> None:
        pass

    def epoch(self, metrics: dict[str, Any]) -> None:
        done = metrics["step"]
        rate = (time.monotonic() - self._started) / max(done - self._first, 1)
        print(
            f"{self._name}: epoch {metrics['epoch']}, step {done}/{self._total}, "
            f"loss {metrics['train_loss']:.4g}, {score_text(metrics)}, "
            f"{rate * (self._total - done):.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        pass


def make_progress(shown: bool, name: str, done: int, total: int) -> Progress:
    """What shows the progress of the run `name`, of whose `total` steps `done` are finished already."""
    # A program without a console (pythonw) has no stderr at all.
    if not shown or sys.stderr is None:
        return Silence()
    if tqdm is not None and sys.stderr.isatty():
        return Bar(name, done, total)
    return Lines(name, done, total)


def score_text(metrics: dict[str, Any]) -> str:
    return f"psnr {metrics['psnr']:.2f} dB" if "psnr" in metrics else f"error {metrics['error']:.2f} %"
