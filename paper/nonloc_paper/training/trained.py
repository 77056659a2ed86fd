"""The network that a run has trained so far."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from nonloc.outcomes import Outcome
from nonloc_paper.fast import accelerate
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import Checkpoint, latest_valid
from nonloc_paper.training.randomness import initialization
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.state import restore_model


def trained_network(run: Run | str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The network of the newest valid checkpoint of `run`, in eval mode on `device`."""
    run = run if isinstance(run, Run) else Run.open(run)
    return network_of(newest_checkpoint(run), Recipe.of(run), device)


def newest_checkpoint(run: Run) -> Checkpoint:
    """The newest valid checkpoint of `run`; where there is none, a ValueError says why.

    Whoever needs the step of a network, too, takes both from this: a run that is training soon has a newer one.
    """
    checkpoint = latest_valid(run)
    if checkpoint is None:
        raise ValueError(_why_no_checkpoint(run))
    return checkpoint


def network_of(checkpoint: Checkpoint, recipe: Recipe, device: torch.device | str = "cpu") -> nn.Module:
    """The network of `checkpoint`, accelerated as in training, in eval mode on `device`."""
    # The initial values are replaced at once, but drawing them must not disturb the caller's generators.
    with initialization(recipe.seed):
        model = build(recipe.network, num_classes=checkpoint.num_classes, **asdict(recipe.stage))
    restore_model(model, checkpoint.tensors)
    return accelerate(model).to(device).eval()


def _why_no_checkpoint(run: Run) -> str:
    if not run.is_finished:
        return f"{run.path} has no checkpoint yet; train it first"
    outcome = Outcome.from_dict(run.read_result()["outcome"])
    if outcome.ending == "diverged":
        return f"{run.path} diverged, at step {outcome.step:,}, and has no weights to look at"
    again = f"to train it again: nonloc train --config {run.recipe_path} --run DIR"
    others = ", ".join(str(path) for path in _with_weights_beside(run))
    kept = f"another seed's are in {others}" if others else "no other seed's are beside it"
    return f"{run.path} is finished, but its weights were not kept; {kept}; {again}"


def _with_weights_beside(run: Run) -> list[Path]:
    """The folders beside it of the same recipe but for the seed, that have checkpoints."""
    recipe = run.read_recipe() | {"seed": None}
    return [
        path.parent
        for path in sorted(run.path.parent.glob("*/recipe.json"))
        if Run(path.parent).has_weights and Run(path.parent).read_recipe() | {"seed": None} == recipe
    ]
