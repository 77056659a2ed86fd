"""CUDA graphs without a device: a replay does the captured work again, and writes its results where the first were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nonloc_paper.training import graph_group


class Replayed:
    """What `capture_graph` returns as a graph."""

    def __init__(self, work: Callable[[], list[Tensor]], results: list[Tensor]) -> None:
        self._work, self._results = work, results

    def replay(self) -> None:
        results = self._work()
        # As on a device, nothing was computed during the capture.
        if not self._results:
            self._results.extend(result.clone() for result in results)
        for place, result in zip(self._results, results, strict=True):
            place.copy_(result)


def without_a_device(monkeypatch: Any) -> list[tuple[torch.Generator, ...]]:
    """Let everything be captured on the CPU; the list will hold the generators of each capture."""
    captures: list[tuple[torch.Generator, ...]] = []

    def capture_graph(
        work: Callable[[], list[Tensor]], pool: object, generators: Sequence[torch.Generator] = ()
    ) -> tuple[Replayed, list[Tensor]]:
        captures.append(tuple(generators))
        results: list[Tensor] = []
        return Replayed(work, results), results

    monkeypatch.setattr(graph_group, "capture_graph", capture_graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    return captures
