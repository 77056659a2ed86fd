"""Progress on stderr: a bar on a terminal, one line an epoch anywhere else, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm


class Progress:
    """Shows nothing; the base of what shows something."""

    def step(self, done: int, loss: float) -> None:
        """Note that `done` steps of the run are finished; `loss` is that of the last one."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Note that an epoch was measured."""

    def close(self) -> None:
        """End the display."""


class Bar(Progress):
    """A tqdm bar over the steps, as wide as the terminal, with the last score, or the loss, and the time left."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._bar = tqdm(
            desc=name,
            initial=done,
            total=total,
            file=sys.stderr,
            mininterval=0.5,
            dynamic_ncols=True,
            bar_format="{desc} |{bar}| {percentage:.0f}%{postfix}, {remaining}",
        )
        self._score = ""

    def step(self, done: int, loss: float) -> None:
        self._bar.set_postfix_str(self._score or f"loss {loss:.3g}", refresh=False)
        self._bar.update(done - self._bar.n)

    def epoch(self, metrics: dict[str, Any]) -> None:
        self._score = score_text(metrics)

    def close(self) -> None:
        self._bar.close()


class Lines(Progress):
    """One line an epoch, for a log."""

    def __init__(self, name: str, done: int, total: int) -> None:
        self._name, self._first, self._total = name, done, total
        self._started = time.monotonic()

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


def make_progress(shown: bool, name: str, done: int, total: int) -> Progress:
    """Return the display of the run `name`, of whose `total` steps `done` are finished."""
    # A program without a console (pythonw) has no stderr.
    if not shown or sys.stderr is None:
        return Progress()
    if sys.stderr.isatty():
        return Bar(name, done, total)
    return Lines(name, done, total)


def score_text(metrics: dict[str, Any]) -> str:
    """Return the score of an epoch with its name and unit."""
    return f"psnr {metrics['psnr']:.2f} dB" if "psnr" in metrics else f"error {metrics['error']:.2f} %"
