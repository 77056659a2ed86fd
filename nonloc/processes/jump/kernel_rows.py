"""Rows of a stochastic kernel, a few at a time: what a walker needs, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity, exponential, factored, kernel_matrix, normalize, sparse
from nonloc.ops.affinity import position_weights, valid_positions

Apply = Callable[[Tensor], Tensor]


def row_normalized(affinity: Affinity | SparseAffinity) -> Affinity | SparseAffinity:
    """The same K under normalize="row", for B = 1: the scaling u of "sinkhorn" and the mask become part of the givers.

    K_ij = u_i Ω_ij u_j μ_j has rows that sum to 1, so u_i is but their normaliser.
    """
    if isinstance(affinity, SparseAffinity):
        if affinity.normalize == "row":
            return affinity
        omega: Apply = sparse.product(affinity.matrix, affinity.matrix.dtype)
        weights = sparse.weights(affinity, affinity.matrix.dtype)
        giver = normalize.sides(omega, weights, affinity, affinity.matrix.dtype)[1]
        return replace(affinity, normalize="row", measure=giver.flatten())
    dtype = affinity.left.dtype
    weights = position_weights(affinity, dtype)
    if affinity.normalize == "row":
        return replace(affinity, mask=None, measure=weights.flatten())
    if affinity.kind in ("gaussian", "heat"):
        query, key, row, column = exponential.logit_factors(affinity, dtype)
        logged = column + exponential.log_weights(weights)
        scaling = exponential.sinkhorn_scaling(
            query, key, row, logged, column, weights, valid_positions(affinity)
        )
        # A factor of a column of exp(q·k) is one more coordinate: it may be far outside the range of numbers.
        left = torch.cat([query, torch.ones_like(query[..., :1])], -1)
        right = torch.cat([key, (column + scaling).unsqueeze(-1)], -1)
        return Affinity(left, right, "gaussian", "row", measure=weights.flatten())
    if affinity.kind == "delta":
        return replace(affinity, normalize="row", mask=None, measure=weights.flatten())
    omega = factored.product(affinity, affinity.left, affinity.right)
    giver = normalize.sides(omega, weights.unsqueeze(-1), affinity, dtype)[1]
    return replace(affinity, normalize="row", mask=None, measure=giver.flatten())


def kernel_rows(affinity: Affinity, rows: Tensor) -> Tensor:
    """The rows [R, M] of K with these indices [R], for an affinity with B = 1 and normalize="row"."""
    return kernel_matrix(replace(affinity, left=affinity.left[:, rows])).squeeze(0)
