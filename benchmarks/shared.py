"""What the benchmarks share: times taken in turns, and Markdown tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Work = Callable[[], Any]


def time_calls(work: Work, count: int, device: torch.device) -> float:
    """Return the milliseconds of one of `count` calls, until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start) / count


def time_in_turns(
    works: Sequence[Work], counts: Sequence[int], rounds: int, device: torch.device
) -> list[list[float]]:
    """Return milliseconds of a call, one number a round. All works follow each other in every round.

    So a slow moment of the machine changes all of them alike.
    """
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, count, mine in zip(works, counts, times, strict=True):
            mine.append(time_calls(work, count, device))
    return times


def median_and_range(times: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median, and the lowest and the highest."""
    return statistics.median(times), (min(times), max(times))


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned as plain text: words left, numbers right."""
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows, strict=True)]
    is_number = [all(cell[:1].isdigit() for cell in column) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = (
        "-" * (width + 1) + ":" if right else "-" * (width + 2)
        for width, right in zip(widths, is_number, strict=True)
    )
    return "\n".join([line(headers), f"|{'|'.join(rule)}|", *(line(row) for row in rows)])


def format_range(median: float, extremes: Sequence[float], digits: int = 3) -> str:
    """Write "1.200 (1.100–1.300)"."""
    return f"{median:.{digits}f} ({extremes[0]:.{digits}f}–{extremes[1]:.{digits}f})"


def format_size(size: int | None) -> str:
    """Write a number of bytes in MiB; a dash where it was not measured."""
    return "–" if size is None else f"{size / 2**20:,.0f} MiB"
