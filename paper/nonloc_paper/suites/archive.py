"""keep and restore: copy finished runs into the repository and back; lock its folders and note what runs cost.

    <records>/<suite>/suite.json               which suite, with which changes
    <records>/<suite>/spent.jsonl              one line for every command that trained
    <records>/<suite>/<row>/<seed>/            a run folder, like any other, with
        recipe.json, result.json            as they were; machine and versions are in the result
        metrics.jsonl, spectra.jsonl        compact, to DIGITS digits
        spectrum.json, observations.json    the same; images and affinity maps are left out
        stability.json                      the certificate by `nonloc stability --keep`, if there is one
        checkpoints/                        the final weights without the optimizer's state, of the median seed of
                                            the rows in `Suite.weighed`

<row> is `Row.slug`. Every command that reads a run folder reads these.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from nonloc._checks import check_choice
from nonloc.outcomes import CorruptDataError, LockedRunError
from nonloc_paper import file_schemas
from nonloc_paper.runs import (
    BESIDE,
    Run,
    append_line,
    find_files,
    find_runs,
    read_json,
    read_lines,
    to_digits,
    with_checksum,
    write_atomically,
)
from nonloc_paper.schema import check_lines
from nonloc_paper.suites.catalog import find_suite
from nonloc_paper.suites.rows import PLAN, Row, Suite, read_plan, write_plan
from nonloc_paper.training.recipe import Recipe

COMPACT = ("metrics.jsonl", "spectra.jsonl", "spectrum.json", "observations.json", "stability.json")
WEIGHTS = ("median", "all", "none")
SPENT = "spent.jsonl"


@contextmanager
def lock_folder(folder: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Lock a folder of records, made if missing, for one process at a time.

    The lock is on the folder itself: no file is left in it, and the system frees it when the process ends.

    wait  until another process releases it; False: LockedRunError at once
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


def note_spent(folder: str | os.PathLike[str], **entry: Any) -> None:
    """Add a line such as {"seconds": 1500.2, "device": "NVIDIA H200"} to spent.jsonl.

    The seconds are wall-clock time, shared by runs side by side; each run's own result has its whole time.
    """
    append_line(Path(folder) / SPENT, entry)


def move_spent(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Move the lines of one folder's spent.jsonl to the end of another's: the runs are there now."""
    path = Path(source) / SPENT
    if not path.is_file():
        return
    with open(path, "rb+") as file:
        # A line that another process adds before the file is emptied would be lost.
        fcntl.flock(file, fcntl.LOCK_EX)
        for entry in _read_entries(path):
            note_spent(target, **entry)
        file.truncate(0)


def read_spent(root: str | os.PathLike[str]) -> dict[Path, list[dict[str, Any]]]:
    """Return the lines of every spent.jsonl below `root`, by folder; each line has its seconds."""
    return {path.parent: _read_entries(path) for path in find_files(Path(root), SPENT)}


def _read_entries(path: Path) -> list[dict[str, Any]]:
    entries = read_lines(path, may_be_torn=False)
    check_lines(entries, file_schemas.SPENT, path)
    return entries


@dataclass(frozen=True)
class KeepReport:
    """What `keep` did.

    new       runs that were added
    same      runs that were there already, for this suite or for another
    weights   runs that have their weights
    lacking   rows without some of their weights, and which weights they have instead
    size      bytes of this suite's records
    total     bytes of all records in the folder
    """

    new: tuple[Path, ...]
    same: tuple[Path, ...]
    weights: tuple[Path, ...]
    lacking: tuple[str, ...]
    size: int
    total: int


