"""work: a run from its recipe to its result, as something that can be advanced a step at a time.

A generator, so that one process can have several runs under way. It yields None after every step it takes, to go on
once the convoy has departed, if it rides in one; or an event, to go on once it has happened. It returns the Outcome.
Where it waits, CutShort may be thrown into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from nonloc.outcomes import Outcome
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import latest_valid
from nonloc_paper.training.convoy import Convoy
from nonloc_paper.training.losses import Event
from nonloc_paper.training.progress import Progress, make_progress
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Session
from nonloc_paper.training.state import has_finite_parameters, weights_sha256
from nonloc_paper.training.stopping import Stopping
from nonloc_paper.training.streams import Stream, new_stream

Work = Generator[Event | None, None, Outcome]
Watch = Callable[[Session], None]
"""Looks on after every step, before the next one; on CUDA the step may still be under way on the current stream."""

# How many steps the host may be ahead of a device that works on its own, over all runs side by side: enough that it
# has something to do while the host writes a checkpoint, and little enough that it stops within a second.
STEPS_AHEAD = 200
# In how many portions their losses come back.
SENDINGS = 4
# How many seconds of work on a CUDA device are saved at a time, where the caller does not say: an epoch may take less
# than half a second, and a checkpoint takes time from all runs side by side.
SECONDS_UNSAVED = 15.0


@dataclass(frozen=True)
class Options:
    """How to work, as `fit` explains it; `steps_ahead` is this run's share."""

    device: torch.device
    convoy: Convoy | None = None
    progress: bool = True
    checkpoint_every: int | None = None
    checkpoint_steps: int | None = None
    steps_ahead: int = STEPS_AHEAD
    watch: Watch | None = None

    def stream(self) -> Stream:
        """The one to work on: the convoy's, if there is one."""
        return new_stream(self.device) if self.convoy is None else self.convoy.stream

    def saves_epoch(self, epoch: int, seconds: float) -> bool:
        """Whether to save at the end of an epoch, `seconds` of work after the last time."""
        if self.checkpoint_every is not None:
            return epoch % self.checkpoint_every == 0
        return self.device.type != "cuda" or seconds >= SECONDS_UNSAVED


class CutShort(Exception):
    """An error that is not this run's ends it: it is saved as far as it came, and raises this again.

    has_departed  whether the convoy has departed since the run last took a step
    """

    def __init__(self, *, has_departed: bool) -> None:
        super().__init__(has_departed)
        self.has_departed = has_departed


def work(
    recipe: Recipe,
    run: Run,
    find_data: Callable[[], Dataset],
    stopping: Stopping,
    options: Options,
    while_training: AbstractContextManager[Any] | None = None,
) -> Work:
    """Train what `recipe` says in the folder `run`, or go on with it; a finished run is not touched.

    find_data       is called if there is anything to train
    stopping        says when to end early, saved
    while_training  is entered between getting ready and writing the result
    """
    with run.lock():
        _check_recipe(recipe, run)
        if run.is_finished:
            return Outcome.from_dict(run.read_result()["outcome"])
        session = _open_session(recipe, run, find_data(), options)
        shown = make_progress(options.progress, run.name, session.step, session.total_steps)
        try:
            with while_training or nullcontext():
                outcome = yield from _train(session, stopping, shown, options)
        except CutShort as end:
            if not end.has_departed:
                session.stay_behind()
            _save_unless_diverged(session)
            raise
        finally:
            shown.close()
            session.close()
        if outcome.ending != "interrupted":
            run.write_result(_result(session, outcome))
    return outcome


