"""fit: train one run from its recipe to its result, through any number of interruptions."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nonloc._checks import check_whole
from nonloc._checks import shown as shown_value
from nonloc.outcomes import DivergedError, Outcome
from nonloc_paper.data import load
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import has_finite_parameters, latest_valid, weights_sha256
from nonloc_paper.training.graph_group import GraphGroup
from nonloc_paper.training.machine import device_or_best, elsewhere, plain_defaults
from nonloc_paper.training.own_network import OwnNetwork, make_own_network
from nonloc_paper.training.progress import Progress
from nonloc_paper.training.ranks import ALONE, Ranks, device_of_rank, joined_ranks
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Event, Session
from nonloc_paper.training.step import Stream, new_stream, on_stream
from nonloc_paper.training.stopping import Stopping

# How many steps the host may be ahead of a CUDA device, over all runs side by side: enough that the device has work
# while the host writes a checkpoint, and few enough that it stops within a second.
STEPS_AHEAD = 200
# In how many transfers their losses come back.
TRANSFERS = 4
# The default time between checkpoints on a CUDA device: an epoch may take less than half a second, and a checkpoint
# delays all runs side by side.
SECONDS_UNSAVED = 15.0

Steps = Generator[Event | None, None, Outcome]
"""A run that advances one step at a time, so that one process can have several runs under way.

It yields None after every training step: resume it after the group's `step`. It yields an event where it has to wait
for the device: resume it after the event. It returns the Outcome. SaveAndStop may be thrown into it.
"""

Watch = Callable[[Session], None]
"""Called after every step, before the next one; on CUDA the step may still be under way on the current stream."""


@dataclass(frozen=True)
class Options:
    """The options of `fit`.

    steps_ahead  this run's share of STEPS_AHEAD
    ranks        the processes that share each batch
    own          the network, where the recipe does not say how to build one
    label        of the progress; the name of the run when left out
    """

    device: torch.device
    group: GraphGroup | None = None
    progress: bool = True
    checkpoint_every: int | None = None
    checkpoint_steps: int | None = None
    steps_ahead: int = STEPS_AHEAD
    watch: Watch | None = None
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    ranks: Ranks = ALONE
    own: nn.Module | None = None
    label: str | None = None

    def stream(self) -> Stream:
        """Return the stream to work on: the group's, if there is one."""
        return new_stream(self.device) if self.group is None else self.group.stream

    def saves_epoch(self, epoch: int, seconds: float) -> bool:
        """Return whether to save after an epoch, `seconds` of work after the last checkpoint."""
        if self.checkpoint_every is not None:
            return epoch % self.checkpoint_every == 0
        return self.device.type != "cuda" or seconds >= SECONDS_UNSAVED


class SaveAndStop(Exception):
    """Thrown into a run to end it because of an error elsewhere: it saves its progress and raises this again.

    group_has_stepped  whether the group has done a `step` since the run last took one
    """

    def __init__(self, *, group_has_stepped: bool) -> None:
        super().__init__(group_has_stepped)
        self.group_has_stepped = group_has_stepped


