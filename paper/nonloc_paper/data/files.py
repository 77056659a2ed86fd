"""The files of a data set on this machine: where they lie, whether they are sound, and what to say if not."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data.sources import Member, Source

FOLDER_VARIABLE = "NONLOC_DATA"


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the data sets: `data_dir`, else the environment's NONLOC_DATA, else the user's cache."""
    chosen = data_dir or os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(os.path.abspath(Path(chosen).expanduser()))
    try:
        import pooch
    except ImportError as error:
        raise MissingDataError(
            f"No data folder was given: pass data_dir, set {FOLDER_VARIABLE}, or `pip install nonloc-paper` "
            "for the default one in your cache"
        ) from error
    return Path(pooch.os_cache("nonloc"))


def files_folder(source: Source, folder: Path) -> Path:
    """The folder that holds the binary files: `folder/<source.folder>`, or `folder` when it is that one."""
    inside = folder / source.folder
    if inside.is_dir():
        return inside
    holds_all = all((folder / member.file).is_file() for member in source.members)
    return folder if holds_all or folder.name == source.folder else inside


def fault(source: Source, member: Member, path: Path, *, verify: bool = True) -> str | None:
    """What is wrong with the existing file `path`, or None; `verify=False` looks at the size alone."""
    expected, got = source.bytes_of(member), path.stat().st_size
    if got != expected:
        return (
            f"has a wrong size: {got:,} bytes, expected {expected:,} "
            f"({member.records:,} records of {source.record_bytes:,} bytes)"
        )
    if verify:
        with path.open("rb") as file:
            sha1 = hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()
        if sha1 != member.sha1:
            return f"has a wrong SHA-1: got {sha1}, expected {member.sha1}"
    return None


def command(source: Source, folder: Path) -> str:
    return f"nonloc data {source.name} --data-dir {shlex.quote(str(folder))}"


def missing(source: Source, folder: Path, files: Iterable[str], because: str = "") -> MissingDataError:
    """The error for files that are not there: what to download, where to put it, which command does it."""
    reason = f" {because}." if because else ""
    return MissingDataError(
        f"{source.title} is not in {files_folder(source, folder)}: no {', '.join(files)}.{reason} "
        f"Run `{command(source, folder)}`, which downloads, checks and unpacks {source.archive} "
        f"(about 160 MB). Without a network, get {source.archive} from {source.home} elsewhere, put it at "
        f"{folder / source.archive} and run the same command."
    )


def corrupt(source: Source, folder: Path, path: Path, what: str) -> CorruptDataError:
    """The error for a file that is there but wrong: which, in what, and how to mend it."""
    return CorruptDataError(f"{path} {what}. Delete it and run `{command(source, folder)}` again.")
