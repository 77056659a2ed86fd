"""Recording work on a CUDA device as a graph, to be replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# A graph whose recording failed: the allocator may ask it again, so it must not be collected.
_ABANDONED: list[torch.cuda.CUDAGraph] = []


class CaptureError(RuntimeError):
    """Some work cannot be recorded; the message says why."""


def record(
    work: Callable[[], T], pool: Any, generators: Sequence[torch.Generator] = ()
) -> tuple[torch.cuda.CUDAGraph, T]:
    """(the graph of `work` on the current stream, which must not be the default one; what `work` returned).

    `work` is called once, and nothing is computed by it. All it reads and writes has to stay where it is in memory;
    what it allocates is in `pool`, and what it returned is there after each replay. Work may fork to other streams
    and join them again. Graphs that share a pool must not be replayed at the same time where they use the same stream.
    `generators` are asked for their seeds and offsets at every replay.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        for generator in generators:
            graph.register_generator_state(generator)
        # Other threads, such as those that write checkpoints, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = work()
    except Exception as error:
        _abandon(graph, pool, stream.device)
        raise CaptureError(_first_cause(error)) from error
    return graph, result


def _first_cause(error: BaseException) -> str:
    """What went wrong first, in one line: the end of a broken recording is an error of its own, and says nothing."""
    while error.__context__ is not None:
        error = error.__context__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Bring allocator and generators out of the recording that failed."""
    _ABANDONED.append(graph)
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    # torch leaves its own generator in recording mode; a recording that succeeds ends that.
    with suppress(Exception):
        number = torch.zeros(1, device=device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            number.add_(1)