def _train(session: Session, stopping: Stopping, shown: Progress, options: Options) -> Work:
    last = session.recipe.epochs
    every = max(1, options.steps_ahead // SENDINGS) if session.device.type == "cuda" else 1
    while session.epoch < last:
        while session.step_in_epoch < session.steps_per_epoch:
            session.take_step()
            yield None
            if options.watch is not None:
                options.watch(session)
            steps = options.checkpoint_steps
            is_saved = steps is not None and session.step % steps == 0
            is_last = session.step_in_epoch == session.steps_per_epoch
            is_stopped = bool(stopping.reason)
            must_know = is_saved or is_last or is_stopped
            if is_last and not is_stopped:
                session.launch_evaluation()
            if must_know or session.step % every == 0:
                session.send_losses()
                yield from session.arrivals(0 if must_know else SENDINGS - 1)
                if losses := session.read_losses():
                    if not math.isfinite(losses[-1]):
                        message = f"The loss of this step was {losses[-1]}."
                        return _diverged(session, session.first_unread_step, message)
                    shown.step(session.first_unread_step, losses[-1])
            if is_stopped:
                return _interrupted(session, stopping)
            if is_saved:
                session.save()
        # A signal cannot wait for an evaluation; a budget must, or a short one would never get past it.
        measured = session.read_evaluation(lambda: stopping.signal)
        if measured is None:
            return _interrupted(session, stopping)
        metrics = session.finish_epoch(measured)
        if session.epoch == last or options.saves_epoch(session.epoch, session.seconds_unsaved):
            session.save()
        # After saving: who was told may be gone, and the broken pipe ends the run here.
        shown.epoch(metrics)
        if session.epoch < last and stopping.reason:
            return _interrupted(session, stopping)
    if not has_finite_parameters(session.model):
        return _diverged(session, session.step - 1, "The weights were not finite after this step, the last.")
    return Outcome("finished", session.epoch, session.step, metrics=_last_metrics(session))


def _diverged(session: Session, step: int, message: str) -> Outcome:
    epoch = step // session.steps_per_epoch + 1
    return Outcome("diverged", epoch, step, message, _last_metrics(session))


def _interrupted(session: Session, stopping: Stopping) -> Outcome:
    session.save()
    metrics = _last_metrics(session)
    if stopping.signal is not None:
        metrics["signal"] = int(stopping.signal)
    return Outcome("interrupted", session.epoch, session.step, stopping.reason, metrics)


def _save_unless_diverged(session: Session) -> None:
    """Where nobody waits for events any more. One that has diverged comes to that again from its last checkpoint."""
    if session.step == 0:
        return
    session.send_losses()
    for event in session.arrivals():
        event.synchronize()
    if all(math.isfinite(loss) for loss in session.read_losses()):
        session.save()


def _last_metrics(session: Session) -> dict[str, Any]:
    session.finish_writing()
    return next(iter(session.run.read_metrics()[-1:]), {})


def _check_recipe(recipe: Recipe, run: Run) -> None:
    # Read in any case: what is no recipe of ours is not to be written over.
    differing = recipe.differences(Recipe.of(run)) if run.exists else []
    # One that failed in its first step has left nothing: its folder is free for a better recipe.
    if differing and run.has_begun:
        raise ValueError(
            f"{run.path} holds a run of another recipe: {'; '.join(differing)}; "
            "use the same recipe or a new folder"
        )


def _open_session(recipe: Recipe, run: Run, dataset: Dataset, options: Options) -> Session:
    session = Session(recipe, run, dataset, options.device, convoy=options.convoy)
    # Not earlier: a recipe that cannot be built or does not fit its data must not take possession of the folder.
    if not run.exists or not run.has_begun:
        run.write_recipe(recipe.to_dict())
    try:
        checkpoint = latest_valid(run, recipe)
        if checkpoint is None:
            session.begin()
        else:
            session.resume(checkpoint)
    except BaseException:
        session.close()
        raise
    return session


def _result(session: Session, outcome: Outcome) -> dict[str, Any]:
    """What result.json holds; the weights of a diverged network are not worth a hash.

    "machine" and "versions" are the last process's. A run that was also worked on elsewhere has "earlier", the parts of
    its seconds that were spent there; their machine is None if their checkpoint was made before it told.
    """
    is_whole = outcome.ending == "finished"
    result = {
        "outcome": outcome.to_dict(),
        "metrics": outcome.metrics,
        "parameters": sum(parameter.numel() for parameter in session.model.parameters()),
        "data_sha256": session.data_sha256,
        "weights_sha256": weights_sha256(session.model) if is_whole else None,
        "seconds": round(session.seconds, 3),
        **session.place,
    }
    earlier = [part | {"seconds": round(part["seconds"], 3)} for part in session.parts_elsewhere]
    return result | {"earlier": earlier} if earlier else result
