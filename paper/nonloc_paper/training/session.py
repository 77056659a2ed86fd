"""Session: one run in progress. The network, its optimizer, its losses and its position."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from nonloc.outcomes import CorruptDataError
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import OLD, Run
from nonloc_paper.training.checkpoint import (
    Checkpoint,
    Writer,
    has_finite_parameters,
    remove_later,
    restore_model,
    restore_optimizer,
    save_checkpoint,
    state_tensors,
)
from nonloc_paper.training.evaluate import CapturedEvaluation, evaluate
from nonloc_paper.training.graph_group import CaptureError, GraphGroup, Member
from nonloc_paper.training.machine import Part, place, with_part
from nonloc_paper.training.observe import record_spectra, stage_weights
from nonloc_paper.training.own_network import check_outputs
from nonloc_paper.training.plan import EpochPlan, learning_rate, steps_per_epoch
from nonloc_paper.training.ranks import ALONE, Ranks
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.shared_norm import share_norms
from nonloc_paper.training.step import TrainingStep
from nonloc_paper.training.tasks import TASKS
from nonloc_paper.training.trained import new_network

Event = torch.cuda.Event


class Losses:
    """The losses of an epoch, one for each step, on the device and copied to the host.

    All are stored. So their mean does not depend on interruptions, and the first one that is not finite can be named
    although the host does not wait for the device after every step. On CUDA they are sent to the host and read once
    they have arrived; elsewhere they are there at once.

    on_host  float32 [steps] on the CPU; complete once nothing is pending
    finite   how many steps of the epoch have losses that were read and are finite
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self._on_device = torch.zeros(steps, device=device)
        self._is_remote = device.type == "cuda"
        self.on_host = torch.zeros(steps, pin_memory=True) if self._is_remote else self._on_device
        self._sent: deque[tuple[Event, int]] = deque()
        self._arrived = 0
        self.finite = 0

    def at(self, step: int) -> Tensor:
        """Return the tensor [] on the device that stores the loss of a step of the epoch."""
        return self._on_device[step]

    def begin_epoch(self) -> None:
        """Forget the losses of the epoch before."""
        self._sent.clear()
        self._arrived = self.finite = 0

    def resume(self, losses: list[float]) -> None:
        """Set the losses of the first steps of an epoch that is resumed; they are read again."""
        for tensor in (self._on_device, self.on_host):
            tensor[: len(losses)] = torch.tensor(losses)

    def send(self, steps: int) -> None:
        """Send the losses of the first `steps` steps to the host, without waiting for the device."""
        if not self._is_remote:
            self._arrived = steps
            return
        self.on_host.copy_(self._on_device, non_blocking=True)
        event = Event(blocking=True)
        event.record()
        self._sent.append((event, steps))

    def pending(self, most: int = 0) -> Iterator[Event]:
        """Yield the events to wait for until at most `most` transfers are under way."""
        while True:
            while self._sent and self._sent[0][0].query():
                self._arrived = self._sent.popleft()[1]
            if len(self._sent) <= most:
                return
            yield self._sent[len(self._sent) - most - 1][0]

    def read(self) -> list[float]:
        """Return the losses that arrived since the last call, up to the first that is not finite; never waits."""
        losses = self.on_host[self.finite : self._arrived].tolist()
        good = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
        self.finite += good
        return losses[: good + 1]


