"""Symmetric sparse matrices of scipy: scaled on both sides, and factored."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as scipy_sparse
import scipy.sparse.linalg as sparse_linalg


def scaled(matrix: Any, factors: np.ndarray) -> Any:
    """diag(f) A diag(f) of a CSR array A [M, M] and numbers f [M]."""
    rows = np.repeat(factors, np.diff(matrix.indptr))
    data = matrix.data * rows * factors[matrix.indices]
    return scipy_sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def factored(matrix: Any) -> Any:
    """The factors of a positive definite matrix; `.solve(right)` of them."""
    # Nothing need be exchanged for size, so the order is chosen for few entries alone. Columns come one by one: most
    # have so few entries that panels of them do not pay.
    return sparse_linalg.splu(
        matrix.tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0,
        panel_size=1,
        options={"SymmetricMode": True},
    )
