"""A stage, forward and backward, fused and by every public way, in one run: the same numbers first, then the time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.stage_paths import WAYS, Stage, Way, exact
from benchmarks.table import markdown

CHANNELS, EMBED = 64, 32
# ‖found − exact‖ / ‖exact‖ of the value and of every gradient: eight roundings of bfloat16.
LIMIT = 2**-5
NAMES = ("value", "q", "k", "x", "W_Z", "W_g")
LARGEST_MATRIX = 2**32  # bytes of K; ways that keep it are left out above
COMPILING_SECONDS = 75  # in all: what would compile after that is left out
TIMED_SECONDS = 0.03  # in one repeat

Talk = Callable[[str], None]


class Shape(NamedTuple):
    batch: int
    positions: int
    blocks: int


SHAPES = (Shape(128, 1024, 4), Shape(128, 1024, 1), Shape(16, 4096, 4), Shape(1, 65_536, 4))


@dataclass(frozen=True)
class Timing:
    """Milliseconds of forward and backward, to q, k, x and all W; None, all of them, where it was not timed.

    captured  as a replayed CUDA graph, the median over repeats; eager: as calls of PyTorch. With (lowest, highest)
    ratio     how many times as long as the fused stage, captured where both are
    memory    bytes at the peak above the inputs
    error     the largest ‖found − float64‖ / ‖float64‖ of value and gradients, and of which
    reason    why there is no time, or no captured one
    """

    way: str
    batch: int
    positions: int
    blocks: int
    channels: int
    embed: int
    dtype: str
    captured: float | None = None
    captured_range: tuple[float, float] | None = None
    eager: float | None = None
    eager_range: tuple[float, float] | None = None
    ratio: float | None = None
    memory: int | None = None
    error: float | None = None
    error_of: str | None = None
    reason: str | None = None
    passed: bool = True
    repeats: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def all_timings(device: torch.device, repeats: int, talk: Talk) -> Iterator[Timing]:
    """Every shape of the table, by all ways."""
    clock = _Clock()
    for shape in SHAPES:
        yield from timings(shape, device, repeats=repeats, talk=talk, clock=clock)


def timings(
    shape: Shape,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.bfloat16,
    repeats: int = 7,
    talk: Talk = print,
    clock: _Clock | None = None,
) -> list[Timing]:
    """All ways at one shape, in turns; on CUDA captured as well."""
    clock = _Clock() if clock is None else clock
    leaves, cotangent = _inputs(shape, device, dtype)
    truth = _gradients(exact, leaves, cotangent.double())
    rows: list[Timing] = []
    candidates: dict[str, _Candidate] = {}
    for name, way in WAYS.items():
        row = Timing(name, *shape, CHANNELS, EMBED, str(dtype).removeprefix("torch."))
        start = time.perf_counter()
        try:
            _check_wanted(way, shape, dtype, clock)
            candidates[name] = _ready(row, way.make(), leaves, cotangent, truth, device)
            row = candidates[name].row
        except _NotTimed as refusal:
            row = replace(row, reason=str(refusal), **refusal.values)
        except Exception as error:
            # Other libraries may refuse a shape, a dtype or a device. The library's own stage may not.
            if name == "fused":
                raise
            row = replace(row, reason=_first_line(error))
        seconds = time.perf_counter() - start
        clock.compiling += seconds if way.compiles else 0.0
        rows.append(row)
        said = row.reason or f"error {row.error:.1e}"
        talk(f"{name} at {shape.batch} × {shape.positions:,}, N {shape.blocks}: {said} ({seconds:.0f} s)")
    _time_in_turns(list(candidates.values()), repeats, device)
    rows = [candidates[row.way].timed(repeats) if row.way in candidates else row for row in rows]
    return [_with_ratio(row, rows[0]) for row in rows]


class _NotTimed(Exception):
    """Why, and what else the row should say."""

    def __init__(self, reason: str, **values: Any) -> None:
        super().__init__(reason)
        self.values = values


@dataclass
class _Clock:
    """How many seconds compiling has taken so far."""

    compiling: float = 0.0


def _check_wanted(way: Way, shape: Shape, dtype: torch.dtype, clock: _Clock) -> None:
    matrix = shape.batch * shape.positions**2 * dtype.itemsize
    if way.has_matrix and matrix > LARGEST_MATRIX:
        raise _NotTimed(f"left out: its matrix takes {matrix / 2**30:.0f} GiB")
    if way.compiles and clock.compiling > COMPILING_SECONDS:
        raise _NotTimed(f"left out: {clock.compiling:.0f} s of compiling are enough")


@dataclass
class _Candidate:
    """A way that gives the right numbers, and its times in milliseconds."""

    row: Timing
    work: Callable[[], list[Tensor]]
    graph: torch.cuda.CUDAGraph | None = None
    eager: list[float] = field(default_factory=list)
    captured: list[float] = field(default_factory=list)

    def timed(self, repeats: int) -> Timing:
        eager, captured = sorted(self.eager), sorted(self.captured)
        row = replace(self.row, eager=statistics.median(eager), eager_range=(eager[0], eager[-1]))
        if captured:
            row = replace(
                row, captured=statistics.median(captured), captured_range=(captured[0], captured[-1])
            )
        return replace(row, repeats=repeats)


def _ready(
    row: Timing,
    stage: Stage,
    leaves: Sequence[Tensor],
    cotangent: Tensor,
    truth: Sequence[Tensor],
    device: torch.device,
) -> _Candidate:
    """Held to float64, as it is and, on CUDA, captured; with the memory of one call."""

    def work() -> list[Tensor]:
        return _gradients(stage, leaves, cotangent)

    candidate = _Candidate(replace(row, **_within_limit(work(), truth)), work)
    if device.type != "cuda":
        return candidate
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    memory = torch.cuda.max_memory_allocated(device) - before
    candidate.row = replace(candidate.row, memory=memory)
    try:
        candidate.graph, results = _captured(work)
    except RuntimeError as error:
        candidate.row = replace(candidate.row, reason=f"not captured: {_first_line(error)}")
        return candidate
    candidate.graph.replay()
    _within_limit(results, truth)
    return candidate


def _within_limit(found: Sequence[Tensor], truth: Sequence[Tensor]) -> dict[str, Any]:
    """The largest error, and of what."""
    errors = relative_errors(found, truth)
    worst = max(errors, key=lambda name: errors[name])
    values = {"error": errors[worst] if math.isfinite(errors[worst]) else None, "error_of": worst}
    if not errors[worst] <= LIMIT:
        raise _NotTimed(f"not timed: an error above {LIMIT:.0e}", passed=False, **values)
    return values


def _inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """q, k, x, W_Z, W_g and what comes back; the logits have a deviation of about 3."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int, deviation: float = 1.0) -> Tensor:
        return deviation * torch.randn(size, generator=generator, device=device)

    batch, positions, blocks = shape
    x = normal(batch, positions, CHANNELS)
    q, k = (x @ normal(CHANNELS, EMBED, deviation=CHANNELS**-0.5) for _ in range(2))
    w_z = normal(blocks, CHANNELS, EMBED, deviation=0.5 * EMBED**-0.5)
    w_g = normal(blocks, EMBED, CHANNELS, deviation=CHANNELS**-0.5)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (0.5 * q, k, x, w_z, w_g)]
    return leaves, normal(batch, positions, CHANNELS).to(dtype)


