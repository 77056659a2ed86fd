"""ReadyKernel: the kernel of a process, made ready once for all of its steps."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import Affinity, Operator, SparseAffinity, prepare, self_adjoint_weights
from nonloc.ops.functional import compute_dtype
from nonloc.processes.kept_matrix import ready
from nonloc.processes.kernel_checks import check_affinity, check_numbers, check_operator


class ReadyKernel:
    """An affinity made ready once for each dtype that asks: a simulation pays for its normalisation one time.

    is_fixed  False: the kernel follows a state. Numbers that are not finite are then how a simulation ends, and no
              matrix is kept
    """

    def __init__(self, affinity: Affinity | SparseAffinity, name: str, is_fixed: bool = True) -> None:
        check_affinity(affinity, name)
        if is_fixed:
            check_numbers(affinity, name)
        self.affinity = _without_gradient(affinity)
        self._is_fixed = is_fixed
        self._ready: dict[torch.dtype, Operator] = {}
        self._balance: list[Tensor | None] = []

    def at(self, z: Tensor) -> tuple[Operator, Tensor]:
        """The operator for z's precision, and z in it with zeros where nothing is valid."""
        self._check(z)
        dtype = compute_dtype(self.affinity, z)
        if dtype not in self._ready:
            with torch.no_grad():
                operator = (ready if self._is_fixed else prepare)(self.affinity, dtype)
                if self._is_fixed:
                    check_operator(operator, self.affinity)
            self._ready[dtype] = operator
        return self._ready[dtype], self.zero_masked(z).to(dtype)

    def zero_masked(self, z: Tensor) -> Tensor:
        mask = self.affinity.mask
        return z if mask is None else torch.where(mask.unsqueeze(-1), z, 0)

    def mean(self, signal: Tensor) -> Tensor:
        """The mean [B, 1, C] over the valid positions of a signal that is 0 at the others."""
        if self.affinity.mask is None:
            return signal.mean(1, keepdim=True)
        counts = self.affinity.mask.sum(1).clamp_min(1).view(-1, 1, 1)
        return signal.sum(1, keepdim=True) / counts

    def largest_row_sum(self) -> float:
        """Of K, over all positions and samples; 0 where there is none."""
        operator = next(iter(self._ready.values()), None)
        if operator is None:
            operator = prepare(self.affinity, compute_dtype(self.affinity))
        return float(operator.sums.max()) if operator.sums.numel() else 0.0

    def balance(self) -> Tensor | None:
        """π [B, M] of detailed balance, None where there is none."""
        if not self._balance:
            self._balance.append(self_adjoint_weights(self.affinity))
        return self._balance[0]

    def _check(self, z: Tensor) -> None:
        one = self.affinity
        batch = one.batch if isinstance(one, Affinity) else z.shape[0]
        if z.dim() != 3 or (z.shape[0], z.shape[1]) != (batch, one.positions):
            wanted = f"[{one.batch if isinstance(one, Affinity) else 'B'}, {one.positions}, C]"
            raise ValueError(f"z must be {wanted} like the affinity, got {list(z.shape)}")
        device = one.left.device if isinstance(one, Affinity) else one.matrix.device
        if z.device != device:
            raise ValueError(f"z is on {z.device}, the affinity on {device}; move both to one device")


def _without_gradient(affinity: Affinity | SparseAffinity) -> Affinity | SparseAffinity:
    """The affinity itself, or one that shares its numbers and leaves their graph behind."""
    if isinstance(affinity, SparseAffinity):
        return (
            replace(affinity, matrix=affinity.matrix.detach()) if affinity.matrix.requires_grad else affinity
        )
    if not (affinity.left.requires_grad or affinity.right.requires_grad):
        return affinity
    left = affinity.left.detach()
    right = left if affinity.right is affinity.left else affinity.right.detach()
    return replace(affinity, left=left, right=right)
