"""Which of the two things the paper changes lets a stage begin large: differences, or an affinity computed once?

    python paper/experiments/affinity_or_form.py

trains the demo's row with a large start, 4 sub-blocks, in both forms with three affinities:

  shared        computed once, from the stage's input
  same maps     computed again by every sub-block, all with one θ and φ
  own maps      computed again by every sub-block, each with its own θ and φ: what share_affinity=False does

and keeps, for every seed, the PSNR on the demo's test images, and how far the logits of each sub-block's kernel spread
on 8 of them, before and after training. The loop is a plain one, with the demo's recipe. About 3 minutes on one core;
the numbers go into affinity_or_form.json beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nonloc import logit_spread
from nonloc.nn.inspect import stage_inputs
from nonloc.nn.stage import stages
from nonloc_paper.data import load
from nonloc_paper.networks.build import build
from nonloc_paper.suites.catalog import SUITES
from nonloc_paper.training.machine import machine, versions
from nonloc_paper.training.plan import learning_rate
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import make_optimizer
from nonloc_paper.training.tasks import TASKS, Task

ROWS = {"original": "4 original, large start", "diffusive": "4 diffusive, large start"}
AFFINITIES = ("shared", "same maps", "own maps")
SEEDS = 3
IMAGES = 8
FILE = Path(__file__).with_suffix(".json")


def made(recipe: Recipe, affinity: str) -> nn.Module:
    model = build(recipe.network, **(recipe.stage.to_dict() | {"share_affinity": affinity == "shared"}))
    if affinity == "same maps":
        for _, stage in stages(model):
            stage.embeddings = nn.ModuleList([stage.embeddings[0]] * len(stage.embeddings))
    return model


def trained(recipe: Recipe, affinity: str, task: Task) -> dict[str, Any]:
    torch.manual_seed(recipe.seed)
    model = made(recipe, affinity).train()
    before = spreads(model, task)
    optimizer = make_optimizer(model, recipe)
    assert recipe.steps_per_epoch is not None
    chance = torch.Generator().manual_seed(recipe.seed)
    for step in range(recipe.epochs * recipe.steps_per_epoch):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step, recipe.steps_per_epoch)
        indices = torch.randint(len(task.train), (recipe.batch_size,), generator=chance)
        inputs, targets = task.train_batch(indices, chance)
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        sums = [task.measure(model(inputs), targets)[1] for inputs, targets in task.test_batches(64)]
    psnr = float(torch.stack(sums).sum() / len(task.test))
    return {"psnr": psnr, "before": before, "after": spreads(model, task)}


def spreads(model: nn.Module, task: Task) -> list[float]:
    """The largest of each sub-block's kernel."""
    inputs, _ = next(iter(task.test_batches(IMAGES)))
    ((_, stage, x, _),) = stage_inputs(model, inputs)
    with torch.no_grad():
        return [float(logit_spread(affinity).max()) for affinity in stage.affinities(x)]


def main() -> None:
    torch.set_num_threads(1)
    demo = {row.label: row.recipe for row in SUITES["demo"].rows}
    found = []
    for form, label in ROWS.items():
        for affinity in AFFINITIES:
            for seed in range(SEEDS):
                recipe = demo[label].with_(seed=seed)
                task = TASKS[recipe.task](recipe, load(recipe.data, None), torch.device("cpu"))
                found.append(
                    {"form": form, "affinity": affinity, "seed": seed, **trained(recipe, affinity, task)}
                )
                print(json.dumps(found[-1]), flush=True)
    where = torch.device("cpu")
    result = {"rows": found, "machine": machine(where), "versions": versions(where)}
    FILE.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
