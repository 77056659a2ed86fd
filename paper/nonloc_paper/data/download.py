"""Download of the data sets: their sources, the check of their files, and the official archives.

Only the named files are read from an archive; nothing else is ever unpacked.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.files import write_atomically

FOLDER_VARIABLE = "NONLOC_DATA"
CHUNK = 1 << 20
LARGEST_ENTRY = 1 << 30  # tarfile passes over an entry block by block, even where the archive has ended
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"

_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class Member:
    """One binary file: its name, its SHA-1 and its number of records."""

    file: str
    sha1: str
    records: int


@dataclass(frozen=True)
class Source:
    """One data set as published: an archive with binary files of fixed-length records.

    A record is `label_bytes` bytes of labels, of which the last is used, then `size`² red, `size`²
    green and `size`² blue bytes, each plane row by row.
    """

    name: str
    title: str
    archive: str
    md5: str
    url: str
    folder: str
    train: tuple[Member, ...]
    test: tuple[Member, ...]
    label_bytes: int
    classes: tuple[str, ...]
    size: int = 32

    @property
    def members(self) -> tuple[Member, ...]:
        return self.train + self.test

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + 3 * self.size * self.size

    def bytes_of(self, member: Member) -> int:
        return member.records * self.record_bytes


CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=(
        Member("data_batch_1.bin", "aadd24acce27caa71bf4b10992e9e7b2d74c2540", 10_000),
        Member("data_batch_2.bin", "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795", 10_000),
        Member("data_batch_3.bin", "1dd00a74ab1d17a6e7d73e185b69dbf31242f295", 10_000),
        Member("data_batch_4.bin", "aab85764eb3584312d3c7f65fd2fd016e36a258e", 10_000),
        Member("data_batch_5.bin", "26e2849e66a845b7f1e4614ae70f4889ae604628", 10_000),
    ),
    test=(Member("test_batch.bin", "67eb016db431130d61cd03c7ad570b013799c88c", 10_000),),
    label_bytes=1,
    classes=tuple(_CIFAR10_CLASSES.split()),
)

CIFAR100 = Source(
    name="cifar100",
    title="CIFAR-100",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=(Member("train.bin", "e207cd2e05b73b1393c74c7f5e7bea451d63e08e", 50_000),),
    test=(Member("test.bin", "8fb6623e830365ff53cf14adec797474f5478006", 10_000),),
    label_bytes=2,  # the coarse label comes first, the fine one second
    classes=tuple(_CIFAR100_CLASSES.split()),
)

SOURCES = {source.name: source for source in (CIFAR10, CIFAR100)}


def source_of(name: str) -> Source:
    """Return the `Source` called `name`."""
    if name not in SOURCES:
        hint = " (motifs need no download)" if name == "motifs" else ""
        raise ValueError(
            f"name={name!r} is not a downloadable data set; choose one of {', '.join(SOURCES)}{hint}"
        )
    return SOURCES[name]


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return `data_dir`, else the environment's NONLOC_DATA, else the user's cache."""
    chosen = data_dir or os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(os.path.abspath(Path(chosen).expanduser()))
    import pooch

    return Path(pooch.os_cache("nonloc"))


def files_folder(source: Source, folder: Path) -> Path:
    """Return the folder of the binary files: `folder/<source.folder>`, or `folder` if it is that one."""
    inside = folder / source.folder
    if inside.is_dir():
        return inside
    holds_all = all((folder / member.file).is_file() for member in source.members)
    return folder if holds_all or folder.name == source.folder else inside


def fault(source: Source, member: Member, path: Path) -> str | None:
    """Return what is wrong with the file `path`, or None."""
    expected, got = source.bytes_of(member), path.stat().st_size
    if got != expected:
        return (
            f"has a wrong size: {got:,} bytes, expected {expected:,} "
            f"({member.records:,} records of {source.record_bytes:,} bytes)"
        )
    sha1 = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    return None if sha1 == member.sha1 else f"has a wrong SHA-1: got {sha1}, expected {member.sha1}"


def _command(source: Source, folder: Path) -> str:
    return f"nonloc data {source.name} --data-dir {shlex.quote(str(folder))}"


def missing(source: Source, folder: Path, files: Iterable[str], because: str = "") -> MissingDataError:
    """Return the error for missing files: what to download, where to put it, which command does it."""
    reason = f" {because}." if because else ""
    return MissingDataError(
        f"{source.title} is not in {files_folder(source, folder)}: no {', '.join(files)}.{reason} "
        f"Run `{_command(source, folder)}`, which downloads, checks and unpacks {source.archive} "
        f"(about 160 MB). Without a network, get {source.archive} from {HOME} elsewhere, put it at "
        f"{folder / source.archive} and run the same command."
    )


def corrupt(source: Source, folder: Path, path: Path, what: str) -> CorruptDataError:
    """Return the error for a damaged file: which, what is wrong, and how to mend it."""
    return CorruptDataError(f"{path} {what}. Delete it and run `{_command(source, folder)}` again.")


def download(name: str, data_dir: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Put the files of "cifar10" or "cifar100" under `data_dir` and return the folder that holds them.

    Valid files are not touched; an archive in `data_dir` is used, without a network. The archive stays, so that a
    damaged file can be mended offline.
    """
    return fetch(source_of(name), data_folder(data_dir), progress)


def fetch(source: Source, folder: Path, progress: bool = True) -> Path:
    """Put the files that `source` describes under `folder` and return the folder that holds them."""
    place = files_folder(source, folder)
    # None: the file is valid; "": it is missing.
    paths = {member: place / member.file for member in source.members}
    faults = {member: fault(source, member, path) if path.is_file() else "" for member, path in paths.items()}
    wanted = {f"{source.folder}/{one.file}": one for one, what in faults.items() if what is not None}
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


def _archive(source: Source, folder: Path, wanted: dict[str, Member], progress: bool) -> Path:
    """Return the archive in `folder`, downloaded if it is missing; its MD5 is checked either way."""
    path = folder / source.archive
    if path.is_file():
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != source.md5:
            raise corrupt(source, folder, path, f"has a wrong MD5: got {md5}, expected {source.md5}")
        return path
    import pooch
    import requests

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
                if not 0 <= entry.size <= LARGEST_ENTRY:
                    raise corrupt(source, folder, archive, f"holds {entry.name!r} with {entry.size:,} bytes")
                member = left.pop(entry.name, None)
                if member is None:
                    continue
                stream = tar.extractfile(entry) if entry.isreg() else None
                if stream is None or entry.size != source.bytes_of(member):
                    what = f"holds {entry.name} with {entry.size:,} bytes, expected a regular file of"
                    raise corrupt(source, folder, archive, f"{what} {source.bytes_of(member):,} bytes")
                content = stream.read()
                sha1 = hashlib.sha1(content, usedforsecurity=False).hexdigest()
                if sha1 != member.sha1:
                    what = f"holds {entry.name} with SHA-1 {sha1}, expected {member.sha1}"
                    raise corrupt(source, folder, archive, what)
                write_atomically(place / member.file, content)
                if not left:
                    return
    except (tarfile.TarError, EOFError, TypeError) as error:  # the last for a header that ends within
        raise corrupt(source, folder, archive, f"cannot be read as a .tar.gz ({error})") from error
    raise corrupt(source, folder, archive, f"does not hold {', '.join(left)}")