class Session:
    """The state of a run between two steps.

    epoch          complete epochs, evaluated and recorded
    step_in_epoch  steps of the next epoch that are done
    losses         of that epoch
    place          where this process works, as a part of the run without its seconds
    parts_before   the parts of the run that earlier processes did
    saved_at       the time of the last checkpoint, by `time.monotonic`

    own            the network, where the recipe does not say how to build one
    group          do the steps in this GraphGroup, and evaluate as a CUDA graph. The current stream must then be the
                   group's whenever a method is called. Work that cannot be captured is done plainly, with a warning.
    ranks          the processes that share each batch; the first alone writes files
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        dataset: Dataset,
        device: torch.device,
        *,
        own: nn.Module | None = None,
        group: GraphGroup | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.recipe = recipe
        self.run = run
        self.device = device
        self.num_classes = dataset.num_classes
        self.data_sha256 = dataset.sha256
        self.task = TASKS[recipe.task](recipe, dataset, device)
        self.steps_per_epoch = steps_per_epoch(recipe, len(self.task.train))
        model = new_network(recipe, self.num_classes) if own is None else own
        # torch's own annotation of Module.to does not know the memory format alone.
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        self.model = model.to(device).to(memory_format=layout)  # type: ignore[call-overload]
        if own is not None:
            check_outputs(self.model, self.task, recipe, self.num_classes)
        if ranks.count > 1:
            self._check_batches()
            self.model = share_norms(self.model, device)
        self.train_step = TrainingStep(
            self.model, self.task, recipe, cast_together=group is not None, ranks=ranks
        )
        self._generator = torch.Generator(device)
        self._group = group
        self._member: Member | None = None
        self._captured_evaluation: CapturedEvaluation | None = None
        if group is not None:
            self._member = group.add(self.train_step)
            self._captured_evaluation = CapturedEvaluation(self.model, self.task, recipe)
        self.epoch = 0
        self.step_in_epoch = 0
        # The plan of the epoch before may still be in use while the next one is made.
        plan = partial(EpochPlan.make, recipe, len(self.task.train), self.steps_per_epoch, device)
        self._plan = lru_cache(2)(plan)
        self.losses = Losses(self.steps_per_epoch, device)
        self._writer = Writer(in_background=device.type == "cuda")
        self.place = place(device)
        self.parts_before: list[Part] = []
        self._seconds_before = 0.0
        self._started = self.saved_at = time.monotonic()

    @property
    def step(self) -> int:
        """Steps done since the beginning of the run."""
        return self.epoch * self.steps_per_epoch + self.step_in_epoch

    @property
    def first_unread_step(self) -> int:
        """The step, counted from 0 over the run, after those whose losses were read and are finite."""
        return self.epoch * self.steps_per_epoch + self.losses.finite

    @property
    def seconds(self) -> float:
        """Seconds of work so far, summed over resumptions."""
        return self._seconds_before + time.monotonic() - self._started

    def begin(self) -> None:
        """Begin a new run: set the records of a run without a checkpoint aside, and record the initial spectra."""
        if not self.ranks.is_first:
            return
        if self.run.read_metrics():
            warnings.warn(
                f"{self.run.metrics_path} describes a run, but {self.run.checkpoints_path} has no checkpoint to go on "
                f"from; beginning again, with the old lines in *{OLD} until there is one",
                RuntimeWarning,
                stacklevel=2,
            )
        self.run.set_aside()
        record_spectra(self.run, stage_weights(self.model), 0)

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`; later records are dropped and will be written again."""
        if checkpoint.data_sha256 != self.data_sha256:
            raise ValueError(
                f"{self.run.path} was begun on other data called {self.recipe.data!r} (its images or labels differ); "
                "go on with the same data, or use a new folder"
            )
        expected = checkpoint.epoch * self.steps_per_epoch + checkpoint.step_in_epoch
        if checkpoint.step != expected or checkpoint.step_in_epoch > self.steps_per_epoch:
            raise CorruptDataError(
                f"the checkpoint of step {checkpoint.step} in {self.run.checkpoints_path} is damaged: it says "
                f"{checkpoint.epoch} epochs and {checkpoint.step_in_epoch} steps, but an epoch has "
                f"{self.steps_per_epoch} steps; bring it back, or delete that folder to begin again"
            )
        if self.ranks.is_first:
            if checkpoint.records is None:
                self._check_epochs(checkpoint.epoch)
            else:
                self.run.check_records(checkpoint.records, self.run.checkpoints_path, whole=False)
        restore_model(self.model, checkpoint.tensors)
        restore_optimizer(self.train_step.optimizer, self.model, checkpoint.tensors)
        self.epoch, self.step_in_epoch = checkpoint.epoch, checkpoint.step_in_epoch
        self.losses.resume(checkpoint.losses)
        self.parts_before, self._seconds_before = checkpoint.parts, checkpoint.seconds
        if self.ranks.is_first:
            if checkpoint.records is None:
                self.run.truncate(checkpoint.epoch)
            else:
                self.run.cut_records(checkpoint.records)
            remove_later(self.run, checkpoint.step)

    def _check_batches(self) -> None:
        """Raise a ValueError where a batch has fewer images than there are processes."""
        images, size = len(self.task.train), self.recipe.batch_size
        least = min(size, images - (self.steps_per_epoch - 1) * size)
        if least < self.ranks.count:
            raise ValueError(
                f"{self.ranks.count} processes share each batch, but one has {least} images, with "
                f"batch_size={size} and {images} training images; use at most {least} processes"
            )

    def _check_epochs(self, epoch: int) -> None:
        """Check what can be checked of the records of an older checkpoint, which has no hash of them."""
        recorded = [line["epoch"] for line in self.run.read_metrics()]
        before = [each for each in recorded if each <= epoch]
        if before != list(range(1, epoch + 1)):
            raise CorruptDataError(
                f"{self.run.metrics_path} does not have one line for each of the {epoch} epochs before the "
                f"checkpoint (it has {len(before)}); bring back the file that belongs to the checkpoint, "
                f"or delete {self.run.checkpoints_path} to begin again"
            )
        warnings.warn(
            f"{self.run.path} goes on unverified: its checkpoint is of an older version, with hashes of the tensors "
            "but of no other number",
            RuntimeWarning,
            stacklevel=3,
        )

    def take_step(self) -> None:
        """Train on one batch: at once, or by the group's next `step`. Does not wait for the device."""
        batch = self._plan(self.epoch).batch(self.step_in_epoch)
        loss = self.losses.at(self.step_in_epoch)
        self.train_step.set_rate(learning_rate(self.recipe, self.step, self.steps_per_epoch))
        if self._group is not None and self._member is not None:
            try:
                self._group.request(self._member, batch, loss)
            except CaptureError as error:
                self._leave_group()
                self._captured_evaluation = None
                self._warn("steps", error)
        if self._member is None:
            loss.copy_(self.train_step.compute(batch.indices, self._generator.manual_seed(batch.seed)))
        self.step_in_epoch += 1

    def undo_requested_step(self) -> None:
        """Do not count the last step if it was requested from the group, which has not done it."""
        if self._member is not None:
            self.step_in_epoch -= 1

    def launch_evaluation(self) -> None:
        """Launch the captured evaluation, if there is one, behind the steps; meanwhile, plan the next epoch."""
        if self._captured_evaluation is not None:
            try:
                with self._on_own_stream():
                    self._captured_evaluation.launch()
            except (CaptureError, torch.cuda.OutOfMemoryError) as error:
                self._captured_evaluation = None
                self._warn("evaluation", error)
        self._plan(self.epoch + 1)

    def read_evaluation(self, should_stop: Callable[[], object]) -> dict[str, float] | None:
        """Return the evaluation of the network as it is; None if `should_stop` said so before."""
        if self._captured_evaluation is not None and not self._captured_evaluation.is_launched:
            # The run was resumed between the last step of an epoch and its evaluation.
            self.launch_evaluation()
        if self._captured_evaluation is not None:
            with self._on_own_stream():
                return self._captured_evaluation.read()
        return evaluate(self.model, self.task, self.recipe, should_stop=should_stop, ranks=self.ranks)

    def finish_epoch(self, measured: dict[str, float]) -> dict[str, Any]:
        """Record the epoch whose steps are all done; return its line of metrics."""
        rate = learning_rate(self.recipe, self.step - 1, self.steps_per_epoch)
        # The last batch of a whole pass may be smaller.
        firsts = torch.arange(self.steps_per_epoch) * self.recipe.batch_size
        sizes = (len(self.task.train) - firsts).clamp(max=self.recipe.batch_size).double()
        train_loss = float((self.losses.on_host.double() * sizes).sum() / sizes.sum())
        self.losses.begin_epoch()
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        line = {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": train_loss,
            **measured,
            "learning_rate": rate,
            "seconds": round(self.seconds, 3),
        }
        self._write(lambda: self.run.append_metrics(line))
        if self.epoch in self.recipe.spectrum_epochs or self.epoch == self.recipe.epochs:
            weights, epoch = stage_weights(self.model), self.epoch
            self._write(lambda: record_spectra(self.run, weights, epoch))
        return line

    def save(self) -> None:
        """Write a checkpoint, unless the weights are not finite: the last good one is worth more."""
        if not self.ranks.is_first or not has_finite_parameters(self.model):
            return
        options, seconds = self.train_step.optimizer.param_groups[0], self.seconds
        rate = learning_rate(self.recipe, max(self.step - 1, 0), self.steps_per_epoch)
        checkpoint = Checkpoint(
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            seconds=seconds,
            num_classes=self.num_classes,
            data_sha256=self.data_sha256,
            losses=self.losses.on_host[: self.step_in_epoch].tolist(),
            tensors=state_tensors(self.model, self.train_step.optimizer),
            optimizer={key: value for key, value in options.items() if key != "params"} | {"lr": rate},
            parts=with_part(self.parts_before, self.place, seconds - self._seconds_before),
        )
        self.saved_at = time.monotonic()
        self._write(lambda: save_checkpoint(self.run, self.recipe, checkpoint))
        self._write(self.run.drop_set_aside)

    def last_metrics(self) -> dict[str, Any]:
        """Return the newest line of metrics in the folder, {} without any; waits until all files are written."""
        self._writer.finish()
        return next(iter(self.run.read_metrics()[-1:]), {}) if self.ranks.is_first else {}

    def close(self) -> None:
        """Wait for the files and for the device, which must not use memory that is about to be freed."""
        try:
            self._writer.close()
        finally:
            self._leave_group()
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()

    def _write(self, work: Callable[[], object]) -> None:
        if self.ranks.is_first:
            self._writer.do(work)

    def _on_own_stream(self) -> AbstractContextManager[None]:
        assert self._group is not None
        assert self._member is not None
        return self._group.on_own_stream(self._member)

    def _leave_group(self) -> None:
        if self._group is not None and self._member is not None:
            self._group.remove(self._member)
        self._member = None

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(
            f"the {what} of {self.recipe.network} cannot be captured as a CUDA graph ({error}); "
            "going on with the plain loop, which gives the same result and takes longer",
            RuntimeWarning,
            stacklevel=4,
        )
