"""Damaged and hostile archives, data files and kept weights: noticed, or harmless; nothing is written elsewhere.

Each trial works in a folder of its own next to one that must not change. It fails
- with an exception that is not for the user, or does not name the folder,
- if a file is written, changed or removed outside the folder, or a file is left in it that was not asked for,
- if what is read afterwards is not what was published or trained.

The MD5 of an archive is often made to fit, as if the archive had been damaged before it was published: then the sizes
and SHA-1 of its members are all that protects.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tiny_archive import FOLDER, Tiny, make_tiny

from faults.trial import Trial
from nonloc.outcomes import CorruptDataError, MissingDataError
from nonloc_paper.data.cifar import read_source
from nonloc_paper.data.download import fetch
from nonloc_paper.runs import Run

GOALS = {"archives": 5000, "data files": 4500, "kept weights": 500}
REFUSED = (MissingDataError, CorruptDataError, ValueError, OSError)
Entries = list[tuple[tarfile.TarInfo, bytes]]


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    tiny = make_tiny(chance.randrange(2**32))
    kept = Kept(folder / "kept")
    outside = folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("not to be touched")
    for number in range(10**12):
        work = folder / "work"
        work.mkdir()
        share = chance.random()
        kind = "kept weights" if share < 0.05 else "archives" if share < 0.55 else "data files"
        before = snapshot(folder)
        if kind == "kept weights":
            what, act = kept.damage(chance, outside)
        else:
            what, act = (archive_trial if kind == "archives" else files_trial)(tiny, chance, outside)
        try:
            failure = act(work)
        except REFUSED as error:
            named = str(work) in str(error) or "No space" in str(error)
            is_plain = not isinstance(error, UnicodeError)
            failure = None if named and is_plain else f"{type(error).__name__}: {error}"
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        shutil.rmtree(work)
        if snapshot(folder) != before:
            failure = "something was written, changed or removed outside the folder"
        yield Trial(kind, failure and f"{number}: {what}: {failure}"[:300])


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file but those of the working folder: its size and time."""
    found = {}
    for place, names, files in os.walk(folder):
        if place == str(folder):
            names[:] = [name for name in names if name != "work"]
        for name in files:
            status = os.lstat(os.path.join(place, name))
            found[os.path.join(place, name)] = (status.st_size, status.st_mtime_ns)
    return found


def archive_trial(
    tiny: Tiny, chance: random.Random, outside: Path
) -> tuple[str, Callable[[Path], str | None]]:
    """Unpack an archive with hostile entries or damaged bytes."""
    entries = [tiny.entry(path, content) for path, content in tiny.files.items()]
    whole = pack(entries)
    what = []
    for _ in range(chance.choice([0, 1, 1, 2])):
        what.append(chance.choice(ENTRIES)(entries, chance, outside))
    content = pack(entries) if what else whole
    if not what or chance.random() < 0.3:
        said, content = damage_bytes(content, chance, gzipped=True)
        what.append(said)
    is_fitting = chance.random() < 0.8
    own = replace(tiny.source, md5=hashlib.md5(content if is_fitting else whole).hexdigest())

    def act(work: Path) -> str | None:
        (work / own.archive).write_bytes(content)
        try:
            place = fetch(own, work, progress=False)
        finally:
            paths = {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}
            strange = paths - {own.archive, *tiny.files}
            if strange or any(path.is_symlink() for path in work.rglob("*")):
                return f"left {sorted(strange)} or a link"  # noqa: B012
        assert place == work / FOLDER
        return check_data(tiny, work)

    return f"{', '.join(what)}{'' if is_fitting else ', MD5 of the whole one'}", act


def check_data(tiny: Tiny, folder: Path) -> str | None:
    return None if tiny.is_whole(read_source(tiny.source, folder)) else "other data are read"


def pack(entries: Entries) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in entries:
            # A size that is not the content's is written as it is.
            tar.addfile(info)
            tar.fileobj.write(content + b"\0" * (-len(content) % 512))  # type: ignore[union-attr]
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


