"""Checkpoints: the tensors of a network and its optimizer as safetensors, with a JSON manifest; no pickle.

`checkpoints/<step>.safetensors` is written first, `checkpoints/<step>.json` last. A checkpoint exists once its
manifest does, and is valid while the size and the SHA-256 in the manifest agree with the file, and the manifest with
its own checksum. So a crash at any moment leaves the earlier checkpoints whole. A checkpoint that cannot be read is an
error: a run that was saved is never silently begun again.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from nonloc._checks import is_whole
from nonloc.outcomes import CorruptDataError
from nonloc_paper.file_schemas import MANIFEST, OLDER_MANIFEST
from nonloc_paper.files import TEMPORARY, remove_leftover, write_atomically
from nonloc_paper.runs import Run, read_json, write_json
from nonloc_paper.schema import check
from nonloc_paper.training.machine import Part, versions
from nonloc_paper.training.recipe import Recipe

FORMAT = 3
UNVERIFIED = 2  # an older format, without "records" and a checksum
MODEL = "model."
OPTIMIZER = "optimizer."
RESTORE = "bring it back"
# Pieces of work that may wait for the disk: a slow disk holds the run up and does not fill the memory.
MOST_WAITING = 4


@dataclass(frozen=True)
class Checkpoint:
    """A run after `step` steps: `epoch` whole epochs and `step_in_epoch` steps of the next one.

    tensors      model and optimizer: a function of `step` alone, so that saving a step again, before and after its
                 evaluation, does not contradict the older manifest
    losses       of the steps of the unfinished epoch, float32 values that JSON stores exactly
    num_classes  an argument of the network besides the recipe
    data_sha256  of the training data
    seconds      of work so far
    optimizer    the optimizer's scalars when it was saved, for the reader; the recipe decides them
    parts        the machines on which the seconds were spent
    records      the digests of metrics.jsonl and spectra.jsonl at that time; None in an older, unverified checkpoint
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
    records: dict[str, dict[str, Any]] | None = None


_IN_MANIFEST = [one.name for one in fields(Checkpoint) if one.name != "tensors"]


