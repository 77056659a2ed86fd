"""Observe the network of a run once, and record it in the run folder, so that reports only read.

    observations.json         the step, scores, affinities, the trace of the features
    observations.safetensors  images, uint8 [K, 3, H, W]; noisy and restored, float32 [K, 3, H, W] in [−1, 1];
                              affinity.<stage>, float32 [K, h, w]: the kernel's row of one position
    spectrum.json             of every W: the spectrum of sym(W), with the band of random weights
    spectra.jsonl             the spectra during training, one line for each recorded epoch

A number that is not finite is written as null, a tensor that is not finite is left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor, nn

from nonloc.nn.inspect import feature_trace, stage_inputs
from nonloc.nn.stable_weight import StableWeightMap
from nonloc.nn.stage import stages
from nonloc.nn.weight import WeightMap
from nonloc.ops import kernel_matrix, largest_logit_spread
from nonloc.spectrum import CAPTION, STABLE_CAPTION, random_band, weight_spectrum
from nonloc_paper.data import load
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.paths import real_path
from nonloc_paper.runs import Run, finite_or_none, read_json, write_atomically, write_json
from nonloc_paper.training.checkpoint import Checkpoint, latest_valid
from nonloc_paper.training.machine import device_or_best
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import forward
from nonloc_paper.training.tasks import TASKS, Restoration
from nonloc_paper.training.trained import network_of, newest_checkpoint

FORMAT = 2  # 2: with "quotient" and "linear" of every sub-block, and "logit_spread" of every stage
OBSERVATIONS = "observations.json"
TENSORS = "observations.safetensors"
SPECTRUM = "spectrum.json"
CHUNK = 256  # images in a batch over the whole test split

StageWeights = Mapping[str, Sequence[Tensor]]


def observe(
    run: Run | str | os.PathLike[str],
    data: Dataset | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    images: int = 5,
    batch_size: int = 32,
    folder: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Write the first three files for the newest checkpoint of `run`; return the content of observations.json.

    A network is not observed twice, except after a change of FORMAT. Without weights, existing observations stay. For a
    run that ended before its first checkpoint, {"step": None} is all that is written.

    data        the Dataset; None loads the recipe's from `data_dir`
    images      how many of the first test images to store
    batch_size  how many of the first test images the features and affinities are measured on
    folder      where to write; None is the run's own
    """
    run = Run.open(run)
    place = run.path if folder is None else Path(folder)
    device = device_or_best(device)
    recipe = Recipe.of(run)
    checkpoint = latest_valid(run, recipe)
    before = read_json(run.path / OBSERVATIONS)
    if checkpoint is None:
        return before or write_json(place / OBSERVATIONS, {"format": FORMAT, "step": None}, indent=1)
    if (before.get("format"), before.get("step")) == (FORMAT, checkpoint.step):
        return before
    _write_spectra(run, checkpoint, recipe, place)
    dataset = data if data is not None else load(recipe.data, data_dir)
    task = TASKS[recipe.task](recipe, dataset, device)
    model = network_of(checkpoint, recipe, device)
    inputs, targets = next(iter(task.test_batches(batch_size)))
    tensors = {"images": task.test.images[:images].cpu()}
    observations: dict[str, Any] = _where(checkpoint) | {"task": recipe.task, "batch_size": len(inputs)}
    same = None
    if isinstance(task, Restoration):
        observations |= _restore(task, model, recipe, inputs[:images], targets[:images], tensors)
        # Two positions of an image have the same number iff their colours are the same.
        colours = task.test.images[: len(inputs)].to("cpu", torch.int64).flatten(2)  # [B, 3, M]
        same = (colours[:, 0] * 256 + colours[:, 1]) * 256 + colours[:, 2]
    observations["affinity"] = _affinities(model, inputs, same, images, tensors)
    observations["features"] = feature_trace(model, inputs) if any(stages(model)) else []
    finite = {name: value.contiguous() for name, value in tensors.items() if bool(value.isfinite().all())}
    content = safetensors.torch.save(finite)
    write_atomically(place / TENSORS, content)
    observations["tensors_sha256"] = hashlib.sha256(content).hexdigest()
    # Last, because it says that the rest is there.
    return write_json(place / OBSERVATIONS, observations, indent=1)


