"""Transitions: products with the kernel of a jump process and its transpose; walkers stay where a row is empty."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc._checks import is_whole, shown
from nonloc.ops import Affinity, SparseAffinity, adjoint, choose_backend, kernel_matrix, prepare
from nonloc.ops.affinity import without_masked, zero_masked
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.bounds import wide
from nonloc.processes.kernel import check_operator, check_overflow, stored_matrix, stores_matrix

Apply = Callable[[Tensor], Tensor]


class Transitions:
    """P = K, with P_ii = 1 for a position whose row of K is empty or masked, in one dtype.

    sums   [B, M, 1]  the row sums of K: 1, or 0 where a walker stays
    stays  [B, M]     bool, where it does
    """

    def __init__(self, affinity: Affinity | SparseAffinity, dtype: torch.dtype) -> None:
        affinity = wide(affinity, dtype)
        self.affinity = affinity if isinstance(affinity, SparseAffinity) else without_masked(affinity)
        self.dtype = dtype
        with torch.no_grad():
            kernel = _matrix(self.affinity, dtype)
            if kernel is not None:
                self.sums = kernel.sum(-1, keepdim=True)
                self._apply: Apply = lambda f: kernel @ f
                self._adjoint: Apply = lambda p: kernel.mT @ p
            else:
                operator = prepare(self.affinity, dtype).operator
                self._apply = operator.apply
                self._adjoint = adjoint(self.affinity, dtype)
                self.sums = operator.sums.expand(affinity.batch, affinity.positions, 1)
                check_operator(operator, self.affinity)
        check_overflow(self.sums, affinity)
        self.stays = (self.sums == 0).squeeze(-1)

    @property
    def batch(self) -> int:
        return self.affinity.batch

    @property
    def positions(self) -> int:
        return self.affinity.positions

    def change(self, law: Tensor) -> Tensor:
        """Kᵀp − p [B, M, C], the right-hand side of the master equation; only what arrives where a walker stays."""
        law = zero_masked(law, self.affinity.mask)
        return self._adjoint(law) - self.sums * law

    def difference(self, f: Tensor) -> Tensor:
        """Kf − f [B, M, C], and 0 where a walker stays: the adjoint of `change`."""
        f = zero_masked(f, self.affinity.mask)
        return self._apply(f) - self.sums * f

    def average(self, f: Tensor) -> Tensor:
        """P f [B, M, C]: the mean of f after one jump."""
        f = zero_masked(f, self.affinity.mask)
        return self._apply(f) + self._remaining() * f

    def move(self, law: Tensor) -> Tensor:
        """Pᵀ p [B, M, C]: the law after one jump."""
        law = zero_masked(law, self.affinity.mask)
        return self._adjoint(law) + self._remaining() * law

    def matrix(self) -> Tensor:
        """P [B, M, M], with rows scaled to sum 1 up to rounding. For small M."""
        kernel = kernel_matrix(self.affinity)
        return kernel * inverse_or_zero(self.sums) + torch.diag_embed(self.stays.to(self.dtype))

    def check_sample(self, sample: object) -> None:
        """ValueError unless it is the number of a sample of the batch."""
        if self.batch == 0:
            raise ValueError("the batch is empty (B = 0), so it has no sample")
        if not is_whole(sample) or not 0 <= sample < self.batch:
            raise ValueError(f"sample must be one of 0 … {self.batch - 1}, got {shown(sample)}")

    def _remaining(self) -> Tensor:
        return self.stays.to(self.dtype).unsqueeze(-1)


def _matrix(affinity: Affinity | SparseAffinity, dtype: torch.dtype) -> Tensor | None:
    """K where many products with it and with its transpose are faster by the matrix, and it fits."""
    if choose_backend(affinity) == "reference":
        return kernel_matrix(affinity)
    if isinstance(affinity, SparseAffinity) or not stores_matrix(affinity, dtype):
        return None
    return stored_matrix(affinity, dtype)
