"""What "symmetric" and "sinkhorn" ask of the numbers: Ω symmetric and nowhere negative. Eager only.

Symmetry is tested entry by entry, some rows at a time, so that neither a far position nor a large one hides what the
others do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc._torch_compat import can_read_values
from nonloc.ops.affinity import Affinity

ENTRIES_AT_ONCE = 2**22


def check_kernel_values(affinity: Affinity, dtype: torch.dtype) -> None:
    """Raise the ValueError that names the fix; do nothing while tracing or capturing."""
    if affinity.normalize not in ("symmetric", "sinkhorn") or affinity.kind == "delta":
        return
    if not (can_read_values(affinity.left) and can_read_values(affinity.right)) or affinity.left.numel() == 0:
        return
    left, right = affinity.left.detach().to(dtype), affinity.right.detach().to(dtype)
    if affinity.left is not affinity.right and not is_symmetric(affinity, left, right):
        raise ValueError(
            f"normalize={affinity.normalize!r} needs a symmetric affinity, and this one is not (by value); use one "
            'embedding for both sides (left = right; shared_embedding=True of a stage), or normalize="row"'
        )
    if affinity.kind == "dot" and has_negative(affinity, left, right):
        raise ValueError(
            f'normalize={affinity.normalize!r} needs an affinity that is nowhere negative, and this kind="dot" has '
            'negative entries; use features ≥ 0 (a ReLU), kind="gaussian", or normalize="row"'
        )


def is_symmetric(affinity: Affinity, left: Tensor, right: Tensor) -> bool:
    """Whether Ω_ij = Ω_ji by value, for the features left and right [B, M, d] of an affinity.

    Entry by entry: in memory linear in M, in time M² d unless the two are equal, or an early entry tells. What may
    differ is what rounding the features can do to that entry, however large others are.
    """
    if torch.equal(left, right):
        return True
    dtypes = (left.dtype, affinity.left.dtype, affinity.right.dtype)
    allowed = (16 + left.shape[-1]) * max(torch.finfo(dtype).eps for dtype in dtypes)
    left, right = left.double(), right.double()
    sizes = _sizes(affinity, left, right)
    at_once = _rows_at_once(left, right)
    for start in range(0, left.shape[1], at_once):
        # Of each pair once: the columns before were rows before.
        rows, columns = slice(start, start + at_once), slice(start, None)
        one = _entries(affinity, left[:, rows], right[:, columns])
        other = _entries(affinity, right[:, rows], left[:, columns])
        size = _rounded_size(
            affinity, one, [side[:, rows] for side in sizes], [side[:, columns] for side in sizes]
        )
        # A comparison with NaN is false: such a sample passes, and its NaN travels to the output.
        differs = (one - other).abs() > allowed * size
        if affinity.mask is not None:
            differs &= affinity.mask[:, rows, None] & affinity.mask[:, None, columns]
        if bool(differs.any()):
            return False
    return True


def _rows_at_once(left: Tensor, right: Tensor) -> int:
    return max(1, ENTRIES_AT_ONCE // max(1, left.shape[0] * right.shape[1]))


def _entries(affinity: Affinity, rows: Tensor, columns: Tensor) -> Tensor:
    """The logits of an exponential kernel, or Ω itself, [B, R, M]."""
    if affinity.kind == "concat":
        return torch.relu(rows + columns.mT)
    if affinity.kind == "heat":
        gaps = torch.cdist(rows, columns, compute_mode="donot_use_mm_for_euclid_dist")
        return affinity.scale * gaps.square()
    return affinity.scale * (rows @ columns.mT)


def _sizes(affinity: Affinity, left: Tensor, right: Tensor) -> list[Tensor]:
    """How large either side is at each position [B, M].

    One may be the other times a matrix that takes a position nearly to 0; its rounding is then that of the other.
    """
    one, other = left.norm(dim=-1), right.norm(dim=-1)
    ratio = torch.ones_like(one[:, :1])
    if affinity.kind in ("gaussian", "dot"):
        ratio = one.norm(dim=-1, keepdim=True) / other.norm(dim=-1, keepdim=True)
        ratio = torch.where((ratio > 0) & ratio.isfinite(), ratio, 1)
    return [torch.maximum(one, ratio * other), torch.maximum(other, one / ratio)]


def _rounded_size(affinity: Affinity, entries: Tensor, rows: list[Tensor], columns: list[Tensor]) -> Tensor:
    """The numbers [B, R, M] relative to which entries are rounded when the features are."""
    if affinity.kind in ("concat", "heat"):
        size = torch.maximum(*rows).unsqueeze(-1) + torch.maximum(*columns).unsqueeze(1)
        if affinity.kind == "concat":
            return size
        # |l − r|² changes by twice its root times the change of l and r.
        return 2 * size * (abs(affinity.scale) * entries.abs()).sqrt() + 1
    size = abs(affinity.scale) * torch.maximum(
        rows[0].unsqueeze(-1) * columns[1].unsqueeze(1), rows[1].unsqueeze(-1) * columns[0].unsqueeze(1)
    )
    # An exponential turns a difference of its logits into a relative one, so that below 1 it is the difference itself.
    return size if affinity.kind == "dot" else size + 1


def has_negative(affinity: Affinity, left: Tensor, right: Tensor) -> bool:
    """Whether a "dot" affinity has entries below 0: in memory linear in M, in time M² d unless the features are ≥ 0."""
    if affinity.scale >= 0 and bool((left >= 0).all()) and bool((right >= 0).all()):
        return False
    # Two products that are equal in exact arithmetic may differ in sign by rounding alone.
    slack = 8 * torch.finfo(left.dtype).eps * abs(affinity.scale)
    sizes = right.norm(dim=-1).unsqueeze(1)
    return any(
        bool((affinity.scale * (rows @ right.mT) < -slack * rows.norm(dim=-1, keepdim=True) * sizes).any())
        for rows in left.split(_rows_at_once(left, right), 1)
    )
