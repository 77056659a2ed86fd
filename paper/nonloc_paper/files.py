"""Whole files, replaced at once."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"
# The file's name, the process and a random number: two processes may write the same file at once.
_UNIQUE = re.compile(r"(?P<name>.+)\.\d+-[0-9a-f]{8}" + re.escape(TEMPORARY))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path`; a crash at any moment leaves the old content or the new, never a mixture.

    Several processes may write the same file at once; the content of the last one stays.
    """
    while True:
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        # It is locked while it is open: an unlocked one is a leftover.
        with naming(path), open(temporary, "xb") as file:
            # A file system may have no locks; then leftovers stay.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            # Before it was locked, another process may have removed it as a leftover.
            if not temporary.exists():
                continue
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        break
    sync_folder(path.parent)
    for entry in path.parent.glob("*" + TEMPORARY):
        if replaced_name(entry.name) == path.name:
            remove_leftover(entry)


def replaced_name(name: str) -> str | None:
    """Return which file the temporary file `name` replaces; None if `name` is not a temporary file."""
    unique = _UNIQUE.fullmatch(name)
    return unique["name"] if unique else None


def remove_leftover(temporary: Path) -> None:
    """Remove a temporary file, unless a process still writes it."""
    with suppress(OSError):
        handle = os.open(temporary, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
        finally:
            os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an OSError without one, such as that of a full disk, or with the name of a temporary file."""
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and not str(error.filename).endswith(TEMPORARY)
        if is_named or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Sync a folder: a new file or a rename is durable only after that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)
