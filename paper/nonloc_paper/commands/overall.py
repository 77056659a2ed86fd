"""The overall line of a command with many runs: run k of n, beside the bar of the run itself."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from nonloc.cli.durations import format_duration
from nonloc_paper.training.recipe import Recipe


class Overall:
    """On stderr: a bar over the runs on a terminal, one line a run anywhere else, or nothing."""

    def __init__(self, name: str, total: int, *, shown: bool) -> None:
        self._name, self._total, self._shown = name, total, shown
        self._started = time.monotonic()
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            with suppress(ImportError):  # an extra; without it there are lines
                from tqdm import tqdm

                self._bar = tqdm(desc=name, total=total, unit="run", file=sys.stderr)

    def __enter__(self) -> Overall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def reach(self, done: int) -> None:
        """So many runs are finished."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def tell(self, index: int, recipe: Recipe) -> None:
        """The run with number `index`, from 0, is about to begin, or to be found finished."""
        text = f"run {index + 1} of {self._total}: {recipe.network}, seed {recipe.seed}"
        if self._bar is not None:
            self._bar.set_description_str(f"{self._name}, {text}", refresh=False)
            self._bar.update(index - self._bar.n)
            self._bar.refresh()
        elif self._shown:
            since = format_duration(time.monotonic() - self._started)
            print(f"{self._name}, {text} ({since} so far)", file=sys.stderr, flush=True)
