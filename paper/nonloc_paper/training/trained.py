"""The network of a run: newly initialised, or as trained so far."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict

import torch
from torch import nn

from nonloc.outcomes import CorruptDataError
from nonloc_paper.fast import accelerate
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run, read_json
from nonloc_paper.training.checkpoint import Checkpoint, latest_valid, restore_model
from nonloc_paper.training.own_network import OwnNetwork, make_own_network
from nonloc_paper.training.plan import initialization
from nonloc_paper.training.recipe import Recipe


def new_network(recipe: Recipe, num_classes: int) -> nn.Module:
    """Build the recipe's network on the CPU, accelerated, with the initial weights of its seed."""
    with initialization(recipe.seed):
        model = build(recipe.network, num_classes=num_classes, **asdict(recipe.stage))
    return accelerate(model)


def trained_network(
    run: Run | str | os.PathLike[str], device: torch.device | str = "cpu", *, model: OwnNetwork | None = None
) -> nn.Module:
    """Return the network of the newest valid checkpoint of `run`, in eval mode on `device`.

    model  the network of your own that `fit` was given; a new one is returned

    >>> from nonloc_paper import Recipe, fit, trained_network
    >>> from nonloc_paper.data import Dataset, Split
    >>> images = Split(torch.zeros(4, 3, 12, 12, dtype=torch.uint8))
    >>> mine = Dataset("mine", images, images)
    >>> recipe = Recipe("restorer4/diffusive-2@1", "mine", epochs=1)
    >>> outcome = fit(recipe, "runs/second", data=mine, device="cpu", progress=False)
    >>> trained_network("runs/second")(torch.zeros(1, 3, 12, 12)).shape
    torch.Size([1, 3, 12, 12])
    """
    run = Run.open(run)
    recipe = Recipe.of(run)
    own = None if model is None else make_own_network(model, recipe)[0]
    return network_of(newest_checkpoint(run), recipe, device, own)


def network_of(
    checkpoint: Checkpoint, recipe: Recipe, device: torch.device | str = "cpu", own: nn.Module | None = None
) -> nn.Module:
    """Return the network of `checkpoint`, accelerated as in training, in eval mode on `device`.

    own  the module to load it into, where the recipe does not say how to build one
    """
    model = new_network(recipe, checkpoint.num_classes) if own is None else own
    restore_model(model, checkpoint.tensors)
    return model.to(device).eval()


def newest_checkpoint(run: Run) -> Checkpoint:
    """Return the newest valid checkpoint of `run`; a ValueError says why there is none.

    Take a network and its step from one checkpoint: a run that is training soon has a newer one.
    """
    checkpoint = latest_valid(run)
    if checkpoint is not None:
        return checkpoint
    outcome = run.read_outcome()
    if outcome is None:
        raise ValueError(f"{run.path} has no checkpoint yet; train it first")
    if outcome.ending == "diverged":
        raise ValueError(f"{run.path} diverged, at step {outcome.step:,}, and has no weights to look at")
    # Runs next to it with the same recipe, but perhaps for the seed.
    recipe = run.read_recipe() | {"seed": None}
    others = []
    for path in sorted(run.path.parent.glob("*/recipe.json")):
        with suppress(CorruptDataError):  # damage in another run is not what is asked about
            if Run(path.parent).has_weights and read_json(path) | {"seed": None} == recipe:
                others.append(str(path.parent))
    others_text = (
        f"those of like runs are in {', '.join(others)}" if others else "no like run next to it has any"
    )
    raise ValueError(
        f"{run.path} is finished, but its weights were not kept; {others_text}; "
        f"to train it again: nonloc train --config {run.recipe_path} --run DIR"
    )
