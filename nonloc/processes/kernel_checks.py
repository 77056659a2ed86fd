"""What every process asks of its kernel, said once: an affinity between the same positions, with finite numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nonloc.ops import Affinity, Operator, SparseAffinity
from nonloc.ops.affinity import without_masked


def check_affinity(affinity: Any, name: str = "affinity") -> None:
    """Raise the ValueError that names the fix, where `affinity` is none, or is not between the same positions."""
    if not isinstance(affinity, (Affinity, SparseAffinity)):
        raise ValueError(
            f"{name} must be an Affinity or a SparseAffinity, got {type(affinity).__name__}; "
            'for example Affinity(x, x, "heat") with x = points[None] for points [M, d]'
        )
    if isinstance(affinity, Affinity) and not affinity.is_square:
        raise ValueError(
            f"{name} must have the same positions on both sides, got {affinity.positions} and "
            f"{affinity.right.shape[1]}; a process needs a state at every giver, so do not sub-sample"
        )


def check_numbers(affinity: Affinity | SparseAffinity, name: str = "affinity") -> None:
    """Raise the ValueError that names the fix, where what the kernel is made of has NaN or infinite values."""
    if isinstance(affinity, SparseAffinity):
        if not _is_finite(affinity.matrix.values()):
            raise ValueError(f"{name} has a matrix with values that are not finite; leave out those entries")
    else:
        seen = without_masked(affinity)
        if not (_is_finite(seen.left) and (seen.right is seen.left or _is_finite(seen.right))):
            raise ValueError(
                f"{name} has features that are not finite; replace them, or mask their positions (mask=[B, M])"
            )
    if affinity.measure is not None and not _is_finite(affinity.measure):
        raise ValueError(
            f"{name} has a measure that is not finite; quadrature weights must be finite and ≥ 0"
        )


def check_operator(operator: Operator, affinity: Affinity | SparseAffinity) -> None:
    """Raise the ValueError that names the fix, where an affinity of finite numbers has a kernel that is not."""
    check_overflow(operator.sums, affinity)
    if isinstance(affinity, SparseAffinity) or affinity.kind in ("dot", "concat"):
        # Without its matrix such a kernel has row sums of 1 by construction; what it does to a constant tells.
        ones = torch.ones_like(operator.sums).expand(affinity.batch, affinity.positions, 1)
        if affinity.mask is not None:
            ones = ones * affinity.mask.unsqueeze(-1)
        check_overflow(operator.apply(ones), affinity)


def check_overflow(values: Tensor, affinity: Affinity | SparseAffinity) -> None:
    """Raise the ValueError that names the fix, where a kernel of finite numbers has left their range.

    values  the kernel's entries, or its row sums
    """
    if not _is_finite(values):
        raise ValueError(
            f"the kernel overflows: with normalize={affinity.normalize!r} it has values that are not finite; scale the "
            'features down, or use normalize="row", which needs no room for exponentials'
        )


def _is_finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())