def add_elsewhere(entries: Entries, chance: random.Random, outside: Path) -> str:
    names = ["../escaped", f"{outside}/escaped", f"{FOLDER}/../../escaped", "escaped", f"{FOLDER}/extra"]
    names.append("../" * 9 + "x")
    names += [f"./{FOLDER}/a.bin", f"{FOLDER}//a.bin", f"{outside}/precious", f"{FOLDER}/a.bin/"]
    name = chance.choice(names)
    entries.insert(chance.randrange(len(entries) + 1), Tiny.entry(name, b"never to be written"))
    return f"file {name}"


def add_link(entries: Entries, chance: random.Random, outside: Path) -> str:
    """A link, device or pipe, before or in the place of a member."""
    number = chance.randrange(len(entries))
    info = tarfile.TarInfo(chance.choice([FOLDER, entries[number][0].name, f"{FOLDER}/extra"]))
    kinds = {"symbolic": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE}
    kinds |= {"device": tarfile.CHRTYPE, "folder": tarfile.DIRTYPE, "sparse": tarfile.GNUTYPE_SPARSE}
    kinds["unknown"] = b"Z"
    kind = chance.choice(list(kinds))
    info.type = kinds[kind]
    info.linkname = chance.choice(
        [str(outside), str(outside / "precious"), "../../outside/precious", "b.bin"]
    )
    if chance.random() < 0.5:
        entries.insert(number, (info, b""))
    else:
        entries[number] = (info, b"")
    return f"{kind} {info.name} to {info.linkname}"


def change_member(entries: Entries, chance: random.Random, outside: Path) -> str:
    """Other content of the same size, or another size, of one member."""
    number = chance.randrange(len(entries))
    info, content = entries[number]
    if not content:
        return "nothing"
    said, content = damage_bytes(content, chance)
    entries[number] = Tiny.entry(info.name, content)
    if chance.random() < 0.3:
        entries[number][0].size = chance.choice([0, 1, info.size, 2**33 - 1, 10**15])
        said += f", size {entries[number][0].size}"
    return f"{info.name}: {said}"


def double_member(entries: Entries, chance: random.Random, outside: Path) -> str:
    """A member that is there twice, the first or the second of them damaged."""
    info, content = chance.choice(entries)
    if not content:
        return "nothing"
    said, damaged = damage_bytes(content, chance)
    entries.insert(chance.choice([0, len(entries)]), Tiny.entry(info.name, damaged))
    return f"{info.name} again: {said}"


def lose_member(entries: Entries, chance: random.Random, outside: Path) -> str:
    return f"without {entries.pop(chance.randrange(len(entries)))[0].name}" if len(entries) > 1 else "nothing"


def rename_member(entries: Entries, chance: random.Random, outside: Path) -> str:
    info, _ = chance.choice(entries)
    info.name = chance.choice(
        [f"../{info.name}", f"{outside}/{Path(info.name).name}", info.name.upper(), info.name + "\0x"]
    )
    return f"renamed to {info.name!r}"


ENTRIES = (add_elsewhere, add_link, change_member, double_member, lose_member, rename_member)


def damage_bytes(content: bytes, chance: random.Random, *, gzipped: bool = False) -> tuple[str, bytes]:
    """Flip, cut, lengthen, exchange or blank bytes; inside a gzip file also those of the archive in it."""
    if gzipped and chance.random() < 0.5:
        said, inside = damage_bytes(gzip.decompress(content), chance)
        return f"inside, {said}", gzip.compress(inside, 1, mtime=0)
    place = chance.randrange(len(content))
    way = chance.choice(["flip", "cut", "lengthen", "blank", "exchange", "replace"])
    if way == "flip":
        bit = chance.randrange(8)
        new = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
        return f"flip bit {bit} of byte {place}", new
    if way == "cut":
        return f"cut at {place}", content[:place]
    if way == "lengthen":
        return "lengthen", content + chance.randbytes(chance.randrange(1, 600))
    if way == "blank":
        end = min(len(content), place + chance.randrange(1, 64))
        return f"blank {place} to {end}", content[:place] + bytes(end - place) + content[end:]
    if way == "exchange":
        return f"exchange the parts at {place}", content[place:] + content[:place]
    return "replace by noise", chance.randbytes(len(content))


