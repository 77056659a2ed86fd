"""fit: from a recipe to a finished run folder, through as many interruptions as it takes."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import torch

from nonloc.data.dataset import Dataset
from nonloc.data.load import load
from nonloc.outcomes import DivergedError, Outcome
from nonloc.runs import Run
from nonloc.training.checkpoint import latest_valid
from nonloc.training.evaluate import evaluate
from nonloc.training.machine import machine, versions
from nonloc.training.progress import Progress, make_progress
from nonloc.training.recipe import Recipe
from nonloc.training.session import Session
from nonloc.training.state import has_finite_parameters, weights_sha256
from nonloc.training.stopping import Stopping

# How many steps a device that works on its own may run ahead before its losses are looked at.
STEPS_AHEAD = 50


def fit(
    recipe: Recipe,
    run: Run | str | os.PathLike[str],
    *,
    data: Dataset | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    throw: bool = True,
    checkpoint_every: int = 1,
    checkpoint_steps: int | None = None,
    stop_after: float | None = None,
) -> Outcome:
    """Train what `recipe` says in the folder `run`, or go on with it, and say how it ended.

    A run that was interrupted, by whatever means, goes on from its newest valid checkpoint and, on the CPU,
    ends bit-identical to one that was not. A finished run is not touched: its stored Outcome is returned.

    SIGINT and SIGTERM (in the main thread) and a spent budget end the call after the current step, saved:
    Outcome "interrupted", with the signal's number in `metrics["signal"]` if it was one. A loss that is not
    finite ends the run: Outcome "diverged" at that step, with all that was recorded before kept.

    data              the Dataset, if it is at hand; else `recipe.data` is loaded, from `data_dir`
    device            "cuda" where there is one, else "cpu"
    progress          a bar on stderr, or lines where stderr is no terminal
    throw             raise DivergedError, which carries the Outcome, for a run that diverged
    checkpoint_every  save after every so many epochs; the end of the run is always saved
    checkpoint_steps  save also after every so many steps
    stop_after        a budget in seconds; at least one step or evaluation is done
    """
    _check_whole("checkpoint_every", checkpoint_every)
    if checkpoint_steps is not None:
        _check_whole("checkpoint_steps", checkpoint_steps)
    if stop_after is not None and not 0 <= stop_after < math.inf:
        raise ValueError(f"stop_after must be a number of seconds ≥ 0 or None, got {stop_after!r}")
    run = run if isinstance(run, Run) else Run(run)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    stopping = Stopping(stop_after)
    with run.lock():
        _check_recipe(recipe, run)
        if run.is_finished:
            outcome = Outcome(**run.read_result()["outcome"])
        else:
            session = _open_session(recipe, run, _find_data(recipe, data, data_dir), where)
            shown = make_progress(progress, run.name, session.step, session.total_steps)
            try:
                with stopping:
                    outcome = _train(session, stopping, shown, checkpoint_every, checkpoint_steps)
            finally:
                shown.close()
            if outcome.ending != "interrupted":
                run.write_result(_result(session, outcome))
    if stopping.signal is not None and outcome.ending != "interrupted":
        # It came too late to stop this run, but whoever sent it may mean the runs that follow.
        signal.raise_signal(stopping.signal)
    if throw and outcome.ending == "diverged":
        raise DivergedError(outcome)
    return outcome


def _train(
    session: Session, stopping: Stopping, shown: Progress, checkpoint_every: int, checkpoint_steps: int | None
) -> Outcome:
    last = session.recipe.epochs
    steps_ahead = STEPS_AHEAD if session.device.type == "cuda" else 1
    while session.epoch < last:
        while session.step_in_epoch < session.steps_per_epoch:
            session.take_step()
            is_saved = checkpoint_steps is not None and session.step % checkpoint_steps == 0
            is_last = session.step_in_epoch == session.steps_per_epoch
            is_stopped = bool(stopping.reason)
            if is_saved or is_last or is_stopped or session.step % steps_ahead == 0:
                loss = session.read_losses()[-1]
                if not math.isfinite(loss):
                    return _diverged(session, session.first_unread_step, f"The loss of this step was {loss}.")
                shown.step(session.step, loss)
            if is_stopped:
                return _interrupted(session, stopping)
            if is_saved:
                session.save()
        # A signal cannot wait for an evaluation; a budget must, or a short one would never get past it.
        measured = evaluate(session.model, session.task, session.recipe, should_stop=lambda: stopping.signal)
        if measured is None:
            return _interrupted(session, stopping)
        shown.epoch(session.finish_epoch(measured))
        if session.epoch % checkpoint_every == 0 or session.epoch == last:
            session.save()
        if session.epoch < last and stopping.reason:
            return _interrupted(session, stopping)
    if not has_finite_parameters(session.model):
        return _diverged(session, session.step - 1, "The weights were not finite after this step, the last.")
    return Outcome("converged", session.epoch, session.step, metrics=_last_metrics(session.run))


def _diverged(session: Session, step: int, message: str) -> Outcome:
    epoch = step // session.steps_per_epoch + 1
    return Outcome("diverged", epoch, step, message, _last_metrics(session.run))


def _interrupted(session: Session, stopping: Stopping) -> Outcome:
    session.save()
    metrics = _last_metrics(session.run)
    if stopping.signal is not None:
        metrics["signal"] = int(stopping.signal)
    return Outcome("interrupted", session.epoch, session.step, stopping.reason, metrics)


def _last_metrics(run: Run) -> dict[str, Any]:
    return next(iter(run.read_metrics()[-1:]), {})


def _check_recipe(recipe: Recipe, run: Run) -> None:
    differing = recipe.differences(Recipe.from_dict(run.read_recipe())) if run.exists else []
    if differing:
        raise ValueError(
            f"{run.path} holds a run of another recipe: {'; '.join(differing)}; "
            "use the same recipe or a new folder"
        )


def _find_data(recipe: Recipe, data: Dataset | None, data_dir: str | os.PathLike[str] | None) -> Dataset:
    if data is None:
        return load(recipe.data, data_dir)
    if data.name != recipe.data:
        raise ValueError(f"data is {data.name!r}, but the recipe says data={recipe.data!r}; make them agree")
    return data


def _open_session(recipe: Recipe, run: Run, dataset: Dataset, device: torch.device) -> Session:
    session = Session(recipe, run, dataset, device)
    # Not earlier: a recipe that cannot be built or does not fit its data must not take possession of the folder.
    if not run.exists:
        run.write_recipe(recipe.to_dict())
    checkpoint = latest_valid(run, recipe)
    if checkpoint is None:
        session.begin()
    else:
        session.resume(checkpoint)
    return session


def _result(session: Session, outcome: Outcome) -> dict[str, Any]:
    """What result.json holds; the weights of a diverged network are not worth a hash."""
    is_whole = outcome.ending == "converged"
    return {
        "outcome": outcome.to_dict(),
        "metrics": outcome.metrics,
        "parameters": sum(parameter.numel() for parameter in session.model.parameters()),
        "data_sha256": session.data_sha256,
        "weights_sha256": weights_sha256(session.model) if is_whole else None,
        "seconds": round(session.seconds, 3),
        "machine": machine(session.device),
        "versions": versions(),
    }


def _check_whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
