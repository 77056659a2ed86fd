"""Progress on stderr: a bar on a terminal, lines anywhere else, or nothing. No torch."""

from __future__ import annotations

import sys
import time
from typing import Any, Self


class Display:
    """The display of `name`, of whose `total` parts `done` are finished.

    form  what tqdm shows behind the bar
    """

    def __init__(self, name: str, done: int, total: int, form: str, *, is_shown: bool) -> None:
        self._name, self._total = name, total
        self._started = time.monotonic()
        # A program without a console (pythonw) has no stderr.
        self._is_shown = is_shown and sys.stderr is not None
        self._bar: Any = None
        if self._is_shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=name,
                initial=done,
                total=total,
                file=sys.stderr,
                mininterval=0.5,
                dynamic_ncols=True,
                bar_format=f"{{desc}} |{{bar}}| {form}",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def reach(self, done: int) -> None:
        """Show that `done` parts are finished."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def print_line(self, text: str) -> None:
        """Print a line, unless there is a bar."""
        if self._is_shown and self._bar is None:
            print(text, file=sys.stderr, flush=True)


class Progress(Display):
    """The steps of a run, with the last score, or the loss, and the time left; or a line an epoch."""

    def __init__(self, name: str, done: int, total: int, *, is_shown: bool) -> None:
        super().__init__(name, done, total, "{percentage:.0f}%{postfix}, {remaining}", is_shown=is_shown)
        self._first, self._score = done, ""

    def step(self, done: int, loss: float) -> None:
        """Note that `done` steps of the run are finished; `loss` is that of the last one."""
        if self._bar is not None:
            self._bar.set_postfix_str(self._score or f"loss {loss:.3g}", refresh=False)
        self.reach(done)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Note that an epoch was measured."""
        is_psnr = "psnr" in metrics
        self._score = f"psnr {metrics['psnr']:.2f} dB" if is_psnr else f"error {metrics['error']:.2f} %"
        done = metrics["step"]
        rate = (time.monotonic() - self._started) / max(done - self._first, 1)
        self.print_line(
            f"{self._name}: epoch {metrics['epoch']}, step {done}/{self._total}, "
            f"loss {metrics['train_loss']:.4g}, {self._score}, {rate * (self._total - done):.0f} s left"
        )
