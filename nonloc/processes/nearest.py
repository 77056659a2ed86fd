"""Nearest: the k nearest others of each point, and which of them are joined to points that come later."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy as np

from nonloc._checks import is_finite, shown

try:
    import scipy.sparse as scipy_sparse
    import scipy.spatial as scipy_spatial
except ImportError:  # an extra; `nonloc.processes.graphs` names it when a graph is asked for
    scipy_sparse = scipy_spatial = None

POINTS_AT_ONCE = 2**16
MOST_TREE_DIMENSIONS = 15  # beyond, a tree looks at nearly all points, and all distances are faster
ENTRIES_AT_ONCE = 2**24  # of all distances between new and old points
ROUNDING = 1e-12  # of a distance that was computed in another order
PRODUCT_ROUNDING = 1e-6  # of a distance from products
MOST_SCALE = 1e300


class Nearest:
    """The k nearest others of each of M points. Of points at the same place, any k count as nearest.

    columns  [M, k + 1]  the position itself, then its k nearest others
    squares  [M, k + 1]  their squared distances, in increasing order
    """

    def __init__(self, points: np.ndarray, k: int) -> None:
        size = points.shape[0]
        self.points = points
        self.columns = np.empty((size, k + 1), dtype=index_dtype(2 * size * (k + 1)))
        self.squares = np.empty((size, k + 1))
        if _is_wide(points):
            self._tree, rows = None, np.arange(size)
        else:
            # In the order of the tree's leaves, the part of the tree for a query is still in the cache.
            self._tree = scipy_spatial.cKDTree(points)
            rows = self._tree.indices
        for some in np.array_split(rows, -(-size // POINTS_AT_ONCE)):
            squares, nearest = self._query(points[some])
            _put_self_first(squares, nearest, some)
            self.columns[some], self.squares[some] = nearest, squares

    def fitting_scale(self) -> float:
        """1 / r² with r the median distance to the k-th neighbour; of those that are apart, where most are not."""
        farthest = np.sqrt(self.squares[:, -1])
        apart = farthest[farthest > 0]
        r = float(np.median(farthest)) or (float(np.median(apart)) if len(apart) else 1.0)
        with np.errstate(over="ignore", divide="ignore"):  # r² may be too small to be divided by
            return float(min(1 / np.square(r), MOST_SCALE))

    def heat(self, scale: float, dtype: type[np.floating] = np.float64) -> np.ndarray:
        """exp(−scale r²) [M, k + 1] for the squared distances r²; a scale for which nothing would move is refused."""
        with np.errstate(over="ignore"):  # what overflows is −inf, whose exponential is the right 0
            values = np.exp(-scale * self.squares).astype(dtype)
        lost = float((values[:, 1:] == 0).mean())
        if lost <= 0.5:
            return values
        fit = f'scale="auto", which is {self.fitting_scale():.3g} here (1 / r², r the median distance to the k-th)'
        if lost == 1:
            raise ValueError(
                f"with scale = {scale:g} the weights of all neighbours underflow to 0, so that nothing would move; "
                f"use {fit}"
            )
        warnings.warn(
            f"with scale = {scale:g} the weights of {100 * lost:.0f} % of all neighbours underflow to 0; use {fit}",
            stacklevel=4,
        )
        return values

    def dimension(self) -> float:
        """The dimension of the set on which the points lie, estimated from how distances to neighbours grow.

        It is the maximum likelihood estimate of Levina and Bickel; infinite where neighbours do not say.
        """
        others = self.squares[:, 1:]
        apart = others[others[:, 0] > 0]
        growth = 0.5 * np.log(apart[:, -1:] / apart[:, :-1])
        return float(1 / growth.mean()) if growth.size and growth.any() else float("inf")

    def graph(self, values: np.ndarray) -> Any:
        """Join i and j when one is among the k nearest of the other: a symmetric scipy CSR array [M, M].

        values  [M, k + 1], or [M, k] without the positions themselves
        """
        size, width = values.shape
        columns = self.columns[:, -width:].ravel()
        starts = np.arange(0, size * width + 1, width, dtype=columns.dtype)
        directed = scipy_sparse.csr_array((values.ravel(), columns, starts), shape=(size, size))
        directed.sort_indices()
        return directed.maximum(directed.T.tocsr())

    def rows(self, new: np.ndarray) -> Any:
        """Squared distances of new points to those that they are joined to, a scipy CSR array [N, M].

        The rule is that of `graph`: a point at the place of position i has the row of i.
        """
        parts = [self._rows(some) for some in np.array_split(new, -(-len(new) // POINTS_AT_ONCE))]
        return scipy_sparse.vstack(parts, format="csr")

    def _rows(self, new: np.ndarray) -> Any:
        size, (_, nearest) = len(self.points), self._query(new)
        own = np.repeat(np.arange(len(new)), nearest.shape[1])
        rows, columns = self._reached(new)
        pairs = np.sort(np.concatenate([own * size + nearest.ravel(), rows * size + columns]))
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        rows, columns = np.divmod(pairs, size)
        squares = _squared_distances(new[rows], self.points[columns])
        starts = np.searchsorted(rows, np.arange(len(new) + 1))
        return scipy_sparse.csr_array((squares, columns, starts), shape=(len(new), size))

    def _query(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The squared distances to the k + 1 nearest points [N, k + 1], and which they are."""
        count = self.columns.shape[1]
        if self._tree is not None:
            distances, nearest = self._tree.query(new, count, workers=-1)
            return np.square(distances), nearest
        from sklearn.neighbors import NearestNeighbors

        search = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(self.points)
        nearest = search.kneighbors(new, return_distance=False)
        # Distances as products lose digits, so those that count are computed again.
        squares = np.stack([_squared_distances(new, self.points[column]) for column in nearest.T], axis=1)
        order = np.argsort(squares, axis=1, kind="stable")
        return np.take_along_axis(squares, order, 1), np.take_along_axis(nearest, order, 1)

    def _reached(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a new point and a position that is no farther from it than from its own k-th: rows, columns [E]."""
        reach = np.sqrt(self.squares[:, -1]) * (1 + ROUNDING)
        if self._tree is not None:
            found = scipy_spatial.cKDTree(new).query_ball_point(
                self.points, reach, workers=-1, return_sorted=False
            )
            counts = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
            rows = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=int(counts.sum()))
            return rows, np.repeat(np.arange(len(found)), counts)
        from sklearn.metrics import euclidean_distances

        pairs = []
        at_once = max(1, ENTRIES_AT_ONCE // len(reach))
        for start in range(0, len(new), at_once):
            some = new[start : start + at_once]
            rows, columns = np.nonzero(
                euclidean_distances(some, self.points) <= reach * (1 + PRODUCT_ROUNDING)
            )
            is_near = _squared_distances(some[rows], self.points[columns]) <= np.square(reach[columns])
            pairs.append((start + rows[is_near], columns[is_near]))
        return np.concatenate([rows for rows, _ in pairs]), np.concatenate([columns for _, columns in pairs])


def index_dtype(entries: int) -> type[np.signedinteger]:
    """The dtype of the indices of a sparse matrix with so many entries."""
    return np.int32 if entries < 2**31 else np.int64


def check_no_mask(name: str, values: object) -> None:
    """ValueError for an array of numpy with masked entries: their mask would be lost."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} has masked entries, and their mask would be lost; leave them out, or give {name}.filled(value)"
        )


