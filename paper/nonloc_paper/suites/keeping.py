"""keep and restore: finished runs in the repository, small enough to stay there.

    <kept>/<suite>/suite.json               which suite, with which changes
    <kept>/<suite>/<row>/<seed>/            a run folder, like any other, with
        recipe.json, result.json            as they were; machine and versions are in the result
        metrics.jsonl, spectra.jsonl        compact, to DIGITS digits
        spectrum.json, observations.json    the same; images and affinity maps are left out
        stability.json                      what `nonloc stability --keep` found, if it was asked
        checkpoints/                        the final weights without the optimizer's state, of the row's median seed

<row> is `Row.slug`. Every command that reads a run folder reads these.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from nonloc.outcomes import CorruptDataError, LockedRunError
from nonloc_paper.runs import (
    RESTORE,
    Run,
    check_holds,
    find_runs,
    read_json,
    read_lines,
    write_atomically,
    write_json,
)
from nonloc_paper.suites.catalog import find_suite
from nonloc_paper.suites.rows import PLAN, Row, Suite
from nonloc_paper.training.checkpoint import latest_valid, save_checkpoint
from nonloc_paper.training.observe import TENSORS, read_observations
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.state import MODEL, weights_sha256
from nonloc_paper.training.trained import network_of

DIGITS = 7
COMPACT = ("metrics.jsonl", "spectra.jsonl", "spectrum.json", "observations.json", "stability.json")
WEIGHTS = ("median", "all", "none")
PLAN_FIX = "restore it, or delete it"


@dataclass(frozen=True)
class Keeping:
    """What `keep` did.

    new       runs that were added
    same      runs that were there already, for this suite or for another
    weights   runs that have their weights
    lacking   rows some of whose weights are nowhere to be found, and what is kept in their place
    size      bytes of all that is kept of the suite
    total     bytes of all that is kept in the folder, of whatever suite
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
    kept: str | os.PathLike[str],
    *,
    changes: Mapping[str, Any] | None = None,
    weights: str = "median",
) -> Keeping:
    """Copy the finished runs of `suite` from the folder `runs` to `kept`/<suite>; doing it again changes nothing.

    A run that is kept already with another result is a ValueError, and so is a suite kept with other changes. What is
    kept for another suite is not kept twice: `restore` and the report find it there.

    changes  of all recipes, as `Suite.with_changes` took them, noted in suite.json
    weights  "median": of the converged run of each row with the median score, the lower one of two, or of the run
             nearest to it whose weights are at hand; as seeds are added it may become another run, whose weights then
             take the place of the first. "all" or "none": of no run that has none there yet
    """
    check_keeping(suite, kept, changes=changes, weights=weights)
    folder = Path(kept) / suite.name
    _note_suite(folder, suite, dict(changes or {}))
    elsewhere = _kept_elsewhere(kept, folder)
    new: list[Path] = []
    same: list[Path] = []
    lacking: list[str] = []
    for row in suite.rows:
        sources: dict[int, Run] = {}
        for recipe in suite.recipes(row):
            source = Run(Path(runs) / recipe.name)
            place = elsewhere.get(recipe, kept_path(kept, suite, row, recipe.seed))
            if source.is_finished and _was_observed(source):
                sources[recipe.seed] = source
                (new if _keep_one(source, place) else same).append(place)
        if lack := _keep_weights(folder / row.slug, sources, weights):
            lacking.append(f"{row.label} ({lack})")
    places = [run.path for run in find_runs(folder)]
    with_weights = tuple(path for path in places if Run(path).has_weights)
    return Keeping(tuple(new), tuple(same), with_weights, tuple(lacking), _bytes(folder), _bytes(Path(kept)))


