"""Checkpoints: safetensors for the numbers, a JSON manifest beside them; atomic, checked, without pickle.

`checkpoints/<step>.safetensors` is written first, `checkpoints/<step>.json` last: a checkpoint exists once
its manifest does, and is valid while the size and the SHA-256 in the manifest agree with the file. A crash at
any moment therefore leaves the checkpoints before it whole. What cannot be read is an error, and not damage: a run
that was saved is never begun anew behind its owner's back.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import TEMPORARY, Run, remove_leftover, write_atomically
from nonloc_paper.training.machine import versions
from nonloc_paper.training.parts import Part
from nonloc_paper.training.recipe import Recipe

FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run after `step` steps: `epoch` whole epochs and `step_in_epoch` steps of the next one.

    tensors      model and optimizer: a function of `step` alone, so that saving a step again, as before and
                 after its evaluation, changes nothing that an older manifest vouches for
    losses       of the steps of the unfinished epoch, float32 values that JSON carries exactly
    num_classes  what the network was built for, besides the recipe
    data_sha256  of the data it was trained on
    seconds      of work so far
    optimizer    the optimizer's scalars when it was saved, for the reader; the recipe decides them
    parts        on which machines the seconds were spent
    """

    step: int
    epoch: int
    step_in_epoch: int
    seconds: float
    num_classes: int
    data_sha256: str
    losses: list[float]
    tensors: dict[str, Tensor]
    optimizer: dict[str, Any]
    parts: list[Part] = field(default_factory=list)


def save_checkpoint(run: Run, recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Write `checkpoint`, then remove all others but the newest one before it."""
    folder = run.checkpoints_path
    folder.mkdir(parents=True, exist_ok=True)
    content = safetensors.torch.save(checkpoint.tensors)
    manifest = {
        "format": FORMAT,
        "step": checkpoint.step,
        "epoch": checkpoint.epoch,
        "step_in_epoch": checkpoint.step_in_epoch,
        "seconds": checkpoint.seconds,
        "num_classes": checkpoint.num_classes,
        "data_sha256": checkpoint.data_sha256,
        "losses": checkpoint.losses,
        "optimizer": checkpoint.optimizer,
        "parts": checkpoint.parts,
        "recipe_sha256": recipe.sha256,
        "recipe": recipe.to_dict(),
        "versions": versions(),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    tensors_path = folder / f"{checkpoint.step:08d}.safetensors"
    write_atomically(tensors_path, content)
    write_atomically(
        tensors_path.with_suffix(".json"), json.dumps(manifest, indent=2, allow_nan=False).encode()
    )
    _remove_all_but_two(folder, checkpoint.step)


def latest_valid(run: Run, recipe: Recipe | None = None) -> Checkpoint | None:
    """The newest whole checkpoint of `run`, or None if none was ever made; a damaged one is skipped with a warning.

    Where all of them are damaged, CorruptDataError says so. A checkpoint made with another recipe than `recipe` (the
    run's own when left out), or in another format, is a ValueError.
    """
    expected = recipe if recipe is not None else Recipe.of(run)
    damages: list[str] = []
    for path in sorted(_numbered(run.checkpoints_path, ".json"), reverse=True):
        try:
            checkpoint = _read(path, expected)
        except CorruptDataError as error:
            if not path.exists():
                # The run's own process has removed it meanwhile, because there are newer ones.
                return latest_valid(run, expected)
            damages.append(str(error))
            continue
        for damage in damages:
            warnings.warn(f"{damage}; going back to the checkpoint before it", RuntimeWarning, stacklevel=2)
        return checkpoint
    if damages:
        raise CorruptDataError(
            f"no checkpoint in {run.checkpoints_path} is whole ({'; '.join(damages)}); "
            "bring the files back, or delete that folder to begin anew"
        )
    return None


def remove_later(run: Run, step: int) -> None:
    """Remove the checkpoints after `step`: they are damaged, or the run would have gone on from them."""
    _remove(run.checkpoints_path, lambda other: other > step)


def _read(path: Path, expected: Recipe) -> Checkpoint:
    """The checkpoint of a manifest; CorruptDataError if it is damaged or a file of it missing."""
    try:
        manifest = json.loads(path.read_bytes())
        _check_format(path, manifest)
        content = path.with_suffix(".safetensors").read_bytes()
        if (len(content), hashlib.sha256(content).hexdigest()) != (manifest["size"], manifest["sha256"]):
            raise CorruptDataError(
                f"the checkpoint {path} is damaged: its numbers are not those that were written"
            )
        _check_recipe(path, manifest, expected)
        return Checkpoint(
            step=manifest["step"],
            epoch=manifest["epoch"],
            step_in_epoch=manifest["step_in_epoch"],
            seconds=manifest["seconds"],
            num_classes=manifest["num_classes"],
            data_sha256=manifest["data_sha256"],
            losses=manifest["losses"],
            tensors=safetensors.torch.load(content),
            optimizer=manifest["optimizer"],
            parts=manifest["parts"] if "parts" in manifest else _unknown_part(manifest),
        )
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptDataError(f"the checkpoint {path} is damaged ({error})") from error


def _check_format(path: Path, manifest: dict[str, Any]) -> None:
    if manifest["format"] != FORMAT:
        raise ValueError(
            f"the checkpoint {path} has format {manifest['format']}, but this version of nonloc reads {FORMAT}; "
            "go on with the version that made it, or use a new folder"
        )


def _check_recipe(path: Path, manifest: dict[str, Any], expected: Recipe) -> None:
    if manifest["recipe_sha256"] != expected.sha256:
        differing = expected.differences(Recipe.from_dict(manifest["recipe"]))
        raise ValueError(
            f"{path} was made with another recipe: {'; '.join(differing)}; "
            "use the same recipe or a new folder"
        )


def _unknown_part(manifest: dict[str, Any]) -> list[Part]:
    """Of a manifest that was written before it told the machine."""
    return [{"machine": None, "versions": manifest["versions"], "seconds": manifest["seconds"]}]


def _remove_all_but_two(folder: Path, step: int) -> None:
    """Keep `step` and the newest before it. Later ones are damaged: the run did not go on from them."""
    earlier = [int(path.stem) for path in _numbered(folder, ".json") if int(path.stem) < step]
    kept = {step, *sorted(earlier)[-1:]}
    _remove(folder, lambda other: other not in kept)
    for path in folder.glob("*" + TEMPORARY):
        remove_leftover(path)


def _remove(folder: Path, is_unwanted: Callable[[int], bool]) -> None:
    # Manifests go first: numbers without a manifest do not count, a manifest without numbers is damage.
    for suffix in (".json", ".safetensors"):
        for path in _numbered(folder, suffix):
            if is_unwanted(int(path.stem)):
                path.unlink()


def _numbered(folder: Path, suffix: str) -> list[Path]:
    return [path for path in folder.glob("*" + suffix) if path.stem.isdecimal()]
