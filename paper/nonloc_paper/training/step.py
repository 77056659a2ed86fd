"""One step of training, and the forward pass that training and evaluation share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nonloc_paper.training.precision import autocast_of, precision_of
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.tasks import Chance, Task


class TrainingStep:
    """Forward, backward, update, for one batch. Reads nothing back from the device."""

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe) -> None:
        self.model = model
        self.task = task
        self.recipe = recipe
        self.optimizer = make_optimizer(model, recipe)
        # On CUDA the rate is a number in the device's memory, so that a recorded step can be given another one.
        on_cuda = task.device.type == "cuda"
        self._rate = torch.zeros((), dtype=torch.float32, device=task.device) if on_cuda else None
        self._rate_now = 0.0

    def __call__(self, indices: Tensor, chance: Chance, learning_rate: float) -> Tensor:
        """Train on the images `indices` [B]; the loss before the update, a tensor [] on the device."""
        self.set_rate(learning_rate)
        return self.work(indices, chance)

    def set_rate(self, learning_rate: float) -> None:
        """The learning rate from the next step on; does not wait for the device."""
        if self._rate is not None and learning_rate != self._rate_now:
            self._rate.fill_(learning_rate)
            self._rate_now = learning_rate
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate if self._rate is None else self._rate

    def work(self, indices: Tensor, chance: Chance) -> Tensor:
        """The step itself, at the rate that was set: launches on the device and nothing else."""
        self.model.train()
        with precision_of(self.recipe, self.task.device):
            inputs, targets = self.task.train_batch(indices, chance)
            loss = self.task.loss(forward(self._outputs, inputs, self.recipe), targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._collect_gradients()
            self.optimizer.step()
        return loss.detach()

    def _outputs(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def _collect_gradients(self) -> None:
        """What is left to do until every parameter has its gradient."""


def forward(model: Callable[[Tensor], Tensor], inputs: Tensor, recipe: Recipe) -> Tensor:
    """The network's outputs in float32, computed in the recipe's precision and memory layout."""
    if recipe.channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    with autocast_of(recipe, inputs.device):
        outputs = model(inputs)
    return outputs.float()


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """On CUDA the fused kernels, which can be recorded and take their rate from the device."""
    on_cuda = any(parameter.is_cuda for parameter in model.parameters())
    if recipe.optimizer == "adam":
        return torch.optim.Adam(
            model.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=on_cuda or None,
            capturable=on_cuda,
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
        fused=on_cuda or None,
    )
