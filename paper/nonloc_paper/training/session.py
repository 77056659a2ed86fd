"""Session: a run in progress. The network, its optimizer, and where it is."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from nonloc.outcomes import CorruptDataError
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.fast import accelerate
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.captured import CapturedEvaluation
from nonloc_paper.training.checkpoint import Checkpoint, remove_later, save_checkpoint
from nonloc_paper.training.convoy import Convoy
from nonloc_paper.training.evaluate import evaluate
from nonloc_paper.training.graphs import CaptureError
from nonloc_paper.training.lean import LeanStep
from nonloc_paper.training.losses import Event, Losses
from nonloc_paper.training.parts import Part, elsewhere, place, with_part
from nonloc_paper.training.plan import Batch, EpochPlan
from nonloc_paper.training.randomness import initialization
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.schedule import learning_rate
from nonloc_paper.training.spectra import record_spectra, stage_weights
from nonloc_paper.training.state import capture, has_finite_parameters, restore_model, restore_optimizer
from nonloc_paper.training.step import TrainingStep
from nonloc_paper.training.tasks import TASKS
from nonloc_paper.training.writing import Writing


class Session:
    """The state of a run between two steps.

    epoch          whole epochs done, evaluated and recorded
    step_in_epoch  steps of the next epoch done
    place          where this process works, as a part of the run without its seconds

    convoy         take steps in it, and evaluate, as CUDA graphs. The current stream is then the convoy's whenever a
                   method is called. What cannot be recorded is done plainly, with a warning.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        dataset: Dataset,
        device: torch.device,
        *,
        convoy: Convoy | None = None,
    ) -> None:
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
        self.model = accelerate(model).to(device).to(memory_format=layout)  # type: ignore[call-overload]
        self.train_step = (TrainingStep if convoy is None else LeanStep)(self.model, self.task, recipe)
        self._generator = torch.Generator(device)
        self._convoy = convoy
        self._rider = None if convoy is None else convoy.join(self.train_step)
        self._has_boarded = False
        self._captured_evaluation: CapturedEvaluation | None = None
        if convoy is not None:
            self._captured_evaluation = CapturedEvaluation(self.model, self.task, recipe)
        self.epoch = 0
        self.step_in_epoch = 0
        self._plans: dict[int, EpochPlan] = {}
        self._losses = Losses(self.steps_per_epoch, device)
        self._writing = Writing(in_background=device.type == "cuda")
        self.place = place(device)
        self._parts_before: list[Part] = []
        self._seconds_before = 0.0
        self._started = self._saved = time.monotonic()

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

    @property
    def parts_elsewhere(self) -> list[Part]:
        """The parts of the run that were done on other machines, or with other versions."""
        return elsewhere(self._parts_before, self.place)

    @property
    def seconds_unsaved(self) -> float:
        """Seconds of work since the last checkpoint."""
        return time.monotonic() - self._saved

    def begin(self) -> None:
        """A new run: forget what a run without a checkpoint left behind, and record the initial spectra."""
        if self.run.read_metrics():
            warnings.warn(
                f"{self.run.metrics_path} tells of a run, but {self.run.checkpoints_path} has no checkpoint to go on "
                "from; beginning anew",
                RuntimeWarning,
                stacklevel=2,
            )
        self.run.truncate(-1)
        record_spectra(self.run, stage_weights(self.model), 0)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where `checkpoint` was made; what was recorded after it will be recorded again."""
        if checkpoint.data_sha256 != self.data_sha256:
            raise ValueError(
                f"{self.run.path} was begun on other data called {self.recipe.data!r} (its images or labels differ); "
                "go on with the same data, or use a new folder"
            )
        self._check_metrics(checkpoint)
        restore_model(self.model, checkpoint.tensors)
        restore_optimizer(self.train_step.optimizer, self.model, checkpoint.tensors)
        self.epoch, self.step_in_epoch = checkpoint.epoch, checkpoint.step_in_epoch
        self._losses.resume(checkpoint.losses)
        self._parts_before, self._seconds_before = checkpoint.parts, checkpoint.seconds
        self.run.truncate(checkpoint.epoch)
        remove_later(self.run, checkpoint.step)

    def _check_metrics(self, checkpoint: Checkpoint) -> None:
        recorded = [line.get("epoch", 0) for line in self.run.read_metrics()]
        found = [epoch for epoch in recorded if epoch <= checkpoint.epoch]
        if found != list(range(1, checkpoint.epoch + 1)):
            raise CorruptDataError(
                f"{self.run.metrics_path} does not have one line for each of the {checkpoint.epoch} epochs that were "
                f"done when the checkpoint was made ({len(found)} were found); bring back the file that belongs "
                f"to the checkpoint, or delete {self.run.checkpoints_path} to begin anew"
            )

    def take_step(self) -> None:
        """One batch: at once, or with the convoy's next departure. Does not wait for the device."""
        batch = self._plan(self.epoch).batch(self.step_in_epoch)
        loss = self._losses.place(self.step_in_epoch)
        self.train_step.set_rate(learning_rate(self.recipe, self.step, self.steps_per_epoch))
        self._has_boarded = self._board(batch, loss)
        if not self._has_boarded:
            loss.copy_(self.train_step.work(batch.indices, self._generator.manual_seed(batch.seed)))
        self.step_in_epoch += 1

    def stay_behind(self) -> None:
        """The convoy did not depart: the last step, if it was to be done by its departure, was not done."""
        if self._has_boarded:
            self.step_in_epoch -= 1
        self._has_boarded = False

    def loss_of(self, step_in_epoch: int) -> Tensor:
        """Of a step of this epoch that is done, a tensor [] on the device."""
        return self._losses.place(step_in_epoch)

    def _board(self, batch: Batch, loss: Tensor) -> bool:
        """Whether the convoy takes the step."""
        if self._convoy is None or self._rider is None:
            return False
        try:
            self._convoy.board(self._rider, batch, loss)
        except CaptureError as error:
            self._leave_convoy()
            self._captured_evaluation = None
            _warn_of_plain("steps", self.recipe, error)
            return False
        return True

    def _leave_convoy(self) -> None:
        if self._convoy is not None and self._rider is not None:
            self._convoy.leave(self._rider)
        self._rider = None

    def _plan(self, epoch: int) -> EpochPlan:
        """What the steps of an epoch are given; does not wait for the device."""
        if epoch not in self._plans:
            # The one before may still be in use while the next is made ready.
            self._plans = {known: self._plans[known] for known in self._plans if known == epoch - 1}
            self._plans[epoch] = EpochPlan.make(
                self.recipe, epoch, len(self.task.train), self.steps_per_epoch, self.device
            )
        return self._plans[epoch]

    def send_losses(self) -> None:
        """Let the losses up to here come to the host; does not wait for the device."""
        self._losses.send(self.step_in_epoch)

    def arrivals(self, most: int = 0) -> Iterator[Event]:
        """The events to wait for until no more than `most` sendings of losses are on their way."""
        while (event := self._losses.pending(most)) is not None:
            yield event

    def read_losses(self) -> list[float]:
        """The losses that arrived since the last reading, up to the first that is not finite."""
        return self._losses.read()

    @property
    def first_unread_step(self) -> int:
        """The step, counted from 0 over the run, after those whose losses were read and found finite."""
        return self.epoch * self.steps_per_epoch + self._losses.first_unread

    def launch_evaluation(self) -> None:
        """Let the device evaluate after the steps it was given, if it can do so on its own; meanwhile, get ready."""
        if self._captured_evaluation is not None:
            try:
                with self._apart():
                    self._captured_evaluation.launch()
            except (CaptureError, torch.cuda.OutOfMemoryError) as error:
                self._captured_evaluation = None
                _warn_of_plain("evaluation", self.recipe, error)
        self._plan(self.epoch + 1)

    def read_evaluation(self, should_stop: Callable[[], object]) -> dict[str, float] | None:
        """What is measured of the network as it is; None if `should_stop` said so before."""
        if self._captured_evaluation is not None and not self._captured_evaluation.is_launched:
            # A run that is resumed between the last step of an epoch and its evaluation.
            self.launch_evaluation()
        if self._captured_evaluation is not None:
            with self._apart():
                return self._captured_evaluation.read()
        return evaluate(self.model, self.task, self.recipe, should_stop=should_stop)

    def _apart(self) -> AbstractContextManager[None]:
        """Inside, work is launched beside that of the convoy's other riders."""
        assert self._convoy is not None
        assert self._rider is not None
        return self._convoy.apart(self._rider)

    def finish_epoch(self, measured: dict[str, float]) -> dict[str, Any]:
        """Record the epoch whose steps are all done; returns its line of metrics."""
        rate = learning_rate(self.recipe, self.step - 1, self.steps_per_epoch)
        sizes = self._batch_sizes()
        train_loss = float((self._losses.at_hand().double() * sizes).sum() / sizes.sum())
        self._losses.begin_epoch()
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        line = {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": train_loss,
            **measured,
            "learning_rate": rate,
            "seconds": round(self.seconds, 3),
        }
        self._writing.do(lambda: self.run.append_metrics(line))
        if self.epoch in self.recipe.spectrum_epochs or self.epoch == self.recipe.epochs:
            weights, epoch = stage_weights(self.model), self.epoch
            self._writing.do(lambda: record_spectra(self.run, weights, epoch))
        return line

    def save(self) -> None:
        """Write a checkpoint, unless the weights are not finite: the last good one is worth more."""
        if not has_finite_parameters(self.model):
            return
        group, seconds = self.train_step.optimizer.param_groups[0], self.seconds
        rate = learning_rate(self.recipe, max(self.step - 1, 0), self.steps_per_epoch)
        checkpoint = Checkpoint(
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            seconds=seconds,
            num_classes=self.num_classes,
            data_sha256=self.data_sha256,
            losses=self._losses.at_hand()[: self.step_in_epoch].tolist(),
            tensors=capture(self.model, self.train_step.optimizer),
            optimizer={key: value for key, value in group.items() if key != "params"} | {"lr": rate},
            parts=with_part(self._parts_before, self.place, seconds - self._seconds_before),
        )
        self._saved = time.monotonic()
        self._writing.do(lambda: save_checkpoint(self.run, self.recipe, checkpoint))

    def finish_writing(self) -> None:
        """Wait until all that was recorded and saved is in the folder."""
        self._writing.finish()

    def close(self) -> None:
        """Wait for the files and the device, which must not be at work in memory that is about to be freed."""
        try:
            self._writing.close()
        finally:
            self._leave_convoy()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()

    def _batch_sizes(self) -> torch.Tensor:
        """float64 [steps_per_epoch]; the last batch of a whole pass may be smaller."""
        size, images = self.recipe.batch_size, len(self.task.train)
        firsts = torch.arange(self.steps_per_epoch) * size
        return (images - firsts).clamp(max=size).double()


def _warn_of_plain(what: str, recipe: Recipe, error: Exception) -> None:
    warnings.warn(
        f"the {what} of {recipe.network} cannot be captured as a CUDA graph ({error}); "
        "going on with the plain loop, which gives the same result and takes longer",
        RuntimeWarning,
        stacklevel=4,
    )


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
