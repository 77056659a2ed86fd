"""Evaluation of a network on the test images, with running statistics: plain, or as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor, nn

from nonloc._evaluation import evaluating
from nonloc_paper.training import graph_group
from nonloc_paper.training.ranks import ALONE, Ranks
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import autocast_of, forward, precision_of
from nonloc_paper.training.tasks import Task

# Test images in a batch of the captured evaluation: enough to fill a large device.
CAPTURED_BATCH = 1000


def evaluate(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    should_stop: Callable[[], object] | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float] | None:
    """Return {"test_loss": …, "error" or "psnr": …}, means over the test images; None if `should_stop` said so.

    The model is in eval mode meanwhile, and sums stay on the device until the end. With several processes each takes
    some of the batches, and all return the same.
    """
    is_stopped = False
    sums = torch.zeros(2, dtype=torch.float64, device=task.device)
    with evaluating(model), precision_of(recipe, task.device):
        for inputs, targets in islice(task.test_batches(recipe.batch_size), ranks.rank, None, ranks.count):
            is_stopped = should_stop is not None and bool(should_stop())
            if is_stopped:
                break
            sums += task.measure(forward(model, inputs, recipe), targets)
    return None if ranks.is_any(is_stopped) else _means(ranks.add_up(sums), task)


class CapturedEvaluation:
    """`evaluate` in large batches as one CUDA graph, which waits for nothing until the result is read.

    Launch and read it on the same stream, which is not the default one.
    """

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe) -> None:
        self._model, self._task, self._recipe = model, task, recipe
        self._sums = torch.zeros(2, dtype=torch.float64, device=task.device)
        # An attribute, because the graph reads them at every replay.
        self._indices = torch.arange(len(task.test), device=task.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.is_launched = False

    def launch(self) -> None:
        """Start the evaluation of the network as it is at this point of the stream."""
        if self._graph is None:
            self._compute()
            self._graph, _ = graph_group.capture_graph(self._compute, torch.cuda.graph_pool_handle())
        self._graph.replay()
        self.is_launched = True

    def read(self) -> dict[str, float]:
        """Wait for the device and return the result, as `evaluate` does."""
        self.is_launched = False
        return _means(self._sums, self._task)

    def _compute(self) -> list[Tensor]:
        recipe, device, outputs, targets = self._recipe, self._task.device, [], []
        # While autocast stays entered, the weights are cast once for all batches.
        with evaluating(self._model), precision_of(recipe, device), autocast_of(recipe, device):
            for indices in self._indices.split(CAPTURED_BATCH):
                inputs, targets_here = self._task.test_batch(indices)
                outputs.append(forward(self._model, inputs, recipe))
                targets.append(targets_here)
        self._sums.copy_(self._task.measure(torch.cat(outputs), torch.cat(targets)))
        return [self._sums]


def _means(sums: Tensor, task: Task) -> dict[str, float]:
    loss, score = (sums / len(task.test)).tolist()
    return {"test_loss": loss, task.score: score}
