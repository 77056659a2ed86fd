"""LabelDiffusion: labels of a few points, diffused to all of them."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from scipy.sparse import eye_array
from scipy.sparse.linalg import cg
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from nonloc._checks import is_finite, shown
from nonloc.estimators.point_graph import PointGraph, checked_data
from nonloc.estimators.sparse_matrices import factored, scaled

TOLERANCE = 1e-13  # of a residual, relative to the right side
RIDGE = 16 * np.finfo(np.float64).eps
MOST_LOST = 0.01  # of f, which sums to 1
MOST_STEPS = 1000  # of an iteration, which needs more as alpha comes near 1


class LabelDiffusion(ClassifierMixin, BaseEstimator):
    """Classify points [M, d] of which some have labels; −1 means that the label is not known.

    K is the kernel of the graph of nearest neighbours, with heat weights. Each class is a signal f on the points: 1 at
    its labels, 0 at those of others. It diffuses by K until it rests.

    n_neighbors  of each point; all others where there are fewer
    scale        of the heat kernel exp(−scale |x − y|²); "auto": 1 / r² with r the median distance to the farthest of
                 the n_neighbors
    alpha        None: labels are clamped, and f is harmonic elsewhere: the mean of its neighbours. A number between 0
                 and 1: labels y are a source, f = alpha K f + (1 − alpha) y, with K normalised on both sides as in
                 scikit-learn's `LabelSpreading`. Neighbours may then overrule a wrong label, and far from all labels
                 f is small

    classes_              [n_classes]
    label_distributions_  [M, n_classes]  f at rest, with rows that sum to 1
    transduction_         [M]             the label of each fitted point
    scale_                the scale of the kernel

    Points that no label reaches, or none by more than rounding, get the frequencies of the labels. New points get the
    mean of f over their row of the same kernel.

    >>> from nonloc.estimators import LabelDiffusion
    >>> points, labels = [[0.0], [1.0], [10.0], [11.0]], [0, -1, 1, -1]
    >>> LabelDiffusion(n_neighbors=1).fit(points, labels).transduction_.tolist()
    [0, 0, 1, 1]
    """

    def __init__(
        self, *, n_neighbors: int = 16, scale: float | str = "auto", alpha: float | None = None
    ) -> None:
        self.n_neighbors = n_neighbors
        self.scale = scale
        self.alpha = alpha

    def fit(self, X: Any, y: Any) -> Self:
        """Diffuse labels y [M], −1 where it is not known, over points X [M, d]."""
        points, labels = checked_data(self, X, y, ensure_min_samples=2)
        if self.alpha is not None and not (is_finite(self.alpha) and 0 < self.alpha < 1):
            raise ValueError(f"alpha must be None, or a number between 0 and 1, got {shown(self.alpha)}")
        listed = labels.tolist()
        if "-1" in listed or "" in listed or None in listed:
            raise ValueError(
                'y has "-1", "" or None, which would be a class; mark what is not known by the number -1: with labels '
                "that are text, y must be an array of dtype object"
            )
        is_labelled = np.array([label != -1 for label in listed])
        if not is_labelled.any():
            raise ValueError("y has no label, only -1; give at least one")
        check_classification_targets(labels[is_labelled])
        self.classes_, classes = np.unique(labels[is_labelled], return_inverse=True)
        known = np.zeros((len(points), len(self.classes_)))
        known[is_labelled, classes] = 1
        self._graph = PointGraph(points, self.n_neighbors, self.scale)
        self.scale_ = self._graph.scale
        weights = self._graph.weights.copy()  # without loops
        weights.setdiag(0)
        weights.eliminate_zeros()
        if self.alpha is None:
            rest = _clamped(weights, known, is_labelled, self._graph.is_thin)
        else:
            rest = _with_source(weights, known, self.alpha)
        self.label_distributions_ = _as_shares(rest, known[is_labelled].mean(axis=0))
        self.transduction_ = self.classes_[self.label_distributions_.argmax(axis=1)]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of each class at points X [N, d], [N, n_classes]."""
        check_is_fitted(self)
        points = checked_data(self, X, reset=False)
        return self._graph.averages(points, np.ones(len(self.transduction_)), self.label_distributions_)

    def predict(self, X: Any) -> np.ndarray:
        """The label of points X [N, d], [N]."""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(axis=1)]


