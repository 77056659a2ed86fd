"""LeanStep: the same step with fewer launches, for a device that is faster than what it is given to do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import TrainingStep
from nonloc_paper.training.tasks import Task


class LeanStep(TrainingStep):
    """In bfloat16, casts the weights of all convolutions at once, and their gradients back at once.

    The numbers are those of `TrainingStep`: autocast rounds the same weights and gradients in the same way, with a
    launch for each.
    """

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe) -> None:
        super().__init__(model, task, recipe)
        convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        self._copies = Bfloat16Weights(model) if recipe.precision == "bfloat16" and convolves else None

    def _outputs(self, inputs: Tensor) -> Tensor:
        return super()._outputs(inputs) if self._copies is None else self._copies(inputs)

    def _collect_gradients(self) -> None:
        if self._copies is not None:
            self._copies.collect_gradients()


class Bfloat16Weights:
    """Copies of the convolutions' weights, made anew for every step.

    Only convolutions: whatever else a module does with a parameter, autocast casts the weight of a convolution.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._masters = {
            f"{name}.weight": module.weight
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv2d)
        }
        self._copies = {
            name: torch.empty_like(weight, dtype=torch.bfloat16, requires_grad=True)
            for name, weight in self._masters.items()
        }

    def __call__(self, inputs: Tensor) -> Tensor:
        """The model's outputs with the copies in place of the weights, under the caller's autocast."""
        for copy in self._copies.values():
            # A recording that failed may have left something.
            copy.grad = None
        with torch.no_grad():
            torch._foreach_copy_(list(self._copies.values()), list(self._masters.values()))
        return torch.func.functional_call(self._model, self._copies, (inputs,))

    def collect_gradients(self) -> None:
        """The copies' gradients, in float32, become those of the weights."""
        rounded, gradients = [], []
        for copy, weight in zip(self._copies.values(), self._masters.values(), strict=True):
            if copy.grad is not None:
                rounded.append(copy.grad)
                gradients.append(torch.empty_like(weight))
                weight.grad, copy.grad = gradients[-1], None
        torch._foreach_copy_(gradients, rounded)