def files_trial(tiny: Tiny, chance: random.Random, outside: Path) -> tuple[str, Callable[[Path], str | None]]:
    """Read binary files of which one is damaged, or something else is in its place."""
    name, other = chance.sample(list(tiny.files), 2)
    way = chance.choice(["bytes"] * 6 + ["folder", "link", "missing", "exchange", "pipe"])
    said, content = damage_bytes(tiny.files[name], chance)

    def act(work: Path) -> str | None:
        path = tiny.write(work) / name
        if way == "bytes":
            path.write_bytes(content)
        elif way == "exchange":
            path.write_bytes(tiny.files[other])
            (work / other).write_bytes(tiny.files[name])
        else:
            path.unlink()
            if way == "folder":
                path.mkdir()
            elif way == "pipe":
                os.mkfifo(path)
            elif way == "link":
                path.symlink_to(outside / "precious")
        return check_data(tiny, work)

    return f"{name}: {said if way == 'bytes' else way}", act


class Kept:
    """One small run that was trained and kept, with its weights; it is copied, damaged, restored and loaded."""

    def __init__(self, folder: Path) -> None:
        from nonloc_paper.suites import SUITES
        from nonloc_paper.suites.archive import keep
        from nonloc_paper.suites.train_all import train_all

        sizes = {"epochs": 1, "steps_per_epoch": 2, "train_images": 64, "test_images": 16, "batch_size": 8}
        self.suite = SUITES["demo"].with_changes(sizes).with_rows(["3"]).with_seeds(1)
        (row,) = self.suite.rows
        (self.recipe,) = self.suite.recipes(row)
        runs = folder / "runs"
        train_all([self.recipe], runs, device="cpu", progress=False)
        keep(self.suite, runs, folder / "records", changes=sizes)
        self.records = folder / "records"
        (self.kept,) = [path.parent for path in self.records.rglob("recipe.json")]

    def damage(self, chance: random.Random, outside: Path) -> tuple[str, Callable[[Path], str | None]]:
        from nonloc_paper.suites.archive import restore
        from nonloc_paper.training.checkpoint import weights_sha256
        from nonloc_paper.training.trained import trained_network

        (weights,) = (self.kept / "checkpoints").glob("*.safetensors")
        said, content = damage_bytes(weights.read_bytes(), chance)
        way = chance.choice(["bytes"] * 4 + ["link", "folder", "target"])
        names = ("checkpoints", "recipe.json", "metrics.jsonl", "spectra.jsonl", "observations.json", "lock")
        links = chance.sample(names, chance.randrange(1, 4))

        def act(work: Path) -> str | None:
            records = shutil.copytree(self.records, work / "records")
            path = records / weights.relative_to(self.records)
            place = work / "runs" / self.recipe.name
            if way == "bytes":
                path.write_bytes(content)
            elif way == "target":
                # What is replaced by the restored run may be a link to something precious.
                place.mkdir(parents=True)
                for name in links:
                    (place / name).symlink_to(outside if name == "checkpoints" else outside / "precious")
            else:
                path.unlink()
                path.symlink_to(outside / "precious") if way == "link" else path.mkdir()
            restore(self.suite, records, work / "runs")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run = Run.open(place)
                same = weights_sha256(trained_network(run)) == run.read_result()["weights_sha256"]
            return None if same else "other weights are loaded"

        return f"{weights.name}: {said if way == 'bytes' else way} {links if way == 'target' else ''}", act
