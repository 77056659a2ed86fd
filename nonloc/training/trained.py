"""The network that a run has trained so far."""

from __future__ import annotations

import os
from dataclasses import asdict

import torch
from torch import nn

from nonloc.networks.build import build
from nonloc.runs import Run
from nonloc.training.checkpoint import latest_valid
from nonloc.training.randomness import initialization
from nonloc.training.recipe import Recipe
from nonloc.training.state import restore_model


def trained_network(run: Run | str | os.PathLike[str], device: torch.device | str = "cpu") -> nn.Module:
    """The network of the newest valid checkpoint of `run`, in eval mode on `device`."""
    run = run if isinstance(run, Run) else Run.open(run)
    recipe = Recipe.from_dict(run.read_recipe())
    checkpoint = latest_valid(run, recipe)
    if checkpoint is None:
        raise ValueError(f"{run.path} has no checkpoint yet; train it first")
    # The initial values are replaced at once, but drawing them must not disturb the caller's generators.
    with initialization(recipe.seed):
        model = build(recipe.network, num_classes=checkpoint.num_classes, **asdict(recipe.stage))
    restore_model(model, checkpoint.tensors)
    return model.to(device).eval()