def fit(
    recipe: Recipe,
    run: Run | str | os.PathLike[str],
    *,
    model: OwnNetwork | None = None,
    data: Dataset | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    captured: bool | None = None,
    progress: bool = True,
    throw: bool = True,
    checkpoint_every: int | None = None,
    checkpoint_steps: int | None = None,
    stop_after: float | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train `recipe` in the folder `run`, or continue it, and return how it ended.

    An interrupted run continues from its newest valid checkpoint and, on the CPU, ends bit-identical to one that was
    not interrupted. A finished run is not touched: its stored Outcome is returned. A run whose checkpoints are all
    damaged, or that has lost its metrics, is a CorruptDataError that names the way out.

    SIGINT and SIGTERM (in the main thread) and a spent budget end the call after the current step, saved: Outcome
    "interrupted", with the number of a signal in `metrics["signal"]`. A loss that is not finite ends the run: Outcome
    "diverged" at that step; earlier records stay.

    Several processes train one run together where each has called `torch.distributed.init_process_group` before, as
    `torchrun -m -- nonloc train` does. Each takes its part of every batch. Gradients, losses and the moments of batch
    norm are over the whole batch. So the result is that of one process, to rounding, and a run may go on with another
    number of processes. The first one writes the files and calls on_epoch. In a module of your own, nothing but batch
    norm may join the images of a batch.

    Your own network and images, with `Dataset` and `Split` of `nonloc_paper.data`:

        data = Dataset("mine", Split(images, labels), Split(test_images, test_labels), classes=("cat", "dog"))
        recipe = Recipe(network="own-classifier/net", data="mine", epochs=10, milestones=())
        fit(recipe, "runs/mine", model=lambda: Net(num_classes=2), data=data)
        net = trained_network("runs/mine", model=lambda: Net(num_classes=2))

    model             a network of your own, for network="own-classifier/NAME" (images to logits) or "own-restorer/NAME"
                      (images to images): a function that makes it, with weights of the recipe's seed; or a module, of
                      which a copy is trained. NAME gets a fingerprint of its layers in recipe.json: only the same
                      network goes on. Random numbers that it draws, as dropout does, are not those of the seed
    data              the Dataset, also one of your own with a name of its own; None loads `recipe.data` from `data_dir`
    device            None is "cuda" where there is one, else "cpu"
    captured          replay every step as one CUDA graph, which is several times as fast for small networks. None: on
                      CUDA. A step that cannot be captured is done plainly, with a warning.
    progress          a bar on stderr, or lines where stderr is no terminal
    throw             raise DivergedError, which carries the Outcome, for a run that diverged
    checkpoint_every  save after every so many epochs; None is every one, but on CUDA only the first that ends after
                      15 s of work. The end of the run is always saved.
    checkpoint_steps  save also after every so many steps
    stop_after        a budget in seconds; at least one step or evaluation is done
    on_epoch          called with the metrics of every epoch that this call finishes, once they are recorded:
                      lambda m: writer.add_scalar("error", m["error"], m["epoch"]) for TensorBoard, wandb.log for
                      Weights & Biases. An error in it ends the call, and the same call goes on later.

    >>> from nonloc_paper import Recipe, fit
    >>> from nonloc_paper.data import Dataset, Split
    >>> images = Split(torch.zeros(4, 3, 12, 12, dtype=torch.uint8))
    >>> mine = Dataset("mine", images, images)
    >>> recipe = Recipe("restorer4/diffusive-2@1", "mine", epochs=1)
    >>> fit(recipe, "runs/first", data=mine, device="cpu", progress=False).sentence
    'The run ran to its end (epoch 1, step 1).'
    """
    if on_epoch is not None and not callable(on_epoch):
        raise ValueError(f"on_epoch must be a function of the metrics, got {shown_value(on_epoch)}")
    own = None
    if model is not None:
        own, recipe = make_own_network(model, recipe)
    run = run if isinstance(run, Run) else Run(run)
    stopping = Stopping(stop_after)

    def find_data() -> Dataset:
        if data is None:
            return load(recipe.data, data_dir)
        if data.name != recipe.data:
            raise ValueError(
                f"data is {data.name!r}, but the recipe says data={recipe.data!r}; make them agree"
            )
        return data

    with plain_defaults(), joined_ranks(recipe.sha256) as ranks:
        if ranks.count > 1:
            if captured:
                raise ValueError("captured=True takes one process; use captured=None with several")
            captured, progress, device = False, progress and ranks.is_first, device_of_rank(ranks, device)
        options = make_options(device, captured, progress, checkpoint_every, checkpoint_steps, stop_after)
        options = replace(options, on_epoch=on_epoch if ranks.is_first else None, ranks=ranks, own=own)
        with on_stream(options.stream()):
            outcome = _run_to_end(recipe, run, find_data, stopping, options)
    if stopping.signal is not None and outcome.ending != "interrupted":
        # It came too late to stop this run, but may be meant for the runs that follow.
        signal.raise_signal(stopping.signal)
    if throw and outcome.ending == "diverged":
        raise DivergedError(outcome)
    return outcome


def _run_to_end(
    recipe: Recipe, run: Run, find_data: Callable[[], Dataset], stopping: Stopping, options: Options
) -> Outcome:
    steps = train_steps(recipe, run, find_data, stopping, options, stopping)
    while True:
        try:
            event = next(steps)
        except StopIteration as end:
            return end.value
        if event is not None:
            event.synchronize()
        elif options.group is not None:
            options.group.step()


def make_options(
    device: torch.device | str | None,
    captured: bool | None,
    progress: bool,
    checkpoint_every: int | None,
    checkpoint_steps: int | None,
    stop_after: float | None,
) -> Options:
    """Check the options of `fit` and set the defaults of this machine."""
    for name, value in {"checkpoint_every": checkpoint_every, "checkpoint_steps": checkpoint_steps}.items():
        if value is not None:
            check_whole(name, value)
    where = device_or_best(device)
    if captured and where.type != "cuda":
        raise ValueError(f'captured=True needs device="cuda", got {where.type!r}; use captured=None')
    if stop_after is not None and not 0 <= stop_after < math.inf:
        raise ValueError(f"stop_after must be a number of seconds ≥ 0 or None, got {stop_after!r}")
    is_captured = where.type == "cuda" if captured is None else captured
    group = GraphGroup(where) if is_captured else None
    return Options(where, group, progress, checkpoint_every, checkpoint_steps)


def train_steps(
    recipe: Recipe,
    run: Run,
    find_data: Callable[[], Dataset],
    stopping: Stopping,
    options: Options,
    while_training: AbstractContextManager[Any] | None = None,
) -> Steps:
    """Train `recipe` in the folder `run`, or continue it, step by step; a finished run is not touched.

    find_data       called if there is anything to train
    stopping        says when to end early, saved
    while_training  entered between getting ready and writing the result
    """
    ranks = options.ranks
    with ExitStack() as folder:

        def enter() -> Outcome | None:
            if not run.is_finished:  # nothing will be written, perhaps nothing can be
                folder.enter_context(run.lock())
            # Read in any case: a recipe.json that cannot be understood must not be replaced.
            differing = recipe.differences(Recipe.of(run)) if run.exists else []
            # A run that failed in its first step has left nothing: another recipe may use its folder.
            if differing and run.has_begun:
                raise ValueError(
                    f"{run.recipe_path} is of another recipe: {'; '.join(differing)}; "
                    "use the same recipe or a new folder"
                )
            return run.read_outcome()

        # Before there is a folder: missing data leave none behind.
        data = None if run.exists else find_data()
        earlier = ranks.from_first(enter)
        if earlier is not None:
            return earlier
        data = find_data() if data is None else data
        session = Session(
            recipe, run, data, options.device, own=options.own, group=options.group, ranks=ranks
        )
        # Not earlier: a recipe that cannot be built or does not fit its data must not occupy the folder.
        if ranks.is_first and (not run.exists or not run.has_begun):
            run.write_recipe(recipe.to_dict())
        try:
            checkpoint = ranks.from_first(lambda: latest_valid(run, recipe))
            if checkpoint is None:
                session.begin()
            else:
                session.resume(checkpoint)
            total = recipe.epochs * session.steps_per_epoch
            with (
                Progress(options.label or run.name, session.step, total, is_shown=options.progress) as shown,
                while_training or nullcontext(),
            ):
                outcome = yield from _train(session, stopping, shown, options)
        except SaveAndStop as end:
            if not end.group_has_stepped:
                session.undo_requested_step()
            if session.step > 0:
                session.losses.send(session.step_in_epoch)
                for event in session.losses.pending():
                    event.synchronize()
                # A run that has diverged does so again from its last checkpoint.
                if all(math.isfinite(loss) for loss in session.losses.read()):
                    session.save()
            raise
        finally:
            session.close()
        if ranks.is_first and outcome.ending != "interrupted":
            run.write_result(_result(session, outcome))
        return ranks.from_first(lambda: outcome)


def _train(session: Session, stopping: Stopping, shown: Progress, options: Options) -> Steps:
    last = session.recipe.epochs
    every = max(1, options.steps_ahead // TRANSFERS) if session.device.type == "cuda" else 1
    # Several processes must read the same losses at the same step.
    under_way = TRANSFERS - 1 if session.ranks.count == 1 else 0
    while session.epoch < last:
        while session.step_in_epoch < session.steps_per_epoch:
            session.take_step()
            yield None
            if options.watch is not None:
                options.watch(session)
            steps = options.checkpoint_steps
            is_saved = steps is not None and session.step % steps == 0
            is_last = session.step_in_epoch == session.steps_per_epoch
            is_stopped = session.ranks.agree(stopping)
            must_know = is_saved or is_last or is_stopped
            if is_last and not is_stopped:
                session.launch_evaluation()
            if must_know or session.step % every == 0:
                session.losses.send(session.step_in_epoch)
                yield from session.losses.pending(0 if must_know else under_way)
                if losses := session.losses.read():
                    if not math.isfinite(losses[-1]):
                        message = f"The loss of this step was {losses[-1]}."
                        return _diverged(session, session.first_unread_step, message)
                    shown.step(session.first_unread_step, losses[-1])
            if is_stopped:
                return _interrupted(session, stopping)
            if is_saved:
                session.save()
        # A signal does not wait for an evaluation; a budget does, or a short one would never get past it.
        measured = session.read_evaluation(lambda: stopping.signal)
        if measured is None:
            return _interrupted(session, stopping)
        metrics = session.finish_epoch(measured)
        if session.epoch == last or options.saves_epoch(session.epoch, time.monotonic() - session.saved_at):
            session.save()
        # After saving: if the reader of stderr is gone, the broken pipe ends the run here.
        shown.epoch(metrics)
        if options.on_epoch is not None:
            options.on_epoch(dict(metrics))
        if session.epoch < last and session.ranks.agree(stopping):
            return _interrupted(session, stopping)
    if not has_finite_parameters(session.model):
        return _diverged(session, session.step - 1, "The weights were not finite after this step, the last.")
    return Outcome("finished", session.epoch, session.step, metrics=session.last_metrics())


def _diverged(session: Session, step: int, message: str) -> Outcome:
    epoch = step // session.steps_per_epoch + 1
    return Outcome("diverged", epoch, step, message, session.last_metrics())


def _interrupted(session: Session, stopping: Stopping) -> Outcome:
    # During an evaluation another process may have got the signal.
    session.ranks.agree(stopping)
    session.save()
    metrics = session.last_metrics()
    if stopping.signal is not None:
        metrics["signal"] = int(stopping.signal)
    return Outcome("interrupted", session.epoch, session.step, stopping.reason, metrics)


def _result(session: Session, outcome: Outcome) -> dict[str, Any]:
    """Return the content of result.json; the weights of a diverged network have no hash.

    "machine" and "versions" are those of the last process. A run that was also trained elsewhere has "earlier": the
    parts of its seconds that were spent there, with machine None if the checkpoint did not say it yet.
    """
    result = {
        "outcome": outcome.to_dict(),
        "metrics": outcome.metrics,
        "parameters": sum(parameter.numel() for parameter in session.model.parameters()),
        "data_sha256": session.data_sha256,
        "weights_sha256": weights_sha256(session.model) if outcome.ending == "finished" else None,
        "recipe_sha256": session.recipe.sha256,
        "records": session.run.digests(),
        "seconds": round(session.seconds, 3),
        **session.place,
    }
    earlier = [
        part | {"seconds": round(part["seconds"], 3)}
        for part in elsewhere(session.parts_before, session.place)
    ]
    return result | {"earlier": earlier} if earlier else result