def keep(
    suite: Suite,
    runs: str | os.PathLike[str],
    records: str | os.PathLike[str],
    *,
    changes: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> KeepReport:
    """Copy the finished runs of `suite` from the folder `runs` to `records`/<suite>; repeating it changes nothing.

    A run that is kept already with another result is a ValueError, and so is a suite kept with other changes. A run
    kept for another suite is not kept twice: `restore` and the report find it there.

    changes  of all recipes, as `Suite.with_changes` took them; noted in suite.json
    weights  "median": of every row's run with the median score (the lower one of two), or of the nearest run that has
             weights. When seeds are added another run may become the median; its weights then replace the first.
             "all", "none"; None is "median" for the rows in `suite.weighed`, and "none" for the others. What "none"
             finds kept stays.
    """
    check_keep(suite, records, changes=changes, weights=weights)
    folder = Path(records) / suite.name
    _write_plan(folder, suite, dict(changes or {}))
    elsewhere = _recorded_elsewhere(records, suite)
    new: list[Path] = []
    same: list[Path] = []
    lacking: list[str] = []
    for row in suite.rows:
        sources: dict[int, Run] = {}
        for recipe in suite.recipes(row):
            source = _run_or_none(Path(runs) / recipe.name)
            place = elsewhere.get(recipe, kept_path(records, suite, row, recipe.seed))
            if source is not None and source.is_finished and _was_observed(source):
                sources[recipe.seed] = source
                (new if _keep_run(source, Run(place)) else same).append(place)
        is_weighed = suite.weighed is None or row.label in suite.weighed
        which = weights if weights is not None else "median" if is_weighed else "none"
        if lack := _keep_weights(folder / row.slug, sources, which):
            lacking.append(f"{row.label} ({lack})")
    with_weights = tuple(run.path for run in find_runs(folder) if run.has_weights)
    return KeepReport(
        tuple(new), tuple(same), with_weights, tuple(lacking), _bytes(folder), _bytes(Path(records))
    )


def check_keep(
    suite: Suite,
    records: str | os.PathLike[str],
    *,
    changes: Mapping[str, Any] | None = None,
    weights: str | None = None,
    runs: str | os.PathLike[str] | None = None,
) -> None:
    """Raise the ValueError that `keep` would raise for its arguments, before anything is trained.

    runs  the folder of the suite's runs, where some may exist already
    """
    if weights is not None:
        check_choice("weights", weights, WEIGHTS)
    path = Path(records) / suite.name / PLAN
    now = dict(changes or {})
    before = read_plan(path.parent).get("changes", now)
    if before != now:
        raise ValueError(
            f"{path.parent} keeps {suite.name} with the changes {before}, not {now}; keep it in another folder"
        )
    if runs is None or not Path(records).is_dir():
        return
    elsewhere = _recorded_elsewhere(records, suite)
    for row in suite.rows:
        for recipe in suite.recipes(row):
            source = _run_or_none(Path(runs) / recipe.name)
            target = Run(elsewhere.get(recipe, kept_path(records, suite, row, recipe.seed)))
            if source is not None and source.is_finished and target.is_finished:
                _check_same(source, target)


def kept_path(records: str | os.PathLike[str], suite: Suite, row: Row, seed: int) -> Path:
    """Return the folder of the recorded run of a row with a seed."""
    return Path(records) / suite.name / row.slug / str(seed)


def restore(suite: Suite, records: str | os.PathLike[str], runs: str | os.PathLike[str]) -> list[Recipe]:
    """Copy the recorded runs of `suite`, whichever suite recorded them, into the folder `runs`; return their recipes.

    A run that is finished there is left as it is. An unfinished one is replaced: its result is known.
    """
    if not Path(records).is_dir():
        return []
    known = {Recipe.of(run): run for run in find_runs(records) if run.is_finished}
    restored = []
    for recipe in (recipe for row in suite.rows for recipe in suite.recipes(row)):
        if recipe not in known:
            continue
        run = _run_or_none(Path(runs) / recipe.name)
        if run is None:
            continue
        restored.append(recipe)
        # Another process that holds the run is about to restore it.
        with suppress(LockedRunError):
            if not run.is_finished:
                with run.lock():
                    _replace_run(known[recipe], run)
    return restored


def _run_or_none(path: Path) -> Run | None:
    """Return the run at `path`; None where something else has its name, which training reports."""
    with suppress(ValueError):
        return Run(path)
    return None


def _replace_run(source: Run, run: Run) -> None:
    for path in (run.checkpoints_path, *run.record_paths, *(run.path / name for name in BESIDE)):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    # The recipe first, which makes it a run folder; the result last, which says that the rest is there.
    write_atomically(run.recipe_path, source.recipe_path.read_bytes())
    if source.checkpoints_path.is_dir():
        shutil.copytree(source.checkpoints_path, run.checkpoints_path)
    for name in (*COMPACT, source.result_path.name):
        if (source.path / name).is_file():
            write_atomically(run.path / name, (source.path / name).read_bytes())


def _recorded_elsewhere(records: str | os.PathLike[str], suite: Suite) -> dict[Recipe, Path]:
    """Return the finished runs that are recorded for other suites, by recipe."""
    own = Path(records) / suite.name
    return {
        Recipe.of(run): run.path
        for run in find_runs(records)
        if run.is_finished and own not in run.path.parents
    }


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_plan(folder: Path, suite: Suite, changes: dict[str, Any]) -> None:
    """Write suite.json: all rows, whichever were run now, and the largest number of seeds there ever was."""
    before = read_plan(folder)
    own = find_suite(suite.name)
    seeds = max((len(suite.recipes(row)) for row in suite.rows), default=0)
    seeds = max(seeds, before.get("seeds") or 0)
    plan: dict[str, Any] = {
        "name": suite.name,
        "rows": [],
        "changes": changes,
        "seeds": seeds if seeds > max(len(own.recipes(row)) for row in own.rows) else None,
        "command": f"nonloc reproduce {suite.name}",
        "seconds": 0.0,
    }
    if before != plan:
        write_plan(folder, plan)


def _was_observed(run: Run) -> bool:
    """Whether the network was observed as it ended; a recorded run is never observed again."""
    observations, outcome = read_json(run.path / "observations.json"), run.read_result()["outcome"]
    return bool(observations) and (
        outcome["ending"] == "diverged" or observations.get("step") == outcome["step"]
    )


def _keep_run(source: Run, target: Run) -> bool:
    """Copy a run, or what is missing of it; return whether it is new."""
    is_new = not target.is_finished
    if is_new:
        target.write_recipe(source.read_recipe())
    else:
        _check_same(source, target)
    for name in COMPACT:
        if (source.path / name).is_file() and (is_new or not (target.path / name).is_file()):
            write_atomically(target.path / name, _compact(source.path / name))
    if is_new:
        result = source.read_result()
        if "records" in result:
            source.check_records(result["records"], source.result_path, whole=True)
        target.write_result(result | {"records": target.digests()})
    return is_new


def _check_same(source: Run, target: Run) -> None:
    """Raise a ValueError where a run is kept already with another recipe or result."""
    differing = ["recipe"] if source.read_recipe() != target.read_recipe() else []
    # The files of lines are shorter there.
    results = [run.read_result() | {"records": None} for run in (source, target)]
    differing += ["result"] if results[0] != results[1] else []
    if differing:
        raise ValueError(
            f"{target.path} keeps a run with another {' and '.join(differing)} than {source.path}; "
            "remove one of the two"
        )


def _keep_weights(row: Path, sources: Mapping[int, Run], which: str) -> str:
    """Copy the weights that a row should have; return what is missing, "" if nothing is."""
    if which == "none":
        return ""
    seeds = [path.parent for path in row.glob("*/recipe.json") if path.parent.name.isdecimal()]
    targets = {int(path.name): Run(path) for path in seeds if Run(path).is_finished}
    ranked = _from_the_median(targets)
    weighed = [seed for seed in targets if _has_whole_weights(targets[seed])]
    # Lazily: to know that weights are whole, all of them are read.
    available = (
        seed for seed in ranked if seed in weighed or (seed in sources and _has_whole_weights(sources[seed]))
    )
    chosen = list(available if which == "all" else islice(available, 1))
    for seed in chosen:
        if seed not in weighed:
            shutil.rmtree(targets[seed].checkpoints_path, ignore_errors=True)
            _copy_weights(sources[seed], targets[seed])
    if which == "all":
        missing = sorted(set(ranked) - set(chosen))
        return f"without seed {', '.join(map(str, missing))}" if missing else ""
    # The former median is replaced. More than one were kept with "all", perhaps with no copy elsewhere.
    if len(weighed) == 1 and chosen and weighed != chosen:
        shutil.rmtree(targets[weighed[0]].checkpoints_path)
    if chosen == ranked[:1]:
        return ""
    return f"seed {chosen[0]} in place of {ranked[0]}" if chosen else f"none in place of {ranked[0]}"


def _has_whole_weights(run: Run) -> bool:
    from nonloc_paper.training.checkpoint import latest_valid

    with suppress(CorruptDataError):
        return run.has_weights and latest_valid(run) is not None
    return False


def _from_the_median(targets: Mapping[int, Run]) -> list[int]:
    """Seeds of finished runs: the one with the median score (the lower one of two) first, then by distance from it."""
    scores = []
    for seed, run in targets.items():
        result = run.read_result()
        score = result["metrics"].get("error", result["metrics"].get("psnr"))
        if result["outcome"]["ending"] != "diverged" and score is not None:
            scores.append((score, seed))
    scores.sort()
    if not scores:
        return []
    middle = scores[(len(scores) - 1) // 2]
    scores.sort(key=lambda pair: (pair != middle, abs(pair[0] - middle[0]), pair))
    return [seed for _, seed in scores]


def _copy_weights(source: Run, target: Run) -> None:
    """Copy the weights of the newest checkpoint, which must have the hash that is in the result."""
    from nonloc_paper.training.checkpoint import MODEL, save_checkpoint, weights_sha256
    from nonloc_paper.training.trained import network_of, newest_checkpoint

    checkpoint, recipe, result = newest_checkpoint(source), Recipe.of(source), source.read_result()
    if weights_sha256(network_of(checkpoint, recipe)) != result["weights_sha256"]:
        raise CorruptDataError(
            f"the weights in {source.path} are not those of its result.json; train it anew"
        )
    tensors = {name: value for name, value in checkpoint.tensors.items() if name.startswith(MODEL)}
    save_checkpoint(target, recipe, replace(checkpoint, tensors=tensors))


def _compact(path: Path) -> bytes:
    """A JSON file, or JSON lines, in as few bytes as possible, with floats to DIGITS digits."""
    is_lines = path.suffix == ".jsonl"
    values = to_digits(read_lines(path)) if is_lines else [with_checksum(to_digits(read_json(path)))]
    lines = (json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n" for value in values)
    return "".join(lines).encode()
