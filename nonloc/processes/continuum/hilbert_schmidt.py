"""Which part of ℒ is a Hilbert–Schmidt operator: the integral, and not the multiplication.

ℒz(x) = ∫ ρ(x, y) z(y) dy − d(x) z(x) with the degree d(x) = ∫ ρ(x, y) dy. The norm of the first part is
(∬ ρ²)^½. A multiplication has no finite norm unless it is 0: on M points it is (Σ_i d_i²)^½, which grows like √M.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity, kernel_matrix, row_sums
from nonloc.processes.continuum.continuum import BLOCK_ENTRIES, Continuum

PARTS = ("integral", "multiplication")


def hilbert_schmidt_norm(continuum: Continuum, part: str = "integral") -> float:
    """The Hilbert–Schmidt norm of one part of the discrete operator in L².

    "integral"        (Σ_ij ρ_ij² μ_i μ_j)^½, which tends to (∬ ρ²)^½ under refinement
    "multiplication"  (Σ_i d_i²)^½, which tends to infinity
    """
    if not isinstance(continuum, Continuum):
        raise ValueError(f"continuum must be a Continuum, got {type(continuum).__name__}")
    if part not in PARTS:
        raise ValueError(f"part={part!r} is unknown; choose one of {', '.join(PARTS)}")
    affinity = continuum.affinity
    if affinity.normalize != "none":
        raise ValueError(f'the continuum must have normalize="none", got {affinity.normalize!r}')
    if part == "multiplication":
        return float(row_sums(affinity).norm())
    weights = continuum.weights
    squares = (
        _sparse_squares(affinity, weights)
        if isinstance(affinity, SparseAffinity)
        else _squares(affinity, weights)
    )
    return float((weights * squares).sum().sqrt())


def _squares(affinity: Affinity, weights: Tensor) -> Tensor:
    """Σ_j ρ_ij² μ_j [M], a block of rows at a time."""
    size = max(1, BLOCK_ENTRIES // affinity.positions)
    sums = []
    for rows in affinity.left.split(size, 1):
        # K carries μ_j once.
        kernel = kernel_matrix(replace(affinity, left=rows)).squeeze(0)
        sums.append((kernel.square() / weights).sum(-1))
    return torch.cat(sums)


def _sparse_squares(affinity: SparseAffinity, weights: Tensor) -> Tensor:
    matrix = affinity.matrix
    with_squares = torch.sparse_csr_tensor(
        matrix.crow_indices(),
        matrix.col_indices(),
        matrix.values().square(),
        matrix.shape,
        check_invariants=False,
    )
    return with_squares @ weights