def observe_spectra(
    run: Run | str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Write spectrum.json for the newest checkpoint of `run` to `folder`, by default the run's; return its content.

    What the run has recorded of the same step stays as it is.

    {"step", "epoch", "caption", "stages": [{"name", "form", "weights": [the Spectrum's dict with "norm" (Frobenius),
    "rank" and "band"]}]}; a stage with a W that is not finite has no entry. A stable W has no "band": its signs are
    fixed, not learned.
    """
    run = Run.open(run)
    place = run.path if folder is None else Path(folder)
    return _write_spectra(run, newest_checkpoint(run), Recipe.of(run), place)


def _write_spectra(run: Run, checkpoint: Checkpoint, recipe: Recipe, place: Path) -> dict[str, Any]:
    model = network_of(checkpoint, recipe)
    measured_stages = []
    for name, stage in stages(model):
        maps = [cast("WeightMap | StableWeightMap", one) for one in stage.maps]
        weights = [w.detach() for w in stage.weights()]
        # Finite factors may have a product that is not finite and has no spectrum.
        if all(bool(w.isfinite().all()) for w in weights):
            measured = [_spectrum(w, one) for w, one in zip(weights, maps, strict=True)]
            measured_stages.append({"name": name, "form": stage.form, "weights": measured})
    has_bands = all("band" in weight for stage in measured_stages for weight in stage["weights"])
    caption = CAPTION if has_bands else STABLE_CAPTION
    value = _where(checkpoint) | {"caption": caption, "stages": measured_stages}
    if real_path(place) == real_path(run.path) and read_json(place / SPECTRUM).get("step") == checkpoint.step:
        # Computed elsewhere, or to fewer digits, it is evidence.
        return finite_or_none(value)
    return write_json(place / SPECTRUM, value, indent=1)


def stage_weights(model: nn.Module) -> StageWeights:
    """Copy the matrices W of every stage, [C, C], to the CPU."""
    return {
        name: [weight.detach().to("cpu", copy=True) for weight in stage.weights()]
        for name, stage in stages(model)
    }


def record_spectra(run: Run, weights: StageWeights, epoch: int) -> None:
    """Append the spectra of all stages' weights after `epoch` epochs to spectra.jsonl.

    Record nothing for a network without stages, and for weights that are not finite.
    """
    matrices = [matrix for matrices in weights.values() for matrix in matrices]
    if matrices and all(bool(matrix.isfinite().all()) for matrix in matrices):
        recorded = [
            {"name": name, "weights": [weight_spectrum(matrix).to_dict() for matrix in matrices]}
            for name, matrices in weights.items()
        ]
        run.append_spectra({"epoch": epoch, "stages": recorded})


def _where(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"format": FORMAT, "step": checkpoint.step, "epoch": checkpoint.epoch}


def _spectrum(w: Tensor, origin: WeightMap | StableWeightMap) -> dict[str, Any]:
    norm = float(torch.linalg.matrix_norm(w.double()))
    measured = weight_spectrum(w).to_dict() | {"norm": norm, "rank": origin.rank}
    if isinstance(origin, StableWeightMap):
        return measured
    return measured | {"band": random_band(w.shape[0], origin.rank, norm).to_dict()}


def _restore(
    task: Restoration,
    model: nn.Module,
    recipe: Recipe,
    noisy: Tensor,
    clean: Tensor,
    tensors: dict[str, Tensor],
) -> dict[str, Any]:
    """Store the images; return the PSNR in dB of each, and `input_psnr`, that of all noisy test images."""
    with torch.no_grad():
        restored = forward(model, noisy, recipe)
    tensors["noisy"], tensors["restored"] = noisy.cpu(), restored.cpu()

    def psnr(some: Tensor) -> list[float]:
        rows = zip(some.split(1), clean.split(1), strict=True)
        return [float(task.measure(one, target)[1]) for one, target in rows]

    total = sum(float(task.measure(inputs, targets)[1]) for inputs, targets in task.test_batches(CHUNK))
    return {"psnr": {"noisy": psnr(noisy), "restored": psnr(restored)}, "input_psnr": total / len(task.test)}


def _affinities(
    model: nn.Module, inputs: Tensor, same: Tensor | None, images: int, tensors: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """For every stage: the kernel's row of one fixed position, and the weight of equal pixels.

    same  [B, M] a number for each position's clean pixel: equal numbers, equal pixels; None skips it

    same_share    mean share of the kernel's weight at *other* positions with the same clean pixel
    same_chance   the same for a uniform kernel
    spread        e to the entropy of a row, as a share of all positions: 1 for a uniform kernel
    apart         distance of the rows from their mean in total variation, below 1; 0 if all rows are equal, so that the
                  kernel is a weighted mean over the image
    logit_spread  largest difference of two logits in a row, over all rows, images and kernels; None without logits

    A kernel with negative entries has None for the first four.
    """
    measured = []
    for name, stage, x, _ in stage_inputs(model, inputs) if any(stages(model)) else []:
        if stage.subsample is not None:
            continue  # pooled positions are not pixels
        height, width = x.shape[-2:]
        position = (height // 2, width // 2)
        rows, shares, chances, spreads, aparts, affinities = [], [], [], [], [], []
        for index, one in enumerate(x.split(1)):
            with torch.no_grad():
                affinities += (found := stage.affinities(one))
                kernel = kernel_matrix(found[0])[0].double()  # [M, M]
            if index < images:
                rows.append(kernel[position[0] * width + position[1]].float().reshape(height, width).cpu())
            if not bool((kernel >= 0).all()):
                continue
            spreads.append(float(_spread(kernel)))
            aparts.append(float(_apart(kernel)))
            if same is not None and same.shape[1] == len(kernel):
                equal = (same[index][:, None] == same[index]).fill_diagonal_(False).to(kernel.device)
                shares.append(float((kernel * equal).sum() / kernel.sum()))
                chances.append(float(equal.double().mean()))
        tensors[f"affinity.{name}"] = torch.stack(rows)
        measured.append(
            {
                "stage": name,
                "position": list(position),
                "grid": [height, width],
                "spread": _mean(spreads),
                "apart": _mean(aparts),
                "logit_spread": largest_logit_spread(affinities),
                "same_share": _mean(shares),
                "same_chance": _mean(chances),
            }
        )
    return measured


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(kernel: Tensor) -> Tensor:
    """Return the mean over rows of e to the row's entropy, over the number of columns; kernel [M, M'] ≥ 0."""
    chances = kernel / kernel.sum(1, keepdim=True)
    return (-torch.special.xlogy(chances, chances).sum(1)).exp().mean() / kernel.shape[1]


def _apart(kernel: Tensor) -> Tensor:
    """Return the mean over rows of ½ Σ_j |p_ij − p̄_j|, p the normalised rows and p̄ their mean; kernel [M, M'] ≥ 0."""
    chances = kernel / kernel.sum(1, keepdim=True)
    return 0.5 * (chances - chances.mean(0)).abs().sum(1).mean()
