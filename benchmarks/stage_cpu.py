"""A stage on the CPU: with the matrix and without it, time and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.backends import in_turns
from benchmarks.memory import measure, stage_inputs
from benchmarks.stage import relative_errors
from benchmarks.stage_paths import exact
from benchmarks.table import markdown
from nonloc.ops import Affinity, propagate

CHANNELS, BLOCKS = 64, 4
POSITIONS = (1024, 4096, 8192)
CHECKED = 1024  # positions: in float64 and with a graph, more would take longer than the measurement
LIMIT = 1e-4
BACKENDS = {"naive": "reference", "factored": "factored"}


@dataclass(frozen=True)
class CpuTiming:
    """Forward and backward of a gaussian stage in float32, batch 1, with gradients to everything.

    milliseconds, range  the median and (lowest, highest), by `repeats` in turns
    peak_bytes           the growth of a fresh process's memory
    error                the largest ‖found − float64‖ / ‖float64‖ of value and gradients at M = 1024; None: not finite
    """

    positions: int
    channels: int
    blocks: int
    way: str
    milliseconds: float | None
    range: tuple[float, float] | None
    peak_bytes: int | None
    error: float | None
    passed: bool
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def timings(repeats: int, talk: Callable[[str], None]) -> Iterator[CpuTiming]:
    """Both ways at every size; neither where one of them gives other numbers than float64."""
    errors = {way: worst_error(backend) for way, backend in BACKENDS.items()}
    if not max(errors.values()) <= LIMIT:
        for way, error in errors.items():
            finite = error if math.isfinite(error) else None
            yield CpuTiming(CHECKED, CHANNELS, BLOCKS, way, None, None, None, finite, error <= LIMIT, 0)
        return
    for positions in POSITIONS:
        torch.manual_seed(0)
        inputs = stage_inputs(positions, CHANNELS, BLOCKS)
        works: dict[str, Callable[[], None]] = {
            way: partial(_work, inputs, backend) for way, backend in BACKENDS.items()
        }
        seconds = in_turns(works, repeats, "cpu")
        for way, backend in BACKENDS.items():
            peak = measure("gaussian", "row", positions, CHANNELS, backend, BLOCKS).peak_bytes
            times = sorted(1e3 * s for s in seconds[way])
            median, extremes = statistics.median(times), (times[0], times[-1])
            talk(f"{way} at M = {positions:,}: {median:.0f} ms, {peak / 2**20:.0f} MiB")
            yield CpuTiming(
                positions, CHANNELS, BLOCKS, way, median, extremes, peak, errors[way], True, repeats
            )


def worst_error(backend: str, positions: int = CHECKED) -> float:
    torch.manual_seed(0)
    inputs = stage_inputs(positions, CHANNELS, BLOCKS)
    truth = exact(*inputs)
    cotangent = torch.randn(truth.shape)
    wanted = [truth.detach(), *torch.autograd.grad(truth, inputs, cotangent.double())]
    value = _stage(inputs, backend)
    found = [value.detach(), *torch.autograd.grad(value, inputs, cotangent)]
    return max(relative_errors(found, wanted).values())


def _stage(inputs: Sequence[torch.Tensor], backend: str) -> torch.Tensor:
    left, right, z, w_z, w_g = inputs
    pairs = list(zip(w_z, w_g, strict=True))
    return propagate(Affinity(left, right, "gaussian"), z, pairs, backend=backend)


def _work(inputs: Sequence[torch.Tensor], backend: str) -> None:
    value = _stage(inputs, backend)
    torch.autograd.grad(value.square().sum(), inputs)


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        measured = ["not timed", "–"]
        if row["milliseconds"] is not None:
            low, high = row["range"]
            measured = [
                f"{row['milliseconds']:.0f} ({low:.0f}–{high:.0f})",
                f"{row['peak_bytes'] / 2**20:,.0f} MiB",
            ]
        error = "not finite" if row["error"] is None else f"{row['error']:.0e}"
        cells.append([f"{row['positions']:,}", row["way"], *measured, error])
    return markdown(["M", "way", "ms", "peak memory", "error"], cells)
