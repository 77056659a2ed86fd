"""A graph of a million points: building it, normalising its rows and ten Euler steps, beside the same work by hand.

By hand means scikit-learn's neighbours and scipy's sparse matrices, as a careful user would write it. Both run in one
process, in turns, and must reach the same state. Seconds are the best of the repeats; memory is the growth of the
process's resident memory while one of them works (Linux), beside the state and the points that both are given.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.memory import resident
from nonloc.processes.diffusion import Diffusion
from nonloc.processes.graphs import neighbors
from nonloc.processes.simulate import simulate

try:
    import scipy.sparse as scipy_sparse
    from sklearn.neighbors import NearestNeighbors
except ImportError:  # an extra; `compare` says which
    scipy_sparse = None

STEP_SIZE = 0.5
LIMIT = 1e-12  # of the two final states, whose entries are about 1


def compare(points: int = 1_000_000, k: int = 16, steps: int = 10, *, repeats: int = 3) -> dict[str, Any]:
    """Random points in the unit square, one channel: seconds and peak bytes of each, their ratios, the difference."""
    if scipy_sparse is None:
        raise ImportError("this comparison needs scipy and scikit-learn; pip install 'nonloc[analysis]'")
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
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, resident("VmHWM") - before, result


if __name__ == "__main__":
    print(json.dumps(compare(), indent=2))