def check_spread(points: np.ndarray) -> None:
    """ValueError where distances between points [M, d] overflow."""
    with np.errstate(over="ignore"):
        widest = np.square(points.max(0) - points.min(0)).sum()
    if not np.isfinite(widest):
        raise ValueError("points are so far apart that their distances overflow; scale them down")


def check_scale(scale: object) -> None:
    """ValueError unless `scale` is a number > 0 or "auto"."""
    if scale != "auto" if isinstance(scale, str) else not (is_finite(scale) and scale > 0):
        raise ValueError(f'scale must be a number > 0, or "auto", got {shown(scale)}')


def _is_wide(points: np.ndarray) -> bool:
    """Whether scikit-learn searches; it takes a second to import, so that is done where it is needed."""
    return points.shape[1] > MOST_TREE_DIMENSIONS and find_spec("sklearn") is not None


def _squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """|x − y|² [E] of pairs of points [E, d]."""
    difference = first - second
    return np.einsum("ij,ij->i", difference, difference)


def _put_self_first(squares: np.ndarray, nearest: np.ndarray, rows: np.ndarray) -> None:
    """Of the k + 1 nearest of each row, move the row itself to the front, in place; it replaces the farthest where
    more than k others lie at the same place and it is not among them."""
    own = nearest == rows[:, None]
    where = np.where(own.any(1), own.argmax(1), nearest.shape[1] - 1)
    moved = np.flatnonzero(where)
    nearest[moved, where[moved]] = nearest[moved, 0]
    squares[moved, where[moved]] = squares[moved, 0]
    nearest[:, 0], squares[:, 0] = rows, 0
