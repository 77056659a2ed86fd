"""A stage on the CPU, with the matrix and without it: time and memory."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.memory import measure_size, stage_inputs
from benchmarks.shared import format_range, format_size, markdown, median_and_range, time_in_turns
from benchmarks.stage import exact, gradients, ours, relative_errors

CHANNELS, BLOCKS = 64, 4
POSITIONS = (1024, 4096, 8192)
CHECKED = 1024  # positions: in float64 with a graph, more would take longer than the measurement
LIMIT = 1e-4
BACKENDS = {"naive": "reference", "factored": "factored"}
CPU = torch.device("cpu")


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each way and size, batch 1, float32; no times where a way is far from float64.

    milliseconds, range  of forward and backward with gradients to everything, the median and (lowest, highest)
    peak_bytes           the growth of a fresh process's memory
    error                the largest ‖value − float64‖ / ‖float64‖ at M = 1024; None: not finite
    """
    errors = {way: worst_error(backend) for way, backend in BACKENDS.items()}
    timed = max(errors.values()) <= LIMIT
    rows = []
    for positions in POSITIONS if timed else (CHECKED,):
        torch.manual_seed(0)
        leaves = stage_inputs(positions, CHANNELS, BLOCKS)
        cotangent = torch.randn_like(leaves[2])
        works = [partial(gradients, ours(backend), leaves, cotangent) for backend in BACKENDS.values()]
        times = time_in_turns(works, (1, 1), options.repeats if timed else 0, CPU)
        for (way, backend), mine in zip(BACKENDS.items(), times, strict=True):
            row: dict[str, Any] = {"positions": positions, "channels": CHANNELS, "blocks": BLOCKS, "way": way}
            row |= {"milliseconds": None, "range": None, "peak_bytes": None}
            row["error"] = errors[way] if math.isfinite(errors[way]) else None
            row |= {"passed": errors[way] <= LIMIT, "repeats": len(mine)}
            if timed:
                peak = measure_size("gaussian", "row", positions, CHANNELS, backend, BLOCKS)["peak_bytes"]
                row["milliseconds"], row["range"] = median_and_range(mine)
                row["peak_bytes"] = peak
                talk(f"{way} at M = {positions:,}: {row['milliseconds']:.0f} ms, {peak / 2**20:.0f} MiB")
            rows.append(row)
    return rows


def worst_error(backend: str) -> float:
    torch.manual_seed(0)
    leaves = stage_inputs(CHECKED, CHANNELS, BLOCKS)
    cotangent = torch.randn_like(leaves[2])
    truth = gradients(exact, leaves, cotangent.double())
    return max(relative_errors(gradients(ours(backend), leaves, cotangent), truth).values())


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        timed = row["milliseconds"] is not None
        time = format_range(row["milliseconds"], row["range"], 0) if timed else "not timed"
        error = "not finite" if row["error"] is None else f"{row['error']:.0e}"
        cells.append([f"{row['positions']:,}", row["way"], time, format_size(row["peak_bytes"]), error])
    return markdown(["M", "way", "ms", "peak memory", "error"], cells)