def _clamped(weights: Any, known: np.ndarray, is_labelled: np.ndarray, is_thin: bool) -> np.ndarray:
    """f [M, C] that is `known` at labelled points, and the mean of its neighbours at others; 0 where no path joins a
    point to a label, or where its weights are lost in rounding."""
    degrees = weights.sum(axis=1)
    moves = ~is_labelled & (degrees > 0)
    half = np.sqrt(degrees[moves])
    # The ridge serves parts that are joined to no label, for which the matrix is singular.
    matrix = _identity_minus((1 - RIDGE) * scaled(weights[moves][:, moves], 1 / half))
    others = _solve(matrix, (weights[moves] @ known) / half[:, None], is_thin) / half[:, None]
    # The classes sum to 1, unless f is lost.
    is_known = np.abs(others.sum(axis=1) - 1) < MOST_LOST
    rest = known.copy()
    rest[moves] = np.where(is_known[:, None], others.clip(0), 0)
    return rest


def _with_source(weights: Any, known: np.ndarray, alpha: float) -> np.ndarray:
    """f [M, C] with f = α K f + (1 − α) known, where K is normalised on both sides; 0 where it is lost in rounding."""
    half = np.sqrt(weights.sum(axis=1))
    inverse = np.divide(1, half, out=np.zeros_like(half), where=half > 0)
    kernel, source = alpha * scaled(weights, inverse), (1 - alpha) * known
    # Each step makes the error, at first at most |known|, smaller by this factor, but for a factor 2 of all steps.
    factor = alpha / (1 + np.sqrt(1 - alpha**2))
    steps = int(np.ceil(np.log(TOLERANCE / 2) / np.log(factor)))
    if steps <= MOST_STEPS:
        rest = _iterated(kernel, source, alpha, steps)
    else:
        rest = _solve(_identity_minus(kernel), source, is_thin=False)
    # The inverse of 1 − α K is at most 1 / (1 − α), so a residual moves f by no more than this, too.
    rounding = TOLERANCE * np.linalg.norm(known)
    return np.where(rest.sum(axis=1, keepdims=True) > 10 * rounding, rest, 0).clip(0)


def _iterated(kernel: Any, source: np.ndarray, bound: float, steps: int) -> np.ndarray:
    """f [M, C] with f = A f + source, where A is symmetric with eigenvalues between ±bound: Chebyshev's iteration.

    It needs no inner products, which conjugate gradients do, and works in place.
    """
    before, now, weight = source, kernel @ source + source, 2.0
    for _ in range(steps - 1):
        weight = 1 / (1 - weight * bound**2 / 4)
        after = kernel @ now
        after += source
        after -= before
        after *= weight
        after += before
        before, now = now, after
    return now


def _as_shares(rest: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """f with rows that sum to 1: where f is 0, the frequencies of the classes."""
    sums = rest.sum(axis=1, keepdims=True)
    lost = int((sums == 0).sum())
    if lost:
        warnings.warn(
            f"{lost} points are reached by no label, and get the frequencies of the labels; use a larger n_neighbors, "
            "a smaller scale, or a larger alpha where it is a number",
            stacklevel=3,
        )
    return np.where(sums > 0, rest, frequencies) / np.where(sums > 0, sums, 1)


def _identity_minus(matrix: Any) -> Any:
    return eye_array(matrix.shape[0], format="csr") - matrix


def _solve(matrix: Any, right: np.ndarray, is_thin: bool) -> np.ndarray:
    """x [N, C] with A x = right, for a positive definite A.

    is_thin  whether factors are cheap
    """
    if right.size == 0:
        return right
    if not is_thin:
        solutions = [cg(matrix, column, rtol=TOLERANCE, atol=0) for column in right.T]
        if all(info == 0 for _, info in solutions):
            return np.column_stack([solution for solution, _ in solutions])
    return factored(matrix).solve(right)
