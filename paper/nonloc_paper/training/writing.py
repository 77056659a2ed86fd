"""Writing: files that are written in order, at once or behind the back of a device that must not wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# How many pieces may be waiting: a disk that is too slow holds the run up and does not fill the memory.
WAITING = 4


class Writing:
    """Does pieces of work one after the other; in the background, if asked. An error comes out of a later call."""

    def __init__(self, *, in_background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "nonloc-writing") if in_background else None
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False

    def do(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            work()
            return
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= WAITING):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._do_now, work))

    def _do_now(self, work: Callable[[], object]) -> None:
        # What follows relies on what was to be written before it.
        if self._has_failed:
            return
        try:
            work()
        except BaseException:
            self._has_failed = True
            raise

    def finish(self) -> None:
        """Wait until all is written."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Finish, and end the thread."""
        try:
            self.finish()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
