"""PreparedKernel: the kernel of a process, checked and prepared once for many products.

One product with the matrix of an exponential kernel reads M × M numbers; without the matrix it computes them again. On
a CPU that takes 3 to 9 times as long (M from 1,500 to 5,800, C up to 64, float32 and float64). Computing the matrix
takes as long as 2 to 4 such products. "sinkhorn" gains more: the steps to its scaling are products too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nonloc.ops import (
    Affinity,
    Operator,
    SparseAffinity,
    choose_backend,
    exponential,
    normalize,
    prepare,
    self_adjoint_weights,
)
from nonloc.ops.affinity import position_weights, valid_positions, without_masked, zero_masked
from nonloc.ops.functional import check_kind, check_signal, compute_dtype, energy
from nonloc.ops.normalize import check_kernel_values

LARGEST_MATRIX = 2**28  # bytes of B · M · M numbers: M = 5,792 in float64, 8,192 in float32
BLOCK_ENTRIES = 2**18  # of rows computed at one time: they stay in the cache
LARGEST_SCALING = 1e10  # of a position; its square must not bring back what has underflowed

AnyAffinity = Affinity | SparseAffinity


class PreparedKernel:
    """An affinity that is normalised once for each dtype.

    is_fixed  False: the kernel follows a state. It may then become infinite, which ends a simulation, and no matrix is
              stored
    """

    def __init__(self, affinity: AnyAffinity, name: str, is_fixed: bool = True) -> None:
        check_affinity(affinity, name, is_finite=is_fixed)
        self.affinity = _detach(affinity)
        self._is_fixed = is_fixed
        self._operators: dict[torch.dtype, Operator] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Operators are made of local functions, which cannot be pickled; a copy prepares its own.
        return self.__dict__ | {"_operators": {}}

    def at(self, z: Tensor) -> tuple[Operator, Tensor]:
        """The operator for z's precision; and z in that precision, with zeros at masked positions."""
        check_signal(self.affinity, z)
        dtype = compute_dtype(self.affinity, z)
        if dtype not in self._operators:
            self._operators[dtype] = self._operator(dtype)
        return self._operators[dtype], zero_masked(z, self.affinity.mask).to(dtype)

    def energy(self, z: Tensor) -> Tensor:
        """½ Σ_ij K_ij |z_i − z_j|² [B] in z's precision, and at least in float32."""
        # Squares of numbers in half precision overflow soon.
        return energy(*self.at(z)).to(torch.promote_types(z.dtype, torch.float32))

    def mean(self, signal: Tensor) -> Tensor:
        """The mean [B, 1, C] over valid positions of a signal that is 0 at the others."""
        if self.affinity.mask is None:
            return signal.mean(1, keepdim=True)
        counts = self.affinity.mask.sum(1).clamp_min(1).view(-1, 1, 1)
        return signal.sum(1, keepdim=True) / counts

    def largest_row_sum(self) -> float:
        """The largest row sum of K over all positions and samples; 0 without positions."""
        operator = next(iter(self._operators.values()), None)
        if operator is None:
            operator = prepare(self.affinity).operator
        return float(operator.sums.max()) if operator.sums.numel() else 0.0

    @cached_property
    def balance(self) -> Tensor | None:
        """π [B, M] of detailed balance; None where there is no such π."""
        return self_adjoint_weights(self.affinity)

    @torch.no_grad()
    def _operator(self, dtype: torch.dtype) -> Operator:
        affinity = self.affinity
        if self._is_fixed and isinstance(affinity, Affinity) and stores_matrix(affinity, dtype):
            kernel = stored_matrix(affinity, dtype)
            operator = Operator(lambda z: kernel @ z, kernel.sum(-1, keepdim=True))
        else:
            operator = prepare(affinity, dtype).operator
        if self._is_fixed:
            check_operator(operator, affinity)
        return operator


def check_affinity(affinity: Any, name: str = "affinity", *, is_finite: bool = True) -> None:
    """Raise a ValueError unless it is an affinity between the same positions, made of finite numbers.

    is_finite  False: do not look at the numbers
    """
    check_kind(affinity, name)
    if isinstance(affinity, Affinity) and not affinity.is_square:
        raise ValueError(
            f"{name} must have the same positions on both sides, got {affinity.positions} and "
            f"{affinity.right.shape[1]}; a process needs a state at every position, so do not sub-sample"
        )
    if not is_finite:
        return
    if (affinity.matrix if isinstance(affinity, SparseAffinity) else affinity.left).is_meta:
        raise ValueError(f"{name} is on the meta device and has no numbers; give one that has")
    if isinstance(affinity, SparseAffinity):
        if not _is_finite(affinity.matrix.values()):
            raise ValueError(f"{name} has a matrix with values that are not finite; leave out those entries")
    else:
        valid = without_masked(affinity)
        if not (_is_finite(valid.left) and (valid.right is valid.left or _is_finite(valid.right))):
            raise ValueError(
                f"{name} has features that are not finite; replace them, or mask their positions (mask=[B, M])"
            )


