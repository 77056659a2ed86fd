"""PointGraph: the sparse heat kernel of fitted points, and its rows for new points."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from nonloc._checks import check_whole
from nonloc.processes.nearest import Nearest, check_no_mask, check_scale, check_spread

MOST_THIN = 2.5  # dimensions


def checked_data(estimator: BaseEstimator, X: Any, *labels: Any, **options: Any) -> Any:
    """scikit-learn's `validate_data` of points, in float64, and of their labels; it loses masks without a word."""
    check_no_mask("X", X)
    for y in labels:
        check_no_mask("y", y)
    return validate_data(estimator, X, *labels, dtype=np.float64, **options)


class PointGraph:
    """Ω_ij = exp(−scale |x_i − x_j|²) where i is among the nearest of j, or j among those of i.

    weights    [M, M]  Ω as a scipy CSR array, symmetric, with Ω_ii = 1
    scale      the scale that was given, or the one that fits the points
    is_thin    whether the points lie on a curve or a surface. Their graph is then nearly planar: its factors have few
               entries, and its slow modes are so many that iterations take long. Else both are the other way round
    """

    def __init__(self, points: np.ndarray, n_neighbors: int, scale: float | str) -> None:
        k = min(check_whole("n_neighbors", n_neighbors), len(points) - 1)
        check_scale(scale)
        check_spread(points)
        self._nearest = Nearest(points, k)
        self._corners = np.stack([points.min(0), points.max(0)])
        self.scale = self._nearest.fitting_scale() if scale == "auto" else float(scale)
        self.weights: Any = self._nearest.graph(self._nearest.heat(self.scale))
        self.weights.eliminate_zeros()
        self.is_thin = self._nearest.dimension() <= MOST_THIN

    def averages(self, new: np.ndarray, density: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The means of values [M, C] under the kernel of new points, [N, C].

        density  [M]: each position gives Ω / density. At the place of position i the mean is that of row i
        """
        check_spread(np.concatenate([new, self._corners]))
        rows = self._nearest.rows(new)
        # The nearest has weight 1, so that far from all points a mean is still one.
        nearest = np.minimum.reduceat(rows.data, rows.indptr[:-1])
        is_own = rows.data == 0
        own, places = np.repeat(np.arange(len(new)), np.diff(rows.indptr))[is_own], rows.indices[is_own]
        rows.data = np.exp(-self.scale * (rows.data - np.repeat(nearest, np.diff(rows.indptr))))
        means = _averages(rows, density, values)
        # Where distances are equal, which of them are the k nearest is a choice, and fitted points have made theirs.
        means[own] = _averages(self.weights[places], density, values)
        return means


def _averages(weights: Any, density: np.ndarray, values: np.ndarray) -> np.ndarray:
    shares = weights * (1 / density)
    return (shares @ values) / shares.sum(axis=1)[:, None]
