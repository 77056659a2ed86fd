"""fit_many: several runs under way at once in one process, so that a device larger than one run is kept busy."""

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
from nonloc_paper.data.dataset import Dataset
from nonloc_paper.runs import Run
from nonloc_paper.training.loop import check_seconds, make_options
from nonloc_paper.training.losses import Event
from nonloc_paper.training.machine import plain_defaults
from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.sharing import SharedData
from nonloc_paper.training.stopping import Stopping
from nonloc_paper.training.streams import on_stream
from nonloc_paper.training.working import CutShort, Options, Watch, Work, work

# On CUDA, as measured; on the CPU runs side by side would only take each other's cores.
SIDE_BY_SIDE = 8

Choice = Callable[[Sequence[int], float | None], int]
"""(numbers of the runs not begun, seconds of the budget that are left) -> the number of the run to begin"""


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
        """Whether the run came to an end, good or bad; there is nothing left to do for it."""
        return self.outcome is not None and self.outcome.ending != "interrupted"


@dataclass(frozen=True)
class Endings:
    """How all of them ended, in the order they were given.

    reason  why it ended before they did, as a sentence; empty if it did not
    signal  the number of the signal that came, even if it came too late to end anything
    """

    all: tuple[Ending, ...]
    reason: str = ""
    signal: int | None = None


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
    choose: Choice = lambda left, seconds: left[0],
    begun: Callable[[int], None] = lambda number: None,
    ended: Callable[[int, Ending], None] = lambda number, ending: None,
) -> Endings:
    """`fit` for each of `recipes` in the folder of `runs` at its place, up to `side_by_side` at a time.

    Each run ends as it would alone. On CUDA they take their steps together, as branches of one graph, and all runs of
    a data set share one copy of the images. A run that diverges, or fails with an error, does not hurt the others.
    SIGINT, SIGTERM and a spent budget end all that are under way, saved; no further one is begun. So does an error that
    is no run's own, as of `choose`, `begun` or `ended`, which then goes on.

    side_by_side  None is SIDE_BY_SIDE on CUDA and 1 elsewhere
    watch         looks on after every step of every run; must not change anything, nor wait for the device
    data          {name: Dataset} of those at hand; others are loaded, from `data_dir`
    choose        which run to begin next; the first in order, unless it says otherwise
    begun, ended  are told the number of each run, and how it ended
    """
    if len(recipes) != len(runs):
        raise ValueError(f"recipes and runs must be as many, got {len(recipes)} and {len(runs)}")
    options = make_options(device, captured, progress, checkpoint_every, checkpoint_steps)
    check_seconds("stop_after", stop_after)
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
        party = _Party(endings, shared, stopping, options, at_once, choose, begun, ended)
        with plain_defaults(), on_stream(options.stream()):
            try:
                party.work()
            except BaseException:
                party.save()
                raise
            finally:
                party.close()
    is_cut_short = any(each.error is None and not each.has_result for each in endings)
    return Endings(
        tuple(endings),
        reason=stopping.reason if is_cut_short else "",
        signal=None if stopping.signal is None else int(stopping.signal),
    )


class _Place:
    """A place for one run after the other."""

    def __init__(self) -> None:
        self.number = -1
        self.work: Work | None = None
        self.event: Event | None = None
        self.has_stepped = False

    @property
    def is_ready(self) -> bool:
        return self.event is None or self.event.query()

    def begin(self, number: int, work: Work) -> None:
        self.number, self.work, self.event, self.has_stepped = number, work, None, False

    def advance(self) -> Outcome | None:
        """To its next step; the Outcome if there is none. What the run raises comes through, and the place is free."""
        assert self.work is not None
        try:
            self.event = next(self.work)
        except StopIteration as end:
            self.work = None
            return end.value
        except BaseException:
            self.work = None
            raise
        self.has_stepped = self.event is None
        return None

    def save(self) -> None:
        """End the run as far as it came, saved."""
        if self.work is not None:
            # A run that was begun but not advanced has nothing to save, and hands it back as well.
            with suppress(CutShort):
                self.work.throw(CutShort(has_departed=not self.has_stepped))

    def close(self) -> None:
        if self.work is not None:
            self.work.close()


class _Party:
    """Runs that keep step."""

    def __init__(
        self,
        endings: list[Ending],
        shared: SharedData,
        stopping: Stopping,
        options: Options,
        at_once: int,
        choose: Choice,
        begun: Callable[[int], None],
        ended: Callable[[int, Ending], None],
    ) -> None:
        self._endings, self._shared, self._stopping, self._options = endings, shared, stopping, options
        self._choose, self._begun, self._ended = choose, begun, ended
        self._left = list(range(len(endings)))
        self._places = [_Place() for _ in range(at_once)]

    def work(self) -> None:
        """Until every run has ended, or there is a reason to stop and those under way are saved."""
        while True:
            for place in self._places:
                if place.work is None and self._left and not self._stopping.reason:
                    self._begin(place)
            busy = [place for place in self._places if place.work is not None]
            if not busy:
                if self._left and not self._stopping.reason:
                    continue
                return
            late = [place for place in busy if not place.has_stepped]
            ready = [place for place in late if place.is_ready]
            for place in ready:
                self._advance(place)
            if not late:
                self._depart(busy)
            elif not ready:
                event = late[0].event
                assert event is not None
                event.synchronize()

    def _depart(self, places: list[_Place]) -> None:
        if self._options.convoy is not None:
            self._options.convoy.depart()
        for place in places:
            place.has_stepped = False

    def save(self) -> None:
        """All that are under way, each as far as that is still possible."""
        for place in self._places:
            try:
                place.save()
            except Exception as error:
                path = self._endings[place.number].run.path
                warnings.warn(
                    f"{path} could not be saved ({error}); it will go on from the checkpoint before",
                    RuntimeWarning,
                    stacklevel=3,
                )

    def close(self) -> None:
        for place in self._places:
            place.close()

    def _begin(self, place: _Place) -> None:
        budget = self._stopping.seconds_left
        number = self._choose(tuple(self._left), budget)
        self._left.remove(number)
        self._begun(number)
        ending = self._endings[number]
        place.begin(
            number,
            work(
                ending.recipe,
                ending.run,
                lambda: self._shared.find(ending.recipe.data),
                self._stopping,
                self._options,
            ),
        )

    def _advance(self, place: _Place) -> None:
        number = place.number
        try:
            outcome = place.advance()
        except Exception as error:
            # Its frames hold the run's memory, which the others may need.
            traceback.clear_frames(error.__traceback__)
            self._end(number, replace(self._endings[number], error=error))
        else:
            if outcome is not None:
                self._end(number, replace(self._endings[number], outcome=outcome))

    def _end(self, number: int, ending: Ending) -> None:
        self._endings[number] = ending
        self._ended(number, ending)