def _gradients(stage: Stage, leaves: Sequence[Tensor], cotangent: Tensor) -> list[Tensor]:
    value = stage(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]


def relative_errors(found: Sequence[Tensor], truth: Sequence[Tensor]) -> dict[str, float]:
    """‖found − truth‖ / ‖truth‖ of each; infinite where anything is not finite."""
    result = {}
    for name, value, wanted in zip(NAMES, found, truth, strict=True):
        wanted = wanted.double()
        error = float((value.double() - wanted).norm() / wanted.norm())
        result[name] = error if math.isfinite(error) else math.inf
    return result


def _captured(work: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    return graph, results


def _time_in_turns(candidates: Sequence[_Candidate], repeats: int, device: torch.device) -> None:
    """One after the other in every round, so that a slow moment hits all of them."""
    works: list[tuple[Callable[[], Any], list[float]]] = []
    for candidate in candidates:
        works.append((candidate.work, candidate.eager))
        if candidate.graph is not None:
            works.append((candidate.graph.replay, candidate.captured))
    counts = [_calls(work, device) for work, _ in works]
    for _ in range(repeats):
        for (work, times), count in zip(works, counts, strict=True):
            times.append(1e3 * _seconds(work, count, device))


def _calls(work: Callable[[], Any], device: torch.device) -> int:
    once = _seconds(work, 1, device)
    return max(1, min(200, round(TIMED_SECONDS / once)))


def _seconds(work: Callable[[], Any], count: int, device: torch.device) -> float:
    """Of one call, until the device is done."""
    _finish(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    _finish(device)
    return (time.perf_counter() - start) / count


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _with_ratio(row: Timing, fused: Timing) -> Timing:
    mine, its = (
        (row.captured, fused.captured) if row.captured and fused.captured else (row.eager, fused.eager)
    )
    return row if mine is None or its is None else replace(row, ratio=mine / its)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:120]}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The timings; where there are none, why."""
    cells = []
    for row in rows:
        shown = f"{row['batch']} × {row['positions']:,}, N {row['blocks']}"
        memory = "–" if row["memory"] is None else f"{row['memory'] / 2**20:,.0f} MiB"
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}×"
        error = "–" if row["error_of"] is None else f"{_number(row['error'])} ({row['error_of']})"
        reason = _short(row["reason"] or "–")
        times = [
            reason if row["captured"] is None else _range(row, "captured"),
            "–" if row["eager"] is None else _range(row, "eager"),
        ]
        cells.append([shown, row["way"], *times, ratio, memory, error])
    headers = ["B × M, N", "way", "captured, ms", "eager, ms", "captured, against fused", "memory", "error"]
    return markdown(headers, cells)


def _short(reason: str) -> str:
    return reason if len(reason) <= 60 else f"{reason[:59]}…"


def _number(error: float | None) -> str:
    return "not finite" if error is None else f"{error:.1e}"


def _range(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_range"]
    return f"{row[name]:.3f} ({low:.3f}–{high:.3f})"