def save_checkpoint(run: Run, recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Write `checkpoint`, then remove all others but the newest one before it."""
    folder = run.checkpoints_path
    folder.mkdir(parents=True, exist_ok=True)
    content = safetensors.torch.save(checkpoint.tensors)
    manifest = {
        "format": FORMAT,
        **{name: getattr(checkpoint, name) for name in _IN_MANIFEST},
        "records": run.digests(),
        "recipe_sha256": recipe.sha256,
        "recipe": recipe.to_dict(),
        "versions": versions(),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    tensors_path = folder / f"{checkpoint.step:08d}.safetensors"
    write_atomically(tensors_path, content)
    write_json(tensors_path.with_suffix(".json"), manifest, indent=2)
    earlier = [int(path.stem) for path in _numbered(run, ".json") if int(path.stem) < checkpoint.step]
    remaining = {checkpoint.step, max(earlier, default=checkpoint.step)}
    # Later ones are damaged: the run did not resume from them.
    _remove(run, lambda other: other not in remaining)
    for path in run.checkpoint_files(TEMPORARY):
        remove_leftover(path)


def latest_valid(run: Run, recipe: Recipe | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint of `run`, None without any; skip a damaged one with a warning.

    CorruptDataError if all are damaged, or if a run that came to its end has lost its last one: an earlier one is of
    another network. A checkpoint made with another recipe than `recipe` (by default the run's own), or in another
    format, is a ValueError.
    """
    expected = recipe if recipe is not None else Recipe.of(run)
    # Read first: a result that is there is younger than the last checkpoint.
    outcome = run.read_outcome()
    end = None if outcome is None or outcome.ending == "diverged" else outcome.step
    damages: list[str] = []
    for path in sorted(_numbered(run, ".json"), reverse=True):
        for file in (path, path.with_suffix(".safetensors")):
            if os.path.lexists(file) and not file.is_file():
                raise CorruptDataError(
                    f"{file} is a folder or a broken link in the place of a file; move it away, or bring the file "
                    "back; nothing was changed"
                )
        try:
            checkpoint = _read(path, expected)
        except (CorruptDataError, FileNotFoundError) as error:
            if not os.path.lexists(path):
                # The process that trains the run has removed it, because there are newer ones.
                return latest_valid(run, expected)
            damages.append(str(error))
            continue
        if end not in (None, checkpoint.step):
            raise CorruptDataError(
                f"{run.checkpoints_path}/{end:08d}, the last checkpoint of a finished run, is damaged or missing; "
                f"bring it back, or delete {run.result_path} and train again: it goes on from step {checkpoint.step:,}"
            )
        for damage in damages:
            warnings.warn(f"{damage}; going back to the checkpoint before it", RuntimeWarning, stacklevel=2)
        return checkpoint
    if damages:
        # A run with a result would not be trained.
        more = f" and {run.result_path}" if run.is_finished else ""
        raise CorruptDataError(
            f"no checkpoint in {run.checkpoints_path} is whole ({'; '.join(damages)}); "
            f"bring the files back, or delete that folder{more} to begin again"
        )
    return None


def remove_later(run: Run, step: int) -> None:
    """Remove the checkpoints after `step`: they are damaged, or the run would have resumed from them."""
    _remove(run, lambda other: other > step)


def _read(path: Path, expected: Recipe) -> Checkpoint:
    """Read the checkpoint of a manifest; CorruptDataError if it is damaged, FileNotFoundError if a file is missing."""
    manifest = read_json(path, fix=RESTORE)
    form = manifest.get("format")
    if is_whole(form) and form not in (FORMAT, UNVERIFIED):
        raise ValueError(
            f"the checkpoint {path} has format {form}, but this version of nonloc reads {FORMAT}; "
            "go on with the version that made it, or use a new folder"
        )
    check(manifest, MANIFEST if form == FORMAT else OLDER_MANIFEST, path, RESTORE)
    if manifest["step"] != int(path.stem) or len(manifest["losses"]) != manifest["step_in_epoch"]:
        raise CorruptDataError(
            f"the checkpoint {path} is damaged: its numbers contradict each other; {RESTORE}"
        )
    tensors_path = path.with_suffix(".safetensors")
    content = tensors_path.read_bytes()
    if (len(content), hashlib.sha256(content).hexdigest()) != (manifest["size"], manifest["sha256"]):
        raise CorruptDataError(
            f"the checkpoint {tensors_path} is damaged: its numbers are not those that were written"
        )
    if manifest["recipe_sha256"] != expected.sha256:
        differing = ["of another version"]
        with suppress(ValueError):
            differing = expected.differences(Recipe.from_dict(manifest["recipe"]))
        if not differing:
            raise CorruptDataError(
                f"the checkpoint {path} is damaged: it has the hash of another recipe; {RESTORE}"
            )
        raise ValueError(
            f"{path} was made with another recipe: {'; '.join(differing)}; "
            "use the same recipe or a new folder"
        )
    # Older manifests do not say the machine.
    part = {"machine": None, "versions": manifest["versions"], "seconds": manifest["seconds"]}
    values = {"parts": [part], "records": None} | manifest
    return Checkpoint(
        tensors=safetensors.torch.load(content), **{name: values[name] for name in _IN_MANIFEST}
    )


def _remove(run: Run, is_unwanted: Callable[[int], bool]) -> None:
    # Manifests first: tensors without a manifest do not count, a manifest without tensors is damage.
    for suffix in (".json", ".safetensors"):
        for path in _numbered(run, suffix):
            if is_unwanted(int(path.stem)):
                path.unlink()


def _numbered(run: Run, suffix: str) -> list[Path]:
    return [path for path in run.checkpoint_files(suffix) if path.stem.isdecimal()]


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copy all parameters, buffers and optimizer state to the CPU, by name."""
    tensors = {MODEL + name: value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{OPTIMIZER}{name}.{key}"] = value
    return _copies(tensors)


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the parameters and buffers of `state_tensors` into `model`; the names must agree."""
    model.load_state_dict(
        {name.removeprefix(MODEL): value for name, value in tensors.items() if name.startswith(MODEL)}
    )


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Load the state of `state_tensors` into `optimizer`, newly made from the same recipe for `model`."""
    state: dict[int, dict[str, Any]] = {}
    numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    for full_name, value in tensors.items():
        if full_name.startswith(OPTIMIZER):
            name, key = full_name.removeprefix(OPTIMIZER).rsplit(".", 1)
            state.setdefault(numbers[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    # Files do not store memory layouts, but the fused kernels need that of the parameters.
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            is_alike = isinstance(value, Tensor) and value.shape == parameter.shape
            if is_alike and value.stride() != parameter.stride():
                values[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def has_finite_parameters(model: nn.Module) -> bool:
    """Return whether no parameter is NaN or infinite; waits for the device once."""
    parameters = [parameter.detach() for parameter in model.parameters()]
    return bool(torch.nn.utils.get_total_norm(parameters, math.inf).isfinite())


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of all parameters and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(_copies(model.state_dict()).items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, contiguous, with one transfer for each dtype and device: each transfer costs a wait."""
    groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, value in tensors.items():
        groups.setdefault((value.dtype, value.device), []).append(name)
    copies: dict[str, Tensor] = {}
    for names in groups.values():
        whole = torch.cat([tensors[name].detach().reshape(-1) for name in names]).cpu()
        pieces = whole.split([tensors[name].numel() for name in names])
        for name, piece in zip(names, pieces, strict=True):
            copies[name] = piece.clone().view(tensors[name].shape)
    return {name: copies[name] for name in tensors}


class Writer:
    """Write files in order; on CUDA from a background thread, through a bounded queue.

    An error of the thread is raised by a later call, and nothing is written after it.
    """

    def __init__(self, *, in_background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "nonloc-writing") if in_background else None
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False

    def do(self, work: Callable[[], object]) -> None:
        """Call `work` after all that was asked for before."""
        if self._thread is None:
            work()
            return
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= MOST_WAITING):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._do_now, work))

    def _do_now(self, work: Callable[[], object]) -> None:
        # Later files rely on earlier ones.
        if self._has_failed:
            return
        try:
            work()
        except BaseException:
            self._has_failed = True
            raise

    def finish(self) -> None:
        """Wait until everything is written."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """Finish, and end the thread."""
        try:
            self.finish()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
