"""Run: the folder of a training run, which all commands read and write. Standard library only.

Every file in it is strict JSON or JSON lines: a number that is not finite is written as null. Whole files are replaced
atomically, with a checksum that is verified when they are read. Only recipe.json has none, as it is also a config file;
checkpoints and results have its hash. Lines are appended, flushed and synced one by one; a torn last line, left by a
crash, is ignored. Checkpoints and results have the hashes of the files of lines.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nonloc._checks import is_whole
from nonloc.outcomes import CorruptDataError, LockedRunError, Outcome, recorded_ending
from nonloc_paper.file_schemas import DIGITS, RESULT
from nonloc_paper.files import naming, replaced_name, sync_folder, write_atomically
from nonloc_paper.paths import real_path
from nonloc_paper.schema import check, parse

# Files that other commands write into a run folder; an interrupted copy may leave them without a recipe.
BESIDE = ("observations.json", "observations.safetensors", "spectrum.json", "stability.json")
CHECKSUM = "checksum"
OLD = ".old"  # of records whose run had to begin again: they stay until it has a checkpoint


class Run:
    """A run folder, new or existing; making a Run writes nothing.

    A file, or a folder with other files and no recipe.json, is refused.

    >>> from nonloc_paper import Run
    >>> Run("runs/first").exists
    False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.recipe_path = self.path / "recipe.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.spectra_path = self.path / "spectra.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self.result_path = self.path / "result.json"
        self.lock_path = self.path / "lock"
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, not a run folder; name a new folder or a run")
        if self.path.is_dir() and not self.recipe_path.exists():
            ours = {path.name for key, path in vars(self).items() if key != "path"} | set(BESIDE)
            ours |= {path.name + OLD for path in self.record_paths}
            names = sorted(entry.name for entry in self.path.iterdir())
            foreign = [name for name in names if not {name, replaced_name(name)} & ours]
            if foreign:
                listed = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
                raise ValueError(
                    f"{self.path} is not a run folder: it has no recipe.json but holds {listed}; "
                    "name one that training made, perhaps below it, or a new one to train in"
                )

    @classmethod
    def open(cls, run: Run | str | os.PathLike[str]) -> Run:
        """Return an existing run, or the run of a folder; it must have a recipe."""
        run = run if isinstance(run, Run) else cls(run)
        if not run.exists:
            raise ValueError(
                f"{run.path} is not a run folder: it has no recipe.json; name one that training made"
            )
        return run

    @property
    def name(self) -> str:
        return real_path(self.path).name

    @property
    def exists(self) -> bool:
        return self.recipe_path.is_file()

    @property
    def has_begun(self) -> bool:
        """Whether anything was trained: there is a checkpoint, an epoch or a result."""
        return self.is_finished or bool(self.checkpoint_files()) or bool(self.read_metrics())

    @property
    def is_finished(self) -> bool:
        """Whether the run came to an end, good or bad."""
        return self.result_path.is_file()

    @property
    def has_weights(self) -> bool:
        """Whether there is a whole checkpoint: its JSON is written last."""
        return any(path.with_suffix(".safetensors").is_file() for path in self.checkpoint_files(".json"))

    @property
    def record_paths(self) -> tuple[Path, Path]:
        """The files of lines, metrics.jsonl and spectra.jsonl."""
        return self.metrics_path, self.spectra_path

    def checkpoint_files(self, suffix: str = "") -> list[Path]:
        """Return the files in checkpoints/, sorted; [] if there is no such folder.

        A folder that is there and cannot be read is a CorruptDataError: it may hold checkpoints.
        """
        try:
            return sorted(path for path in self.checkpoints_path.iterdir() if path.name.endswith(suffix))
        except OSError as error:
            if error.errno == errno.ENOENT and not self.checkpoints_path.is_symlink():
                return []
            raise CorruptDataError(
                f"{self.checkpoints_path} cannot be read ({error.strerror}); make it a readable folder again, "
                "or move it away to begin again; nothing was changed"
            ) from error

    def read_recipe(self) -> dict[str, Any]:
        return _read_object(self.recipe_path)

    def write_recipe(self, recipe: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.recipe_path, (_dump(recipe, indent=2) + "\n").encode())

    def read_result(self) -> dict[str, Any]:
        result = _read_object(self.result_path)
        check(result, RESULT, self.result_path)
        result["outcome"]["ending"] = recorded_ending(result["outcome"]["ending"])
        return result

    def read_outcome(self) -> Outcome | None:
        """Return how the run ended; None without a result."""
        return Outcome.from_dict(self.read_result()["outcome"]) if self.is_finished else None

    def write_result(self, result: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.result_path, result, indent=2)

    def read_metrics(self) -> list[dict[str, Any]]:
        """One dict an epoch, in order."""
        return _read_epochs(self.metrics_path)

    def append_metrics(self, line: dict[str, Any]) -> None:
        append_line(self.metrics_path, line)

    def read_spectra(self) -> list[dict[str, Any]]:
        """One dict for each epoch whose spectra were recorded, in order."""
        return _read_epochs(self.spectra_path)

    def append_spectra(self, line: dict[str, Any]) -> None:
        append_line(self.spectra_path, line)

    def digests(self) -> dict[str, dict[str, Any]]:
        """Return the size and the SHA-256 of metrics.jsonl and spectra.jsonl, by name; a missing file is empty."""
        return {path.name: _digest(_content(path)) for path in self.record_paths}

    def check_records(self, digests: dict[str, dict[str, Any]], where: Path, *, whole: bool) -> None:
        """Raise CorruptDataError if the files of lines do not begin with what `digests`, read from `where`, says.

        whole  there must be nothing after it
        """
        for path in self.record_paths:
            stated, content = digests[path.name], _content(path)
            if _digest(content if whole else content[: stated["size"]]) != stated:
                raise CorruptDataError(
                    f"{path} is damaged: it is not what was there when {where} was written; bring it back, "
                    f"or delete {self.checkpoints_path if not whole else self.path} to begin again"
                )

    def cut_records(self, digests: dict[str, dict[str, Any]]) -> None:
        """Cut the files of lines to the sizes in `digests`; a resumed run records the rest again."""
        for path in self.record_paths:
            if path.exists():
                write_atomically(path, _content(path)[: digests[path.name]["size"]])

    def truncate(self, epoch: int) -> None:
        """Drop the metrics and spectra after `epoch`, for a checkpoint that is older than `cut_records`."""
        for path in self.record_paths:
            lines = [line for line in _read_epochs(path) if line["epoch"] <= epoch]
            if path.exists():
                write_atomically(path, "".join(_dump(line) + "\n" for line in lines).encode())

    def set_aside(self) -> None:
        """Move the records of a run without a checkpoint out of the way; the first ones stay if there are more."""
        for path in self.record_paths:
            old = path.with_name(path.name + OLD)
            if path.exists() and old.exists():
                path.unlink()
            elif path.exists():
                os.replace(path, old)

    def drop_set_aside(self) -> None:
        """Remove what `set_aside` moved: the run has a new checkpoint."""
        for path in self.record_paths:
            path.with_name(path.name + OLD).unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process; LockedRunError at once if another process has locked it.

        The system frees the lock when the process ends, so a lock is never stale. A folder that was made for it goes
        with it unless a run has begun there.
        """
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        # A link is refused: what it points to would be overwritten.
        handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(handle), os.stat(self.lock_path)):
                    raise OSError("its holder has just removed it")
            except OSError as error:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                raise LockedRunError(
                    f"{self.path} is in use by process {holder}; wait for it, stop it, or use another folder"
                ) from error
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            try:
                yield
            finally:
                self._remove_unbegun(made)
        finally:
            os.close(handle)

    def _remove_unbegun(self, made: list[Path]) -> None:
        """Remove the folders that were `made` for a run that has not begun, if nothing else is in them."""
        ours = (self.recipe_path, self.spectra_path, self.lock_path)
        with suppress(OSError, CorruptDataError):
            if made and not self.has_begun and set(self.path.iterdir()) <= set(ours):
                for path in ours:
                    path.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def find_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """Return the run folders at or below `folder`, sorted by path."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder; name the folder that holds the runs")
    return [Run(path.parent) for path in find_files(root, "recipe.json")]


