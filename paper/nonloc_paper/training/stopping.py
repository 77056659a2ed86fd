"""Reasons to stop early: a signal or a spent budget. Runs ask between steps, so that a step is never interrupted."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Inside, the first SIGINT or SIGTERM is only noted; a second one ends the process at once.

    `stop_after` is a budget in seconds from entering. Handlers are installed in the main thread only (Python allows no
    other), and not where the process was started to ignore the signal (nohup). Leaving puts the old ones back.
    """

    def __init__(self, stop_after: float | None = None) -> None:
        self._budget = stop_after
        self._previous: dict[signal.Signals, Any] = {}
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Stopping:
        self._deadline = None if self._budget is None else time.monotonic() + self._budget
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            # None: a handler that was not installed from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @property
    def reason(self) -> str:
        """The reason to stop, as a sentence; empty without one."""
        if self.signal is not None:
            return f"It was stopped by {self.signal.name}."
        if self.is_spent:
            return f"Its budget of {self._budget:g} s was spent."
        return ""

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def learn(self, number: int, is_spent: bool) -> None:
        """Take over the signal (0: none) or the spent budget of another process of the same run."""
        if number and self.signal is None:
            self.signal = signal.Signals(number)
        if is_spent:
            self._deadline = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """Seconds left of the budget, while entered; None without a budget."""
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        for each in self._previous:
            signal.signal(each, signal.SIG_DFL)
