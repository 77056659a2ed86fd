"""How far logits are apart, epoch by epoch, beside the losses: Table 1's row of different places in float32.

    nonloc reproduce table1 --rows "different places (proposed)" --seeds 1 --device cpu --kept null --output OUT \\
        --set precision=float32 channels_last=false --data-dir DATA
    python paper/experiments/places_float32.py OUT/runs/… COPIES DATA > paper/experiments/float32/different_places.json

A run keeps its newest checkpoint only: COPIES is a folder to which each was copied when it was there. Of every stage
the largest difference of two logits in a row is told, over the first 32 training images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import safetensors.torch
import torch

from nonloc.nn import stage_inputs
from nonloc.ops import largest_logit_spread
from nonloc_paper.data import load
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import restore_model
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import TASKS

IMAGES = 32


def main() -> None:
    folder, copies, data_dir = sys.argv[1:]
    run = Run.open(folder)
    recipe = Recipe.from_dict(run.read_recipe())
    data = load(recipe.data, data_dir)
    task = TASKS[recipe.task](recipe.with_(augment=False), data, "cpu")
    images, _ = task.train_batch(torch.arange(IMAGES), torch.zeros(1, dtype=torch.int64))
    metrics = {line["step"]: line for line in run.read_metrics()}
    lines = []
    for path in sorted(Path(copies).glob("*.safetensors")):
        step = int(path.stem)
        if step in metrics:
            lines.append(metrics[step] | {"logit_spreads": _spreads(recipe, data.num_classes, path, images)})
    # How it was computed is written with every part of a run.
    parts = json.loads(max(Path(copies).glob("*.json")).read_text())["parts"]
    outcome = run.read_result()["outcome"] if run.result_path.is_file() else None
    print(
        json.dumps(
            {
                "recipe": recipe.to_dict(),
                "epochs": lines,
                "outcome": outcome,
                **{name: parts[-1][name] for name in ("machine", "versions")},
            },
            indent=1,
        )
    )


def _spreads(recipe: Recipe, num_classes: int, path: Path, images: torch.Tensor) -> list[float | None]:
    network = build(recipe.network, num_classes=num_classes, **recipe.stage.to_dict())
    restore_model(network, safetensors.torch.load_file(path))
    with torch.no_grad():
        return [largest_logit_spread(stage.affinities(x)) for _, stage, x, _ in stage_inputs(network, images)]


if __name__ == "__main__":
    main()