def find_files(folder: Path, name: str) -> list[Path]:
    """Return the files called `name` at or below `folder`, sorted by path; links to folders are followed.

    A folder that is reached twice counts once, by its path without links if that is below `folder`.
    """
    found: list[Path] = []
    # A link to a folder above is a loop.
    known = set(folder.resolve().parents)
    folders, links = [folder], list[Path]()
    while folders or links:
        path = folders.pop() if folders else links.pop()
        if path.resolve() in known:
            continue
        known.add(path.resolve())
        found += [path / name] if os.path.lexists(path / name) else []
        inside = sorted((one for one in path.iterdir() if one.is_dir()), reverse=True)
        folders += [one for one in inside if not one.is_symlink()]
        links = sorted([*links, *(one for one in inside if one.is_symlink())], reverse=True)
    return sorted(found)


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON to a file, on disk before this returns; a torn last line goes. Processes take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with naming(path), open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(_whole_length(_content(path)))
        file.write((_dump(finite_or_none(line)) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = None) -> dict[str, Any]:
    """Replace `path` by `value` as strict JSON with its checksum; return what `read_json` gives back."""
    written = finite_or_none(value)
    write_atomically(path, (_dump(with_checksum(written), indent) + "\n").encode())
    return written


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """Return `value` with the SHA-256 of its JSON, which `read_json` verifies."""
    return value | {CHECKSUM: hashlib.sha256(_dump(value).encode(errors="surrogatepass")).hexdigest()}


def _dump(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


def finite_or_none(value: Any) -> Any:
    """Return `value` with None for every number that is not finite: JSON has no infinities."""
    return _map_floats(value, lambda number: number if math.isfinite(number) else None)


def to_digits(value: Any) -> Any:
    """Return `value` with every float rounded to DIGITS digits, as records have it."""
    return _map_floats(value, lambda number: float(f"{number:.{DIGITS}g}"))


def _map_floats(value: Any, change: Callable[[float], float | None]) -> Any:
    if isinstance(value, float):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_floats(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_floats(item, change) for item in value]
    return value


def read_json(path: Path, *, fix: str = "delete it and run the command again") -> dict[str, Any]:
    """Return the JSON object in a file, {} without a file; anything else is a CorruptDataError with the fix."""
    content = _read_bytes(path, fix)
    if content is None:
        return {}
    try:
        value = parse(content)
    except ValueError as error:
        raise CorruptDataError(f"{path} is not valid JSON ({error}); {fix}") from error
    if not isinstance(value, dict):
        raise CorruptDataError(f"{path} does not hold a JSON object; {fix}")
    stated = value.pop(CHECKSUM, None)
    if stated is not None and with_checksum(value)[CHECKSUM] != stated:
        raise CorruptDataError(f"{path} is damaged: its content is not what was written; {fix}")
    return value


def _read_bytes(path: Path, fix: str) -> bytes | None:
    """Return the content of a file; None without one. A folder or a broken link in its place is an error."""
    if not os.path.lexists(path):
        return None
    if not path.is_file():
        raise CorruptDataError(f"{path} is not a file; {fix}")
    return path.read_bytes()


def _read_object(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        raise ValueError(
            f"{path.parent} has no {path.name}; it is no run folder, or its training has not ended: the command that "
            "began it goes on"
        )
    return read_json(path, fix="restore it or begin again")


def read_lines(path: Path, *, may_be_torn: bool = True) -> list[dict[str, Any]]:
    """Return all lines. A torn last one is ignored if `may_be_torn`; any other broken line is an error."""
    content = _read_bytes(path, "delete it")
    if content is None:
        return []
    values = []
    whole = _whole_length(content) if may_be_torn else None
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        value = _parse(line)
        if value is None:
            raise CorruptDataError(f"{path}, line {number}, is not a JSON object; delete that line")
        values.append(value)
    return values


def _read_epochs(path: Path) -> list[dict[str, Any]]:
    """Read lines that each have an epoch."""
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if not is_whole(line.get("epoch")):
            raise CorruptDataError(
                f"{path}, line {number}, does not say of which epoch it is; delete that line"
            )
    return lines


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _digest(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _whole_length(content: bytes) -> int:
    """Return how many bytes of JSON lines are whole lines: all but a torn last one."""
    whole = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(whole - 1, 0)) + 1
    return last if whole and _parse(content[last:whole]) is None else whole


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
