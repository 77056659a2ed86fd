"""hold: a folder of records for one process at a time. No torch."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nonloc.outcomes import LockedRunError


@contextmanager
def hold(folder: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold `folder`, which is made if need be: its tables are read, added to and written as a whole.

    The lock is on the folder itself, so that no file is left in it, and the kernel frees it with the process.

    wait  until another process lets it go; False: LockedRunError at once
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise LockedRunError(
                f"{path} is in use by another process; wait for it, stop it, or use another --output"
            ) from error
        yield
    finally:
        os.close(handle)
