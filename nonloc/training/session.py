"""Session: a run in progress. The network, its optimizer, and where it is."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

import torch

from nonloc.data.dataset import Dataset
from nonloc.networks.build import build
from nonloc.runs import Run
from nonloc.training.checkpoint import Checkpoint, save_checkpoint
from nonloc.training.randomness import epoch_order, initialization, step_generator
from nonloc.training.recipe import Recipe
from nonloc.training.schedule import learning_rate
from nonloc.training.spectra import record_spectra
from nonloc.training.state import capture, has_finite_parameters, restore_model, restore_optimizer
from nonloc.training.step import TrainingStep
from nonloc.training.tasks import TASKS


class Session:
    """The state of a run between two steps.

    epoch          whole epochs done, evaluated and recorded
    step_in_epoch  steps of the next epoch done
    """

    def __init__(self, recipe: Recipe, run: Run, dataset: Dataset, device: torch.device) -> None:
        self.recipe = recipe
        self.run = run
        self.device = device
        self.num_classes = dataset.num_classes
        self.data_sha256 = dataset.sha256
        self.task = TASKS[recipe.task](recipe, dataset, device)
        self.steps_per_epoch = steps_per_epoch(recipe, len(self.task.train))
        with initialization(recipe.seed):
            model = build(recipe.network, num_classes=self.num_classes, **asdict(recipe.stage))
        # torch's own annotation of Module.to does not know the memory format alone.
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.model = model.to(device).to(memory_format=layout)  # type: ignore[call-overload]
        self.train_step = TrainingStep(self.model, self.task, recipe)
        self.epoch = 0
        self.step_in_epoch = 0
        self._order = torch.empty(0, dtype=torch.int64)
        # All losses of the epoch: their mean is then the same however often the run was resumed, and the
        # first bad one can be named although the device is not asked after every step.
        self._losses = torch.zeros(self.steps_per_epoch, device=device)
        self._checked = 0
        self._seconds_before = 0.0
        self._started = time.monotonic()

    @property
    def step(self) -> int:
        """Steps done since the beginning of the run."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    @property
    def total_steps(self) -> int:
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Seconds of work that led here, summed over resumptions."""
        return self._seconds_before + time.monotonic() - self._started

    def begin(self) -> None:
        """A new run: forget what a run without a checkpoint left behind, and record the initial spectra."""
        self.run.truncate(-1)
        record_spectra(self.run, self.model, 0)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where `checkpoint` was made; what was recorded after it will be recorded again."""
        if checkpoint.data_sha256 != self.data_sha256:
            raise ValueError(
                f"{self.run.path} was begun on other data called {self.recipe.data!r} (its images or labels differ); "
                "go on with the same data, or use a new folder"
            )
        restore_model(self.model, checkpoint.tensors)
        restore_optimizer(self.train_step.optimizer, self.model, checkpoint.tensors)
        self.epoch, self.step_in_epoch = checkpoint.epoch, checkpoint.step_in_epoch
        self._losses[: len(checkpoint.losses)] = torch.tensor(checkpoint.losses, device=self.device)
        self._seconds_before = checkpoint.seconds
        self.run.truncate(checkpoint.epoch)

    def take_step(self) -> None:
        """One batch. Does not wait for the device."""
        self.model.train()
        if self.step_in_epoch == 0 or not len(self._order):
            order = epoch_order(self.recipe.seed, self.epoch, len(self.task.train))
            self._order = order.to(self.device)
        first = self.step_in_epoch * self.recipe.batch_size
        self._losses[self.step_in_epoch] = self.train_step(
            self._order[first : first + self.recipe.batch_size],
            step_generator(self.recipe.seed, self.epoch, self.step_in_epoch, self.device),
            learning_rate(self.recipe, self.step, self.steps_per_epoch),
        )
        self.step_in_epoch += 1

    def read_losses(self) -> list[float]:
        """The losses since the last reading, up to the first that is not finite; waits for the device."""
        losses = self._losses[self._checked : self.step_in_epoch].tolist()
        good = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
        self._checked += good
        return losses[: good + 1]

    @property
    def first_unread_step(self) -> int:
        """The step, counted from 0 over the run, after those whose losses were read and found finite."""
        return self.epoch * self.steps_per_epoch + self._checked

    def finish_epoch(self, measured: dict[str, float]) -> dict[str, Any]:
        """Record the epoch whose steps are all done; returns its line of metrics."""
        rate = learning_rate(self.recipe, self.step - 1, self.steps_per_epoch)
        sizes = self._batch_sizes()
        train_loss = float((self._losses.double().cpu() * sizes).sum() / sizes.sum())
        self.epoch, self.step_in_epoch, self._checked = self.epoch + 1, 0, 0
        line = {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": train_loss,
            **measured,
            "learning_rate": rate,
            "seconds": round(self.seconds, 3),
        }
        self.run.append_metrics(line)
        if self.epoch in self.recipe.spectrum_epochs or self.epoch == self.recipe.epochs:
            record_spectra(self.run, self.model, self.epoch)
        return line

    def save(self) -> None:
        """Write a checkpoint, unless the weights are not finite: the last good one is worth more."""
        if not has_finite_parameters(self.model):
            return
        group = self.train_step.optimizer.param_groups[0]
        checkpoint = Checkpoint(
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            seconds=self.seconds,
            num_classes=self.num_classes,
            data_sha256=self.data_sha256,
            losses=self._losses[: self.step_in_epoch].tolist(),
            tensors=capture(self.model, self.train_step.optimizer),
            optimizer={key: value for key, value in group.items() if key != "params"},
        )
        save_checkpoint(self.run, self.recipe, checkpoint)

    def _batch_sizes(self) -> torch.Tensor:
        """float64 [steps_per_epoch]; the last batch of a whole pass may be smaller."""
        size, images = self.recipe.batch_size, len(self.task.train)
        firsts = torch.arange(self.steps_per_epoch) * size
        return (images - firsts).clamp(max=size).double()


def steps_per_epoch(recipe: Recipe, images: int) -> int:
    """How many batches an epoch over `images` training images has."""
    whole = math.ceil(images / recipe.batch_size)
    if recipe.steps_per_epoch is None:
        return whole
    if recipe.steps_per_epoch > whole:
        raise ValueError(
            f"steps_per_epoch={recipe.steps_per_epoch}, but {images} images make {whole} batches of "
            f"batch_size={recipe.batch_size}; use at most {whole}, or None"
        )
    return recipe.steps_per_epoch
