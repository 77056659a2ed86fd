"""A network of your own in `fit`: how it is made, known again and checked."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable

from torch import Tensor, nn

from nonloc._checks import shown
from nonloc._evaluation import evaluating
from nonloc_paper.fast import accelerate
from nonloc_paper.training.plan import initialization
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import autocast_of, precision_of
from nonloc_paper.training.tasks import Task

OwnNetwork = nn.Module | Callable[[], nn.Module]
"""A module, or a function that makes one."""


def make_own_network(model: OwnNetwork, recipe: Recipe) -> tuple[nn.Module, Recipe]:
    """Return (a network that no one else holds, the recipe with its fingerprint)."""
    if not recipe.is_own_network:
        raise ValueError(
            f"model is given, but the recipe says network={recipe.network!r}; drop model, or use "
            'network="own-classifier/NAME" or "own-restorer/NAME"'
        )
    if not callable(model):
        raise ValueError(f"model must be a torch module or a function that makes one, got {shown(model)}")
    with initialization(recipe.seed):
        made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
    if not isinstance(made, nn.Module):
        raise ValueError(f"model must make a torch module, but made {shown(made)}")
    name, _, known = recipe.network.partition("@")
    here = fingerprint(made)
    if known and known != here:
        raise ValueError(
            f"model is another network than the recipe's {recipe.network!r}: its fingerprint is {here}; "
            "give the same network"
        )
    return accelerate(made), recipe.with_(network=f"{name}@{here}")


def fingerprint(model: nn.Module) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of what `print(model)` shows and of its tensors' names and shapes."""
    # Some modules show functions with their place in memory, which is another one in every process.
    lines = [re.sub(r" at 0x[0-9a-f]+", "", str(model))]
    lines += [f"{name} {value.dtype} {list(value.shape)}" for name, value in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def check_outputs(model: nn.Module, task: Task, recipe: Recipe, num_classes: int) -> None:
    """Raise a ValueError unless the network puts out what its task needs, for two test images."""
    inputs, _ = next(iter(task.test_batches(2)))
    with evaluating(model), precision_of(recipe, task.device), autocast_of(recipe, task.device):
        outputs = model(inputs)
    wanted = list(inputs.shape) if recipe.task == "restoration" else [len(inputs), num_classes]
    got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if got != wanted:
        raise ValueError(
            f"model must put out a tensor {wanted} for images {list(inputs.shape)}, as network={recipe.network!r} and "
            f"the data say; got {got}"
        )