def check_keeping(
    suite: Suite,
    kept: str | os.PathLike[str],
    *,
    changes: Mapping[str, Any] | None = None,
    weights: str = "median",
    runs: str | os.PathLike[str] | None = None,
) -> None:
    """A ValueError where `keep` would have one for its arguments: to be known before anything is trained.

    runs  the folder of the suite's runs, where some may be there already
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} is unknown; choose one of {', '.join(WEIGHTS)}")
    path = Path(kept) / suite.name / PLAN
    before = read_json(path, fix=PLAN_FIX).get("changes", {}) if path.is_file() else dict(changes or {})
    if before != dict(changes or {}):
        raise ValueError(
            f"{path.parent} keeps {suite.name} with the changes {before}, not {dict(changes or {})}; "
            "keep it in another folder"
        )
    if runs is None or not Path(kept).is_dir():
        return
    elsewhere = _kept_elsewhere(kept, Path(kept) / suite.name)
    for row in suite.rows:
        for recipe in suite.recipes(row):
            source = Run(Path(runs) / recipe.name)
            target = Run(elsewhere.get(recipe, kept_path(kept, suite, row, recipe.seed)))
            if source.is_finished and target.is_finished:
                _check_same(source, target)


def _kept_elsewhere(kept: str | os.PathLike[str], folder: Path) -> dict[Recipe, Path]:
    """What is kept for other suites than the one in `folder`."""
    return {
        Recipe.of(run): run.path
        for run in find_runs(kept)
        if run.is_finished and folder not in run.path.parents
    }


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def kept_path(kept: str | os.PathLike[str], suite: Suite, row: Row, seed: int) -> Path:
    """Where the run of a row with a seed is kept."""
    return Path(kept) / suite.name / row.slug / str(seed)


def restore(suite: Suite, kept: str | os.PathLike[str], runs: str | os.PathLike[str]) -> list[Recipe]:
    """Put the runs of `suite` that are kept, under whatever suite, into the folder `runs`; returns their recipes.

    A run that is finished there is left as it is. One that is not gives way: its result is known.
    """
    if not Path(kept).is_dir():
        return []
    known = {Recipe.of(run): run for run in find_runs(kept) if run.is_finished}
    restored = []
    for recipe in (recipe for row in suite.rows for recipe in suite.recipes(row)):
        if recipe not in known:
            continue
        restored.append(recipe)
        run = Run(Path(runs) / recipe.name)
        # Another process that holds it is about to put it there.
        with suppress(LockedRunError):
            if not run.is_finished:
                with run.lock():
                    _replace_run(known[recipe], run)
    return restored


def _replace_run(source: Run, run: Run) -> None:
    for path in (run.checkpoints_path, *(run.path / name for name in (*COMPACT, TENSORS))):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # The recipe first, which makes it a run folder; the result last: it is what says that the rest is there.
    names = [*COMPACT, source.result_path.name]
    write_atomically(run.recipe_path, source.recipe_path.read_bytes())
    if source.checkpoints_path.is_dir():
        shutil.copytree(source.checkpoints_path, run.checkpoints_path)
    for name in names:
        if (source.path / name).is_file():
            write_atomically(run.path / name, (source.path / name).read_bytes())


def _note_suite(folder: Path, suite: Suite, changes: dict[str, Any]) -> None:
    path = folder / PLAN
    before = read_json(path, fix=PLAN_FIX)
    # All rows, whichever were run now; more seeds than the suite has by itself if there ever were.
    seeds = max((len(suite.recipes(row)) for row in suite.rows), default=0)
    more = max(seeds, before.get("seeds") or 0)
    plan: dict[str, Any] = {
        "name": suite.name,
        "rows": [],
        "changes": changes,
        "seeds": more if more > _own_seeds(suite) else None,
        "command": f"nonloc reproduce {suite.name}",
        "seconds": 0.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    if before != plan:
        write_json(path, plan, indent=2)


def _own_seeds(suite: Suite) -> int:
    own = find_suite(suite.name)
    return max(len(own.recipes(row)) for row in own.rows)


def _was_observed(run: Run) -> bool:
    """Whether the network was looked at as it ended: without that, or with a look at an earlier one, it would be kept
    as done and never looked at again."""
    seen, outcome = read_observations(run), run.read_result()["outcome"]
    return seen is not None and (outcome["ending"] != "converged" or seen.get("step") == outcome["step"])


def _keep_one(source: Run, place: Path) -> bool:
    """Whether it is new."""
    target = Run(place)
    if target.is_finished:
        _check_same(source, target)
        for name in COMPACT:
            if (source.path / name).is_file() and not (place / name).is_file():
                write_atomically(place / name, _compact(source.path / name))
        return False
    target.write_recipe(source.read_recipe())
    for name in COMPACT:
        if (source.path / name).is_file():
            write_atomically(place / name, _compact(source.path / name))
    target.write_result(source.read_result())
    return True


def _check_same(source: Run, target: Run) -> None:
    """ValueError where a run is kept already, and came to something else."""
    differing = [
        name
        for name, one, other in (
            ("recipe", source.read_recipe(), target.read_recipe()),
            ("result", source.read_result(), target.read_result()),
        )
        if one != other
    ]
    if differing:
        raise ValueError(
            f"{target.path} keeps a run with another {' and '.join(differing)} than {source.path}; "
            "remove one of the two"
        )


def _keep_weights(row: Path, sources: Mapping[int, Run], which: str) -> str:
    """See to it that the right runs of a row have weights; what could not be done, "" if nothing."""
    found = find_runs(row) if row.is_dir() else []
    targets = {
        int(run.path.name): run
        for run in found
        if run.is_finished and run.path.parent == row and run.path.name.isdecimal()
    }
    ranked = _from_the_median(targets)
    if which == "none":
        return ""
    weighed = [seed for seed in targets if _has_whole_weights(targets[seed])]
    # One by one: to know that weights are whole, all of them are read.
    at_hand = (
        seed for seed in ranked if seed in weighed or (seed in sources and _has_whole_weights(sources[seed]))
    )
    wanted = list(at_hand if which == "all" else islice(at_hand, 1))
    for seed in wanted:
        if seed not in weighed:
            shutil.rmtree(targets[seed].checkpoints_path, ignore_errors=True)
            _copy_weights(sources[seed], targets[seed])
    if which == "all":
        missing = sorted(set(ranked) - set(wanted))
        return f"without seed {', '.join(map(str, missing))}" if missing else ""
    # The median of before gives way to that of now. More than one were kept with "all", perhaps with no copy elsewhere.
    if len(weighed) == 1 and wanted and weighed != wanted:
        shutil.rmtree(targets[weighed[0]].checkpoints_path)
    if wanted == ranked[:1]:
        return ""
    return f"seed {wanted[0]} in place of {ranked[0]}" if wanted else f"none in place of {ranked[0]}"


def _has_whole_weights(run: Run) -> bool:
    """Whether weights are there and not damaged."""
    with suppress(CorruptDataError):
        return run.has_weights and latest_valid(run) is not None
    return False


def _from_the_median(targets: Mapping[int, Run]) -> list[int]:
    """Seeds of converged runs, the one with the median score first, then by their distance from it.

    Of two in the middle, the one with the lower score is the median.
    """
    scores = sorted((score, seed) for seed, run in targets.items() if (score := _score(run)) is not None)
    if not scores:
        return []
    middle = scores[(len(scores) - 1) // 2]
    scores.sort(key=lambda pair: (pair != middle, abs(pair[0] - middle[0]), pair))
    return [seed for _, seed in scores]


def _score(run: Run) -> float | None:
    result = run.read_result()
    check_holds(result, {"metrics": {}}, run.result_path, RESTORE)
    if result["outcome"]["ending"] != "converged":
        return None
    return result["metrics"].get("error", result["metrics"].get("psnr"))


def _copy_weights(source: Run, target: Run) -> None:
    """The weights of the newest checkpoint, which must be those whose hash is in the result."""
    checkpoint = latest_valid(source)
    if checkpoint is None:
        return
    recipe, result = Recipe.of(source), source.read_result()
    check_holds(result, {"weights_sha256": str}, source.result_path, RESTORE)
    if weights_sha256(network_of(checkpoint, recipe)) != result["weights_sha256"]:
        raise CorruptDataError(
            f"the weights in {source.path} are not those of its result.json; train it anew"
        )
    tensors = {name: value for name, value in checkpoint.tensors.items() if name.startswith(MODEL)}
    save_checkpoint(target, recipe, replace(checkpoint, tensors=tensors))


def _compact(path: Path) -> bytes:
    """A JSON file, or JSON lines, in as few bytes as it takes."""
    values = read_lines(path) if path.suffix == ".jsonl" else [read_json(path)]
    lines = (json.dumps(_short(value), separators=(",", ":"), ensure_ascii=False) + "\n" for value in values)
    return "".join(lines).encode()


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value
