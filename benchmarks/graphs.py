"""A graph of a million points: build it, normalise its rows, take ten Euler steps; the same work by hand.

By hand means scikit-learn's neighbours and scipy's sparse matrices, as a careful user would write it. Both run in one
process, in turns, and must reach the same state. Seconds are the best of the repeats. Memory is the growth of the
process's resident memory while one of them works (Linux); points and start are not counted.
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.memory import measured
from benchmarks.shared import format_size, markdown
from nonloc.processes.diffusion import Diffusion
from nonloc.processes.graphs import neighbors
from nonloc.processes.simulate import simulate

STEP_SIZE = 0.5
LIMIT = 1e-12  # of the two final states, whose entries are about 1


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return [compare()]


def compare(points: int = 1_000_000, k: int = 16, steps: int = 10, *, repeats: int = 3) -> dict[str, Any]:
    """Random points in the unit square, one channel: seconds and peak bytes of each, their ratios, the difference."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(points, 2, generator=generator, dtype=torch.float64)
    z = torch.randn(points, generator=generator, dtype=torch.float64)
    rivals: dict[str, Callable[[], np.ndarray]] = {
        "nonloc": lambda: _ours(x, z, k, steps),
        "by_hand": lambda: _by_hand(x.numpy(), z.numpy(), k, steps),
    }
    runs = [{name: _measured(work) for name, work in rivals.items()} for _ in range(repeats)]
    seconds = {name: min(run[name][0] for run in runs) for name in rivals}
    peak = {name: max(run[name][1] for run in runs) for name in rivals}
    difference = np.abs(runs[-1]["nonloc"][2] - runs[-1]["by_hand"][2]).max()
    return {
        "points": points,
        "k": k,
        "steps": steps,
        "seconds": seconds,
        "peak_bytes": peak,
        "time_ratio": seconds["nonloc"] / seconds["by_hand"],
        "memory_ratio": peak["nonloc"] / peak["by_hand"],
        "largest_difference": float(difference),
        "passed": bool(difference <= LIMIT),
    }


def _ours(x: torch.Tensor, z: torch.Tensor, k: int, steps: int) -> np.ndarray:
    process = Diffusion(neighbors(x, k))
    trajectory = simulate(
        process, z.view(1, -1, 1), num_steps=steps, step_size=STEP_SIZE, save_every=max(1, steps)
    )
    return trajectory.final.flatten().numpy()


def _by_hand(x: np.ndarray, z: np.ndarray, k: int, steps: int) -> np.ndarray:
    import scipy.sparse as scipy_sparse
    from sklearn.neighbors import NearestNeighbors

    graph = NearestNeighbors(n_neighbors=k, n_jobs=-1).fit(x).kneighbors_graph(mode="distance")
    np.square(graph.data, out=graph.data)
    np.exp(-graph.data, out=graph.data)
    graph = graph.maximum(graph.T) + scipy_sparse.identity(len(x), format="csr")
    kernel = scipy_sparse.diags(1 / np.asarray(graph.sum(1)).ravel()) @ graph
    for _ in range(steps):
        z = z + STEP_SIZE * (kernel @ z - z)
    return z


def _measured(work: Callable[[], np.ndarray]) -> tuple[float, int, np.ndarray]:
    gc.collect()
    return measured(work)


def table(rows: Sequence[dict[str, Any]]) -> str:
    (row,) = rows
    cells = [
        [name, f"{row['seconds'][side]:.2f} s", format_size(row["peak_bytes"][side])]
        for side, name in (("nonloc", "nonloc"), ("by_hand", "scikit-learn and scipy by hand"))
    ]
    headers = [f"{row['points']:,} points, k = {row['k']}, {row['steps']} steps", "time", "peak memory"]
    ends = f"Time ratio {row['time_ratio']:.2f}; the final states differ by {row['largest_difference']:.1e}."
    return f"{markdown(headers, cells)}\n\n{ends}"
