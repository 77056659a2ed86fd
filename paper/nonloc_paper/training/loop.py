"""fit: from a recipe to a finished run folder, through as many interruptions as it takes."""

from __future__ import annotations

import math
import os
import signal

import torch

from nonloc._checks import check_whole
from nonloc.outcomes import DivergedError, Outcome
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.data.load import load
from nonloc_paper.runs import Run
from nonloc_paper.training.convoy import Convoy
from nonloc_paper.training.machine import device_or_best, plain_defaults
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.stopping import Stopping
from nonloc_paper.training.streams import on_stream
from nonloc_paper.training.working import Options, Work, work


def fit(
    recipe: Recipe,
    run: Run | str | os.PathLike[str],
    *,
    data: Dataset | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    captured: bool | None = None,
    progress: bool = True,
    throw: bool = True,
    checkpoint_every: int | None = None,
    checkpoint_steps: int | None = None,
    stop_after: float | None = None,
) -> Outcome:
    """Train what `recipe` says in the folder `run`, or go on with it, and say how it ended.

    A run that was interrupted, by whatever means, goes on from its newest valid checkpoint and, on the CPU,
    ends bit-identical to one that was not. A finished run is not touched: its stored Outcome is returned. One whose
    checkpoints are all damaged, or that has lost the metrics before them, is a CorruptDataError that names the way out.

    SIGINT and SIGTERM (in the main thread) and a spent budget end the call after the current step, saved:
    Outcome "interrupted", with the signal's number in `metrics["signal"]` if it was one. A loss that is not
    finite ends the run: Outcome "diverged" at that step, with all that was recorded before kept.

    data              the Dataset, if it is at hand; else `recipe.data` is loaded, from `data_dir`
    device            "cuda" where there is one, else "cpu"
    captured          replay every step as one CUDA graph, which is several times as fast for small networks; None is
                      on CUDA. What cannot be captured goes the plain way, with a warning.
    progress          a bar on stderr, or lines where stderr is no terminal
    throw             raise DivergedError, which carries the Outcome, for a run that diverged
    checkpoint_every  save after every so many epochs; None is every one, but on CUDA only the first that ends after
                      15 s of work. The end of the run is always saved.
    checkpoint_steps  save also after every so many steps
    stop_after        a budget in seconds; at least one step or evaluation is done
    """
    options = make_options(device, captured, progress, checkpoint_every, checkpoint_steps)
    check_seconds("stop_after", stop_after)
    run = run if isinstance(run, Run) else Run(run)
    stopping = Stopping(stop_after)
    with plain_defaults(), on_stream(options.stream()):
        outcome = _finish(
            work(recipe, run, lambda: _find_data(recipe, data, data_dir), stopping, options, stopping),
            options.convoy,
        )
    if stopping.signal is not None and outcome.ending != "interrupted":
        # It came too late to stop this run, but whoever sent it may mean the runs that follow.
        signal.raise_signal(stopping.signal)
    if throw and outcome.ending == "diverged":
        raise DivergedError(outcome)
    return outcome


def make_options(
    device: torch.device | str | None,
    captured: bool | None,
    progress: bool,
    checkpoint_every: int | None,
    checkpoint_steps: int | None,
) -> Options:
    """The options of `fit`, checked, with the defaults of this machine."""
    for name, value in {"checkpoint_every": checkpoint_every, "checkpoint_steps": checkpoint_steps}.items():
        if value is not None:
            check_whole(name, value)
    where = device_or_best(device)
    if captured and where.type != "cuda":
        raise ValueError(f'captured=True needs device="cuda", got {where.type!r}; use captured=None')
    is_captured = where.type == "cuda" if captured is None else captured
    return Options(
        where, Convoy(where) if is_captured else None, progress, checkpoint_every, checkpoint_steps
    )


def check_seconds(name: str, value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds ≥ 0 or None, got {value!r}")


def _finish(run: Work, convoy: Convoy | None) -> Outcome:
    """Advance one run to its end."""
    while True:
        try:
            event = next(run)
        except StopIteration as end:
            return end.value
        if event is not None:
            event.synchronize()
        elif convoy is not None:
            convoy.depart()


def _find_data(recipe: Recipe, data: Dataset | None, data_dir: str | os.PathLike[str] | None) -> Dataset:
    if data is None:
        return load(recipe.data, data_dir)
    if data.name != recipe.data:
        raise ValueError(f"data is {data.name!r}, but the recipe says data={recipe.data!r}; make them agree")
    return data
