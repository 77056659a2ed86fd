"""Graphs without a device: a replay does the recorded work again, and puts its results where the first ones were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nonloc_paper.training import graphs


class Replayed:
    """What `record` returns as a graph."""

    def __init__(self, work: Callable[[], list[Tensor]], results: list[Tensor]) -> None:
        self._work, self._results = work, results
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        results = self._work()
        # As on a device, nothing was computed while it was recorded.
        if not self._results:
            self._results.extend(result.clone() for result in results)
        for place, result in zip(self._results, results, strict=True):
            place.copy_(result)


def without_a_device(monkeypatch: Any) -> list[tuple[torch.Generator, ...]]:
    """Let everything that is captured be captured on the CPU; the list will hold the generators of each recording."""
    recordings: list[tuple[torch.Generator, ...]] = []

    def record(
        work: Callable[[], list[Tensor]], pool: object, generators: Sequence[torch.Generator] = ()
    ) -> tuple[Replayed, list[Tensor]]:
        recordings.append(tuple(generators))
        results: list[Tensor] = []
        return Replayed(work, results), results

    monkeypatch.setattr(graphs, "record", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return recordings
