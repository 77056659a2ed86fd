"""fit_many: train several runs in one process, so that small networks fill a large device."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from nonloc._checks import check_whole
from nonloc.outcomes import Outcome
from nonloc_paper.data import load
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.fit import Options, SaveAndStop, Steps, Watch, make_options, train_steps
from nonloc_paper.training.machine import plain_defaults
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.session import Event
from nonloc_paper.training.step import on_stream
from nonloc_paper.training.stopping import Stopping

# On CUDA, as measured; on the CPU runs side by side only compete for the cores.
SIDE_BY_SIDE = 8

Choice = Callable[[Sequence[int], float | None], int]
"""(numbers of the runs not begun, seconds left of the budget) -> the number of the run to begin"""


@dataclass(frozen=True)
class Ending:
    """How one of many runs ended.

    outcome  None for a run that failed or was not begun
    error    why it failed
    """

    recipe: Recipe
    run: Run
    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def has_result(self) -> bool:
        """Whether the run came to an end, good or bad, so that nothing is left to do."""
        return self.outcome is not None and self.outcome.ending != "interrupted"


@dataclass(frozen=True)
class Endings:
    """How all runs ended, in their order.

    reason  why the call ended before they did, as a sentence; else empty
    signal  the number of the signal that came, even if it came too late to end anything
    """

    all: tuple[Ending, ...]
    reason: str = ""
    signal: int | None = None


class SharedData:
    """Data sets by name, each loaded once, when a run first asks for it, and copied to the device once."""

    def __init__(
        self,
        device: torch.device,
        data: Mapping[str, Dataset] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._device, self._data_dir = device, data_dir
        if isinstance(data, Dataset):
            raise ValueError(f"data must be a dict of data sets by name; give data={{{data.name!r}: …}}")
        self._data = dict(data or {})
        self._loaded: dict[str, Dataset] = {}

    def loaded(self, name: str) -> Dataset | None:
        """Return the data set `name` if a run has asked for it."""
        return self._loaded.get(name)

    def load(self, name: str) -> Dataset:
        """Return the data set `name`, the same object every time."""
        if name not in self._loaded:
            dataset = self._data[name] if name in self._data else load(name, self._data_dir)
            if dataset.name != name:
                raise ValueError(
                    f"data[{name!r}] is {dataset.name!r}; give every data set under its own name"
                )
            self._loaded[name] = dataset.to(self._device)
            if self._device.type == "cuda":
                # The streams of the runs do not wait for the copy.
                torch.cuda.current_stream(self._device).synchronize()
        return self._loaded[name]


def fit_many(
    recipes: Sequence[Recipe],
    runs: Sequence[Run | str | os.PathLike[str]],
    *,
    side_by_side: int | None = None,
    data: SharedData | Mapping[str, Dataset] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    captured: bool | None = None,
    progress: bool = True,
    checkpoint_every: int | None = None,
    checkpoint_steps: int | None = None,
    stop_after: float | None = None,
    watch: Watch | None = None,
    labels: Sequence[str] | None = None,
    choose: Choice = lambda left, seconds: left[0],
    begun: Callable[[int], None] = lambda number: None,
    ended: Callable[[int, Ending], None] = lambda number, ending: None,
) -> Endings:
    """`fit` for each of `recipes` in the folder of `runs` at its place, up to `side_by_side` at a time.

    Each run ends as it would alone. On CUDA the steps of all runs are branches of one graph, and all runs of a data set
    share one copy of the images. A run that diverges, or fails with an error, does not affect the others. SIGINT,
    SIGTERM and a spent budget save and end all runs under way; no further one is begun. So does an error outside the
    runs, as of `choose`, `begun` or `ended`, which is then raised.

    side_by_side  None is SIDE_BY_SIDE on CUDA and 1 elsewhere
    watch         called after every step of every run; must not change anything, nor wait for the device
    labels        of the runs in their progress, at their places; the names of the runs when left out
    data          {name: Dataset}; others are loaded from `data_dir`
    choose        returns which run to begin next; by default the first in order
    begun, ended  called with the number of each run, and how it ended; a run without its data ends before it begins

    >>> from nonloc_paper import Recipe, fit_many
    >>> from nonloc_paper.data import Dataset, Split
    >>> images = Split(torch.zeros(4, 3, 12, 12, dtype=torch.uint8))
    >>> mine = Dataset("mine", images, images)
    >>> recipes = [Recipe("restorer4/diffusive-2@1", "mine", epochs=1, seed=seed) for seed in (0, 1)]
    >>> data, folders = {"mine": mine}, ["runs/seed-0", "runs/seed-1"]
    >>> endings = fit_many(recipes, folders, data=data, device="cpu", progress=False)
    >>> [ending.outcome.ending for ending in endings.all]
    ['finished', 'finished']
    """
    if len(recipes) != len(runs):
        raise ValueError(f"recipes and runs must be as many, got {len(recipes)} and {len(runs)}")
    options = make_options(device, captured, progress, checkpoint_every, checkpoint_steps, stop_after)
    if side_by_side is None:
        side_by_side = SIDE_BY_SIDE if options.device.type == "cuda" else 1
    check_whole("side_by_side", side_by_side)
    at_once = max(1, min(side_by_side, len(recipes)))
    options = replace(options, steps_ahead=options.steps_ahead // at_once, watch=watch)
    endings = [
        Ending(recipe, run if isinstance(run, Run) else Run(run))
        for recipe, run in zip(recipes, runs, strict=True)
    ]
    shared = data if isinstance(data, SharedData) else SharedData(options.device, data, data_dir)
    with Stopping(stop_after) as stopping:
        scheduler = _Scheduler(endings, shared, stopping, options, at_once, labels, choose, begun, ended)
        with plain_defaults(), on_stream(options.stream()):
            try:
                scheduler.work()
            except BaseException:
                scheduler.save()
                raise
            finally:
                scheduler.close()
    is_cut_short = any(each.error is None and not each.has_result for each in endings)
    return Endings(
        tuple(endings),
        reason=stopping.reason if is_cut_short else "",
        signal=stopping.signal,
    )


@dataclass
class _Running:
    """A run under way.

    event        what it waits for
    has_stepped  whether it waits for the group's next `step`
    """

    number: int
    steps: Steps
    event: Event | None = None
    has_stepped: bool = False


@dataclass
class _Scheduler:
    """Advances the runs so that all take their steps together; the fields are what `fit_many` is given."""

    endings: list[Ending]
    shared: SharedData
    stopping: Stopping
    options: Options
    at_once: int
    labels: Sequence[str] | None
    choose: Choice
    begun: Callable[[int], None]
    ended: Callable[[int, Ending], None]

    def __post_init__(self) -> None:
        self._left = list(range(len(self.endings)))
        self._running: list[_Running] = []

    def work(self) -> None:
        """Work until every run has ended, or there is a reason to stop and the runs under way are saved."""
        while True:
            while len(self._running) < self.at_once and self._left and not self.stopping.reason:
                self._begin()
            if not self._running:
                return
            late = [one for one in self._running if not one.has_stepped]
            ready = [one for one in late if one.event is None or one.event.query()]
            for one in ready:
                self._advance(one)
            if not late:
                if self.options.group is not None:
                    self.options.group.step()
                for one in self._running:
                    one.has_stepped = False
            elif not ready:
                event = late[0].event
                assert event is not None
                event.synchronize()

    def save(self) -> None:
        """Save and end each run under way, as far as that is possible."""
        for one in self._running:
            try:
                # A run that was begun but not advanced has nothing to save, and raises this as well.
                with suppress(SaveAndStop):
                    one.steps.throw(SaveAndStop(group_has_stepped=not one.has_stepped))
            except Exception as error:
                path = self.endings[one.number].run.path
                warnings.warn(
                    f"{path} could not be saved ({error}); it will go on from the checkpoint before",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def close(self) -> None:
        """Free the runs under way."""
        for one in self._running:
            one.steps.close()

    def _begin(self) -> None:
        number = self.choose(tuple(self._left), self.stopping.seconds_left)
        self._left.remove(number)
        recipe, run = self.endings[number].recipe, self.endings[number].run
        try:
            if not run.is_finished:
                self.shared.load(recipe.data)
        except Exception as error:
            self._end(number, replace(self.endings[number], error=error))
            return
        self.begun(number)
        options = replace(self.options, label=self.labels[number] if self.labels else None)
        steps = train_steps(recipe, run, lambda: self.shared.load(recipe.data), self.stopping, options)
        self._running.append(_Running(number, steps))

    def _advance(self, one: _Running) -> None:
        """Advance the run to its next step, or note how it ended."""
        ending = self.endings[one.number]
        try:
            one.event = next(one.steps)
            one.has_stepped = one.event is None
            return
        except StopIteration as end:
            ending = replace(ending, outcome=end.value)
        except Exception as error:
            # Its frames hold the run's memory, which the others may need.
            traceback.clear_frames(error.__traceback__)
            ending = replace(ending, error=error)
        self._running.remove(one)
        self._end(one.number, ending)

    def _end(self, number: int, ending: Ending) -> None:
        self.endings[number] = ending
        self.ended(number, ending)
