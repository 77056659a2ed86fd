"""Progress on stderr: a bar on a terminal, one line an epoch anywhere else, or nothing."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm


class Progress:
    """The display of the run `name`, of whose `total` steps `done` are finished.

    The bar is over the steps, as wide as the terminal, with the last score, or the loss, and the time left.
    """

    def __init__(self, name: str, done: int, total: int, *, is_shown: bool) -> None:
        self._name, self._first, self._total = name, done, total
        self._started = time.monotonic()
        self._score = ""
        # A program without a console (pythonw) has no stderr.
        self._is_shown = is_shown and sys.stderr is not None
        self._bar: Any = None
        if self._is_shown and sys.stderr.isatty():
            self._bar = tqdm(
                desc=name,
                initial=done,
                total=total,
                file=sys.stderr,
                mininterval=0.5,
                dynamic_ncols=True,
                bar_format="{desc} |{bar}| {percentage:.0f}%{postfix}, {remaining}",
            )

    def step(self, done: int, loss: float) -> None:
        """Note that `done` steps of the run are finished; `loss` is that of the last one."""
        if self._bar is not None:
            self._bar.set_postfix_str(self._score or f"loss {loss:.3g}", refresh=False)
            self._bar.update(done - self._bar.n)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Note that an epoch was measured."""
        is_psnr = "psnr" in metrics
        self._score = f"psnr {metrics['psnr']:.2f} dB" if is_psnr else f"error {metrics['error']:.2f} %"
        if self._is_shown and self._bar is None:
            done = metrics["step"]
            rate = (time.monotonic() - self._started) / max(done - self._first, 1)
            print(
                f"{self._name}: epoch {metrics['epoch']}, step {done}/{self._total}, "
                f"loss {metrics['train_loss']:.4g}, {self._score}, {rate * (self._total - done):.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """End the display."""
        if self._bar is not None:
            self._bar.close()