def check_operator(operator: Operator, affinity: AnyAffinity) -> None:
    """Raise a ValueError where an affinity of finite numbers has a kernel that overflows."""
    check_overflow(operator.sums, affinity)
    if isinstance(affinity, SparseAffinity) or affinity.kind in ("dot", "concat"):
        # Without a matrix these row sums are 1 by construction; the product with a constant shows an overflow.
        ones = torch.ones_like(operator.sums).expand(affinity.batch, affinity.positions, 1)
        if affinity.mask is not None:
            ones = ones * affinity.mask.unsqueeze(-1)
        check_overflow(operator.apply(ones), affinity)


def check_overflow(values: Tensor, affinity: AnyAffinity) -> None:
    """Raise a ValueError where entries or row sums of a kernel are not finite."""
    if not _is_finite(values):
        raise ValueError(
            f"the kernel overflows: with normalize={affinity.normalize!r} it has values that are not finite; scale the "
            'features down, or use normalize="row", which needs no room for exponentials'
        )


def stores_matrix(affinity: Affinity, dtype: torch.dtype) -> bool:
    """Whether a stored matrix makes many products faster, and fits."""
    if not affinity.has_logits or choose_backend(affinity) != "factored":
        return False
    size = torch.finfo(dtype).bits // 8
    return affinity.batch * affinity.positions * affinity.right.shape[1] * size <= LARGEST_MATRIX


@torch.no_grad()
def stored_matrix(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """K [B, M, M] of an exponential kernel, in the memory of K alone."""
    affinity = without_masked(affinity)
    check_kernel_values(affinity, dtype)
    query, key, row, column = exponential.logit_factors(affinity, dtype)
    weights, valid = position_weights(affinity, dtype), valid_positions(affinity)
    weighted = column + exponential.log_weights(weights)
    if affinity.normalize == "row":
        kernel = _by_rows(query, key, weighted, lambda logits, rows: torch.softmax(logits, -1))
    elif affinity.normalize == "sinkhorn":
        kernel = _sinkhorn_matrix(affinity, query, key, row, column, weighted, weights)
    else:
        kernel = _exponentials(*exponential.log_sides(affinity, dtype))
    if affinity.mask is not None or affinity.measure is not None:
        # Where no position has a weight, the sums are empty and their logarithms mean nothing: such entries are 0.
        receives = valid & (weights.sum(-1, keepdim=True) != 0)
        kernel.masked_fill_(~receives.unsqueeze(-1), 0).masked_fill_((weights == 0).unsqueeze(1), 0)
    return kernel


def _sinkhorn_matrix(
    affinity: Affinity,
    query: Tensor,
    key: Tensor,
    row: Tensor,
    column: Tensor,
    weighted: Tensor,
    weights: Tensor,
) -> Tensor:
    """Find the scaling by products with a matrix, and scale that matrix in place."""
    valid = valid_positions(affinity)
    half = torch.where(valid, -0.5 * (row + exponential.log_sums(query, key, weighted)), 0)
    kernel = _exponentials(query, key, row + half, column + half)
    try:
        omega = normalize.Omega(lambda matrix: lambda v: matrix @ v, kernel)
        left, right, _ = normalize.sides(omega, weights.unsqueeze(-1), affinity)
        is_moderate = bool((torch.as_tensor(left) < LARGEST_SCALING).all())
    except ValueError:
        is_moderate = False
    if is_moderate:
        return kernel.mul_(left).mul_(right.mT)
    # An entry that underflowed may be large once scaled, and logarithms keep it. They also report a missing scaling.
    half = exponential.sinkhorn_scaling(query, key, row, weighted, column, weights, valid)
    return _exponentials(query, key, row + half, weighted + half)


def _exponentials(query: Tensor, key: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """exp(q_i·k_j + a_i + b_j) [B, M, M]."""
    return _by_rows(query, key, column, lambda logits, rows: logits.add_(row[:, rows].unsqueeze(-1)).exp_())


def _by_rows(query: Tensor, key: Tensor, column: Tensor, finish: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """`finish` on q_i·k_j + b_j, a few rows at a time."""
    batch, positions = query.shape[:2]
    size = max(1, BLOCK_ENTRIES // max(1, batch * key.shape[1]))
    kernel = query.new_empty(batch, positions, key.shape[1])
    keys = key.mT.contiguous()
    for start in range(0, positions, size):
        rows = slice(start, start + size)
        kernel[:, rows] = finish((query[:, rows] @ keys).add_(column.unsqueeze(1)), rows)
    return kernel


def _detach(affinity: AnyAffinity) -> AnyAffinity:
    """The affinity itself, or one with the same numbers and without their graph."""
    if isinstance(affinity, SparseAffinity):
        has_graph = affinity.matrix.requires_grad
        return replace(affinity, matrix=affinity.matrix.detach()) if has_graph else affinity
    if not (affinity.left.requires_grad or affinity.right.requires_grad):
        return affinity
    left = affinity.left.detach()
    right = left if affinity.right is affinity.left else affinity.right.detach()
    return replace(affinity, left=left, right=right)


def _is_finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())
