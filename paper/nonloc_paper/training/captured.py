"""The captured evaluation: one launch where the plain one has hundreds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nonloc.modes import evaluating
from nonloc_paper.training import graphs
from nonloc_paper.training.precision import autocast_of, precision_of
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.step import forward
from nonloc_paper.training.tasks import Task

# How many test images at a time; enough to keep a large device busy.
EVALUATION_BATCH = 1000


class CapturedEvaluation:
    """`evaluate` in large batches, as one CUDA graph; nothing is waited for until the result is read.

    To be launched and read on one and the same stream, which is not the default one.
    """

    def __init__(self, model: nn.Module, task: Task, recipe: Recipe) -> None:
        self._model, self._task, self._recipe = model, task, recipe
        self._sums = torch.zeros(2, dtype=torch.float64, device=task.device)
        # Kept, because the graph reads them at every replay.
        self._indices = torch.arange(len(task.test), device=task.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.is_launched = False

    def launch(self) -> None:
        """Begin the evaluation of the network as it is at this point of the stream."""
        if self._graph is None:
            self._work()
            self._graph, _ = graphs.record(self._work, torch.cuda.graph_pool_handle())
        self._graph.replay()
        self.is_launched = True

    def read(self) -> dict[str, float]:
        """What was measured since the launch; waits for the device."""
        self.is_launched = False
        loss, score = (self._sums / len(self._task.test)).tolist()
        return {"test_loss": loss, self._task.score: score}

    def _work(self) -> list[Tensor]:
        recipe, device, outputs, targets = self._recipe, self._task.device, [], []
        # While autocast stays entered, the weights are cast once for all batches.
        with evaluating(self._model), precision_of(recipe, device), autocast_of(recipe, device):
            for indices in self._indices.split(EVALUATION_BATCH):
                inputs, wanted = self._task.test_batch(indices)
                outputs.append(forward(self._model, inputs, recipe))
                targets.append(wanted)
        self._sums.copy_(self._task.measure(torch.cat(outputs), torch.cat(targets)))
        return [self._sums]
