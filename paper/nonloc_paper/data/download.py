"""Fetch the official archives and stream the named files out of them: nothing else is ever unpacked."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from typing import IO

from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data.files import corrupt, data_folder, fault, files_folder, missing
from nonloc_paper.data.sources import Member, Source, source_of

CHUNK = 1 << 20


def download(name: str, data_dir: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Put the files of "cifar10" or "cifar100" under `data_dir` and return the folder that holds them.

    Files that are there and sound are left alone; an archive that is there is used, without a network.
    The archive stays, so that a damaged file can be mended offline.
    """
    return fetch(source_of(name), data_folder(data_dir), progress)


def fetch(source: Source, folder: Path, progress: bool = True) -> Path:
    """Put the files that `source` describes under `folder` and return the folder that holds them."""
    place = files_folder(source, folder)
    faults = {member: _fault(source, member, place) for member in source.members}
    wanted = {member.path: member for member, what in faults.items() if what is not None}
    if wanted:
        try:
            archive = _archive(source, folder, wanted, progress)
        except MissingDataError as error:
            damaged = [f"{place / member.file} {what}" for member, what in faults.items() if what]
            if damaged:
                raise CorruptDataError(f"{'; '.join(damaged)}. No other copy can be had: {error}") from error
            raise
        place.mkdir(parents=True, exist_ok=True)
        _unpack(source, folder, archive, place, wanted)
    return place


def _fault(source: Source, member: Member, place: Path) -> str | None:
    """What is wrong with a file: None if nothing is, "" if it is not there."""
    path = place / member.file
    return fault(source, member, path) if path.is_file() else ""


def _archive(source: Source, folder: Path, wanted: dict[str, Member], progress: bool) -> Path:
    """The archive, as it lies in `folder` or freshly downloaded; its MD5 is checked either way."""
    path = folder / source.archive
    if path.is_file():
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != source.md5:
            raise corrupt(source, folder, path, f"has a wrong MD5: got {md5}, expected {source.md5}")
        return path
    try:
        import pooch
        import requests
    except ImportError as error:
        raise MissingDataError(
            f"Downloading {source.title} needs pooch: `pip install nonloc-paper`"
        ) from error
    files = [member.file for member in wanted.values()]
    downloader = pooch.HTTPDownloader(progressbar=progress, chunk_size=CHUNK)
    try:
        pooch.retrieve(source.url, f"md5:{source.md5}", source.archive, folder, downloader=downloader)
    except requests.RequestException as error:
        reason = str(error) if isinstance(error, requests.HTTPError) else type(error).__name__
        raise missing(source, folder, files, f"The download from {source.url} failed ({reason})") from error
    except ValueError as error:
        # pooch deletes a download whose hash is wrong: there is nothing corrupt left on disk.
        raise missing(source, folder, files, f"What came from {source.url} has a wrong MD5") from error
    return path


def _unpack(source: Source, folder: Path, archive: Path, place: Path, wanted: dict[str, Member]) -> None:
    left = dict(wanted)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for entry in tar:
                member = left.pop(entry.name, None)
                if member is None:
                    continue
                stream = tar.extractfile(entry) if entry.isreg() else None
                if stream is None or entry.size != source.bytes_of(member):
                    what = f"holds {entry.name} with {entry.size:,} bytes, expected a regular file of"
                    raise corrupt(source, folder, archive, f"{what} {source.bytes_of(member):,} bytes")
                sha1 = _write(stream, place / member.file, member.sha1)
                if sha1 != member.sha1:
                    what = f"holds {entry.name} with SHA-1 {sha1}, expected {member.sha1}"
                    raise corrupt(source, folder, archive, what)
                if not left:
                    return
    except (tarfile.TarError, EOFError) as error:
        raise corrupt(source, folder, archive, f"cannot be read as a .tar.gz ({error})") from error
    raise corrupt(source, folder, archive, f"does not hold {', '.join(left)}")


def _write(stream: IO[bytes], path: Path, expected_sha1: str) -> str:
    """Write `stream` to `path`, which appears whole or not at all, and return the SHA-1 of what was read."""
    digest = hashlib.sha1(usedforsecurity=False)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as out:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() == expected_sha1:
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return digest.hexdigest()
