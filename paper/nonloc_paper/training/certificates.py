"""certify_run: certify whether the trained stages of a run can make features grow, on the features of test images."""

from __future__ import annotations

import os
from typing import Any

import torch

from nonloc.nn.inspect import stage_inputs
from nonloc.nn.stage import stages
from nonloc.ops import largest_logit_spread
from nonloc.processes.stability.certify import certify
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.data import load
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run, write_json
from nonloc_paper.training.machine import device_or_best, place
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import TASKS
from nonloc_paper.training.trained import network_of, newest_checkpoint

STABILITY = "stability.json"


def certify_run(
    run: Run | str | os.PathLike[str],
    data: Dataset | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    images: int = 2,
    keep: bool = False,
) -> list[dict[str, Any]]:
    """Certify each nonlocal stage of the newest checkpoint on the first test images; return one dict for each.

    {"name", "form", "num_blocks", "positions", "verdict", "growth", "repeated", "norm", "reason", "logit_spread",
     "blocks": [{"verdict", "growth", "largest", "lowest", "limit"}]}

    largest       the largest singular value of a sub-block's W
    lowest        the lowest eigenvalue of sym(W)
    limit         below it a symmetric W ≥ 0 would be stable with the sub-block's kernel
    logit_spread  the largest one of the stage's kernels; None without logits

    keep  also write them to the run's stability.json, with the step, the machine and the versions
    """
    run = Run.open(run)
    device = device_or_best(device)
    recipe = Recipe.of(run)
    checkpoint = newest_checkpoint(run)
    model = network_of(checkpoint, recipe, device)
    if not any(stages(model)):
        raise ValueError(f"{recipe.network} has no nonlocal blocks, so there is nothing to certify")
    dataset = data if data is not None else load(recipe.data, data_dir)
    inputs, _ = next(iter(TASKS[recipe.task](recipe, dataset, device).test_batches(images)))
    if len(inputs) < images:
        raise ValueError(f"there are {len(inputs)} test images, not {images}; ask for that many at most")
    certificates = [
        _certificate(name, stage, x, mask) for name, stage, x, mask in stage_inputs(model, inputs)
    ]
    if keep:
        value = {"step": checkpoint.step, "images": images, "stages": certificates, **place(device)}
        write_json(run.path / STABILITY, value)
    return certificates


def _certificate(name: str, stage: Any, x: torch.Tensor, mask: torch.Tensor | None) -> dict[str, Any]:
    with torch.no_grad():
        whole = certify(stage, x, mask=mask)
        affinities, weights = stage.affinities(x, mask), stage.weights()
        blocks = []
        for affinity, weight in zip(affinities, weights, strict=True):
            alone = certify(affinity, [weight.detach()], form=stage.form)
            blocks.append(
                {
                    "verdict": alone.verdict,
                    "growth": alone.growth,
                    "largest": float(torch.linalg.matrix_norm(weight.double(), 2)),
                    "lowest": float(torch.linalg.eigvalsh(weight.double() + weight.double().T)[0] / 2),
                    "limit": cfl_limit(affinity).limit if stage.form == "diffusive" else None,
                }
            )
    return {
        "name": name,
        "form": stage.form,
        "num_blocks": stage.num_blocks,
        "positions": affinities[0].positions,
        "verdict": whole.verdict,
        "growth": whole.growth,
        "repeated": whole.repeated,
        "norm": whole.norm,
        "reason": whole.reason,
        "logit_spread": largest_logit_spread(affinities),
        "blocks": blocks,
    }
