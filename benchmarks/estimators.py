"""DiffusionMap against SpectralEmbedding, LabelDiffusion against LabelSpreading, on a swiss roll.

Both sides have the same number of neighbours and all cores, and run in one process, in turns. Seconds are medians. The
weights of their graphs differ, so their results agree only nearly: the table says by how much. The eigenvectors of
DiffusionMap are checked against its own kernel first.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.shared import markdown, time_in_turns
from nonloc.estimators import DiffusionMap, LabelDiffusion
from nonloc.processes.graphs import to_scipy

NEIGHBORS = 10
SIZES = (10_000, 100_000)
ROUNDS = 5
LABELLED = 20  # one point of so many has a label
ALPHA = 0.2  # scikit-learn's default
LIMIT = 1e-8  # of |K ψ − λ ψ|, where ψ is about 1


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return [row for points in SIZES for row in compare(points, ROUNDS)]


def compare(points: int, rounds: int) -> list[dict[str, Any]]:
    """One row for each of the two tasks."""
    from sklearn.datasets import make_swiss_roll
    from sklearn.manifold import SpectralEmbedding
    from sklearn.semi_supervised import LabelSpreading

    x, along = make_swiss_roll(points, random_state=0)
    truth = np.digitize(along, np.quantile(along, [1 / 3, 2 / 3]))
    y = np.where(np.arange(points) % LABELLED == 0, truth, -1)
    ours = DiffusionMap(n_neighbors=NEIGHBORS, random_state=0)
    theirs = SpectralEmbedding(n_neighbors=NEIGHBORS, random_state=0, n_jobs=-1)
    labels = LabelDiffusion(n_neighbors=NEIGHBORS, alpha=ALPHA)
    spreading = LabelSpreading(kernel="knn", n_neighbors=NEIGHBORS, alpha=ALPHA, n_jobs=-1)
    works = [
        lambda: ours.fit(x),
        lambda: theirs.fit(x),
        lambda: labels.fit(x, y),
        lambda: spreading.fit(x, y),
    ]
    times = time_in_turns(works, [1] * len(works), rounds, torch.device("cpu"))
    seconds = [[value / 1e3 for value in one] for one in times]
    residual = _residual(ours)
    agreement = _smallest_correlation(ours.embedding_, theirs.embedding_)
    same = float((labels.transduction_ == spreading.transduction_).mean())
    return [
        {
            **_row("DiffusionMap", "SpectralEmbedding", points, seconds[0], seconds[1], agreement),
            "residual": residual,
            "passed": residual <= LIMIT,
        },
        _row("LabelDiffusion", "LabelSpreading", points, seconds[2], seconds[3], same),
    ]


def _row(
    ours: str, theirs: str, points: int, seconds: list[float], other: list[float], agreement: float
) -> dict[str, Any]:
    """agreement: the smallest correlation of the two maps, or the share of points with the same label."""
    import sklearn

    return {
        "ours": ours,
        "theirs": theirs,
        "scikit_learn": sklearn.__version__,
        "points": points,
        "seconds": seconds,
        "other_seconds": other,
        "time_ratio": median(a / b for a, b in zip(seconds, other, strict=True)),
        "agreement": agreement,
    }


def _residual(fitted: DiffusionMap) -> float:
    """The largest entry of K ψ − λ ψ."""
    weights = to_scipy(fitted.affinity_)
    image = (weights @ fitted.eigenvectors_) / weights.sum(axis=1)[:, None]
    return float(np.abs(image - fitted.eigenvalues_ * fitted.eigenvectors_).max())


def _smallest_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """The smallest correlation of a coordinate of one map with its best match in the plane of the other."""
    bases = [np.linalg.qr(one - one.mean(axis=0))[0] for one in (first, second)]
    return float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).min())


def table(rows: Sequence[dict[str, Any]]) -> str:
    other = f"scikit-learn {rows[0]['scikit_learn']}"
    headers = ["estimator", "points", "time", other, "time ratio", "agreement"]
    cells = [
        [
            f"{row['ours']}, {row['theirs']}",
            f"{row['points']:,}",
            f"{median(row['seconds']):.2f} s",
            f"{median(row['other_seconds']):.2f} s",
            f"{row['time_ratio']:.2f}",
            f"{row['agreement']:.3f}",
        ]
        for row in rows
    ]
    return markdown(headers, cells)
