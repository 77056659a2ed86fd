"""One step of training, and the forward pass that training and evaluation share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nonloc.training.recipe import Recipe
from nonloc.training.tasks import Task


class TrainingStep:
    """Forward, backward, update, for one batch. Reads nothing back from the device."""

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe) -> None:
        self.model = model
        self.task = task
        self.recipe = recipe
        self.optimizer = make_optimizer(model, recipe)

    def __call__(self, indices: Tensor, generator: torch.Generator, learning_rate: float) -> Tensor:
        """Train on the images `indices` [B]; the loss before the update, a tensor [] on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        inputs, targets = self.task.train_batch(indices, generator)
        loss = self.task.loss(forward(self.model, inputs, self.recipe), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def forward(model: nn.Module, inputs: Tensor, recipe: Recipe) -> Tensor:
    """The network's outputs in float32, computed in the recipe's precision and memory layout."""
    if recipe.channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        outputs = model(inputs)
    return outputs.float()


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    if recipe.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )
