"""slow_modes: the eigenvectors of a walk on a graph whose eigenvalues are next to 1."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as scipy_sparse
import scipy.sparse.linalg as sparse_linalg
from scipy.sparse.csgraph import connected_components

from nonloc.estimators.sparse_matrices import factored, scaled

MOST_DENSE = 400  # positions of a matrix that is decomposed as a whole
SHIFT = 1e-9  # beyond the eigenvalue 1, at which a factorisation would fail
LANCZOS_VECTORS = 40
FACTORED_VECTORS = 16  # a solution costs more than a vector, and few are needed
LANCZOS_RESTARTS = 100
TOLERANCE = 1e-10

Product = Callable[[np.ndarray], np.ndarray]  # v [M] -> A v [M]


def slow_modes(
    weights: Any, count: int, start: np.ndarray, *, is_thin: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` largest eigenvalues of K, but for that of constants, and eigenvectors ψ [M, count].

    K is `weights` with rows that sum to 1; Σ_i π_i ψ_i = 0 and Σ_i π_i ψ_i² = 1, with π the row sums as shares of 1.
    Where the graph has separate parts, the first vectors are constant on each: their eigenvalues are 1.

    weights  [M, M]  a symmetric scipy CSR array, ≥ 0, without empty rows
    start    [M]     where Lanczos begins
    is_thin  whether a factorisation has few entries
    """
    half = np.sqrt(weights.sum(axis=1))
    matrix = scaled(weights, 1 / half)  # symmetric, with the eigenvalues of K
    parts = connected_components(weights, directed=False)[1]
    resting = _constants(half, parts)
    shares = resting.T @ half  # the constant on all parts, as a sum of those on one
    between = _orthogonal_to(shares, min(count, len(shares) - 1))
    values, vectors = np.ones(between.shape[1]), resting @ between
    if vectors.shape[1]:
        warnings.warn(
            f"the graph of neighbours has {len(shares)} separate parts, and the first {vectors.shape[1]} components "
            "only tell them apart; a larger n_neighbors may join them",
            stacklevel=4,
        )
    if vectors.shape[1] < count:
        moving = _moving(matrix, resting, count - vectors.shape[1], start, is_thin)
        values, vectors = np.append(values, moving[0]), np.hstack([vectors, moving[1]])
    return values, vectors * np.linalg.norm(half) / half[:, None]


def _constants(half: np.ndarray, parts: np.ndarray) -> Any:
    """One unit vector a part, along `half` on it: a scipy CSR array [M, parts]."""
    lengths = np.sqrt(np.bincount(parts, half**2))
    index = np.arange(len(half) + 1)
    return scipy_sparse.csr_array((half / lengths[parts], parts, index), shape=(len(half), len(lengths)))


def _orthogonal_to(vector: np.ndarray, count: int) -> np.ndarray:
    """Orthonormal vectors [n, count] that are orthogonal to one [n] without zeros."""
    unit_vectors = np.eye(len(vector), count)
    return np.linalg.qr(np.column_stack([vector, unit_vectors]))[0][:, 1:]


def _moving(
    matrix: Any, resting: Any, count: int, start: np.ndarray, is_thin: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, and their eigenvectors, among those orthogonal to `resting`."""
    size = matrix.shape[0]
    if size <= MOST_DENSE or 4 * count >= size:
        # At −2 instead of 1, what rests comes last.
        dense = (matrix - 3 * (resting @ resting.T)).toarray()
        values, vectors = scipy.linalg.eigh(dense, subset_by_index=(size - count, size - 1))
        return values[::-1], vectors[:, ::-1]

    def project(v: np.ndarray) -> np.ndarray:
        return v - resting @ (resting.T @ v)

    if not is_thin:
        try:
            return _lanczos(
                lambda v: matrix @ v - 3 * (resting @ (resting.T @ v)), count, start, LANCZOS_VECTORS
            )
        except sparse_linalg.ArpackNoConvergence:
            pass  # then the factors
    factors = factored((1 + SHIFT) * scipy_sparse.eye_array(size, format="csr") - matrix)
    values, vectors = _lanczos(
        lambda v: project(factors.solve(project(v))), count, project(start), FACTORED_VECTORS
    )
    return 1 + SHIFT - 1 / values, vectors


def _lanczos(product: Product, count: int, start: np.ndarray, vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, decreasing, and their eigenvectors."""
    size = len(start)
    values, modes = sparse_linalg.eigsh(
        sparse_linalg.LinearOperator((size, size), product, dtype=np.float64),
        count,
        which="LA",
        v0=start,
        ncv=min(size, max(vectors, 2 * count + 1)),
        maxiter=LANCZOS_RESTARTS,
        tol=TOLERANCE,
    )
    order = np.argsort(values)[::-1]
    return values[order], modes[:, order]
