"""DiffusionMap: points in the coordinates in which diffusion on them is slow."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from nonloc._checks import check_whole, is_finite, shown
from nonloc.estimators.point_graph import PointGraph, checked_data
from nonloc.estimators.slow_modes import slow_modes
from nonloc.estimators.sparse_matrices import scaled
from nonloc.ops import SparseAffinity
from nonloc.processes.graphs import from_scipy


class DiffusionMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Map points [M, d] to the slowest modes of a diffusion on them (Coifman and Lafon, 2006).

    K is a walk on the graph of nearest neighbours: heat weights, divided by ρ^alpha of both points, with rows that then
    sum to 1; the density ρ is a row sum. The eigenvectors ψ of K have mean 0 and mean square 1 under its stationary law
    π. Coordinate k is λ_k^t ψ_k. With all coordinates, distances are diffusion distances: those of the laws p and q of
    two walks after t steps, in the norm Σ_j |p_j − q_j|² / π_j.

    n_components    coordinates; the constant mode is not one of them
    n_neighbors     of each point; all others where there are fewer
    scale           of the heat kernel exp(−scale |x − y|²); "auto": 1 / r² with r the median distance to the farthest
                    of the n_neighbors
    alpha           0: density counts; 1: only the shape counts (Laplace-Beltrami)
    diffusion_time  t ≥ 0, in steps of the walk
    random_state    for the start of the search for eigenvectors

    embedding_     [M, n_components]  the fitted points
    eigenvalues_   [n_components]     λ_k, decreasing
    eigenvectors_  [M, n_components]  ψ_k
    affinity_      the SparseAffinity of K, for `nonloc.simulate` and others
    scale_         the scale of the kernel

    New points get the mean of ψ_k over their row of the same kernel, divided by λ_k (Nyström). At the place of a fitted
    point that is its own coordinate.

    >>> from nonloc.estimators import DiffusionMap
    >>> line = [[0.0], [1.0], [2.0], [3.0]]
    >>> place = DiffusionMap(n_components=1, n_neighbors=2).fit_transform(line)[:, 0]
    >>> bool((place[0] - place[1]) * (place[2] - place[3]) > 0)  # in order, left to right or back
    True
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        n_neighbors: int = 16,
        scale: float | str = "auto",
        alpha: float = 1.0,
        diffusion_time: float = 1.0,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.scale = scale
        self.alpha = alpha
        self.diffusion_time = diffusion_time
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the coordinates of points X [M, d]."""
        points = checked_data(self, X, ensure_min_samples=2)
        count = check_whole("n_components", self.n_components)
        if count >= len(points):
            raise ValueError(
                f"n_components = {count} needs at least {count + 1} points, got n_samples = {len(points)}; use "
                f"n_components ≤ {len(points) - 1}"
            )
        for name, value in (("alpha", self.alpha), ("diffusion_time", self.diffusion_time)):
            if not is_finite(value) or value < 0:
                raise ValueError(f"{name} must be a finite number ≥ 0, got {shown(value)}")
        graph = PointGraph(points, self.n_neighbors, self.scale)
        density = graph.weights.sum(axis=1) ** self.alpha
        weights = scaled(graph.weights, 1 / density)
        start = check_random_state(self.random_state).standard_normal(len(points))
        values, vectors = slow_modes(weights, count, start, is_thin=graph.is_thin)
        self._check_powers(values)
        # Of the two signs, the one with which the largest entry is positive.
        vectors *= np.sign(vectors[np.abs(vectors).argmax(0), np.arange(count)])
        self._graph, self._density, self._weights = graph, density, weights
        self.scale_, self.eigenvalues_, self.eigenvectors_ = graph.scale, values, vectors
        self.embedding_ = vectors * values**self.diffusion_time
        self._n_features_out = count
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The coordinates of points X [N, d], [N, n_components]."""
        check_is_fitted(self)
        points = checked_data(self, X, reset=False)
        means = self._graph.averages(points, self._density, self.eigenvectors_)
        return means * self.eigenvalues_ ** (self.diffusion_time - 1)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Find the coordinates of points X [M, d], and return them."""
        return self.fit(X).embedding_

    @property
    def affinity_(self) -> SparseAffinity:
        """The kernel K of the fitted points."""
        check_is_fitted(self)
        return from_scipy(self._weights, "row")

    def _check_powers(self, values: np.ndarray) -> None:
        """ValueError where λ^t or λ^(t − 1) has no meaning."""
        is_whole = self.diffusion_time >= 1 and float(self.diffusion_time).is_integer()
        positive = int((values > len(values) * np.finfo(np.float64).eps).sum())
        if not is_whole and positive < len(values):
            raise ValueError(
                f"n_components = {len(values)} reaches eigenvalues ≤ 0, which have no power {self.diffusion_time:g}; "
                f"use n_components ≤ {positive}, or a diffusion_time of 1, 2, 3 …"
            )
