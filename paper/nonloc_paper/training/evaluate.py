"""Evaluation of a network on the test images, with running statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from nonloc.modes import evaluating
from nonloc_paper.training.precision import precision_of
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import forward
from nonloc_paper.training.tasks import Task


def evaluate(
    model: nn.Module, task: Task, recipe: Recipe, *, should_stop: Callable[[], object] | None = None
) -> dict[str, float] | None:
    """{"test_loss": …, "error" or "psnr": …}, means over the test images; None if `should_stop` said so.

    The model is in eval mode for the time, and sums stay on the device until the end.
    """
    sums = torch.zeros(2, dtype=torch.float64, device=task.device)
    with evaluating(model), precision_of(recipe, task.device):
        for inputs, targets in task.test_batches(recipe.batch_size):
            if should_stop is not None and should_stop():
                return None
            sums += task.measure(forward(model, inputs, recipe), targets)
    loss, score = (sums / len(task.test)).tolist()
    return {"test_loss": loss, task.score: score}
