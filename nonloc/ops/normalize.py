"""What normalisation means: K = diag(a) Ω diag(b), for every kernel of which products v -> Ω v are known.

    normalize    a_i            b_j
    "none"       1              μ_j
    "count"      1 / Σ_j μ_j    μ_j
    "row"        1 / 𝒞_i        μ_j             𝒞_i = Σ_j Ω_ij μ_j
    "symmetric"  1 / √𝒞_i       μ_j / √𝒞_j
    "sinkhorn"   u_i            μ_j u_j         u > 0 with u_i Σ_j Ω_ij μ_j u_j = 1

An inverse of 0 is 0. The exponential kernels have log a and log b instead (exponential.py), because 𝒞 may overflow.
"symmetric" and "sinkhorn" need Ω symmetric and nowhere negative. The checks here compare entry by entry, some rows at a
time, so that one large position cannot hide an asymmetry of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nonloc._torch_compat import can_read_values
from nonloc.ops.affinity import SYMMETRIC, Affinity
from nonloc.ops.arithmetic import inverse_or_zero, inverse_root_or_zero, log_positive
from nonloc.ops.sinkhorn import LogApply, Matvec, Scaling, solve_scaling

if TYPE_CHECKING:
    from nonloc.ops.sparse import SparseAffinity

ENTRIES_AT_ONCE = 2**22


class Operator(NamedTuple):
    """A normalised kernel K, ready to be applied.

    apply  z [B, M', C] -> K z [B, M, C], in the compute dtype; may be called many times
    sums   [B, M, 1], the row sums Σ_j K_ij

    >>> from nonloc import Affinity, prepare
    >>> same = torch.zeros(1, 2, 1)
    >>> operator = prepare(Affinity(same, same, "heat", normalize="none")).operator
    >>> operator.apply(torch.tensor([[[0.0], [1.0]]])).flatten().tolist()
    [1.0, 1.0]
    """

    apply: Callable[[Tensor], Tensor]
    sums: Tensor


class Omega:
    """Ω as v -> Ω v, with the tensors that it is made from: the derivative of a Sinkhorn scaling needs them.

    make     tensors -> (v -> Ω v)
    tensors  arguments of `make`, dense or sparse
    """

    def __init__(self, make: Callable[..., Matvec], *tensors: Tensor) -> None:
        self.make, self.tensors = make, tensors
        self._apply = make(*tensors)

    def __call__(self, v: Tensor) -> Tensor:
        return self._apply(v)


def normalized(omega: Omega, weights: Tensor, affinity: Affinity | SparseAffinity) -> Operator:
    """K from the product v -> Ω v; weights μ are [B or 1, M', 1]."""
    a, b, sums = sides(omega, weights, affinity)
    return Operator(lambda z: a * omega(b * z), sums)


def sides(
    omega: Omega, weights: Tensor, affinity: Affinity | SparseAffinity
) -> tuple[Tensor | float, Tensor, Tensor]:
    """(a, b, s) with K = diag(a) Ω diag(b) and row sums s, each [B, M, 1] (a may be the number 1)."""
    weights = weights.expand(affinity.batch, -1, -1)
    sums = omega(weights)
    if affinity.normalize == "none":
        return 1.0, weights, sums
    if affinity.normalize == "count":
        share = inverse_or_zero(weights.sum(1, keepdim=True))
        return share, weights, share * sums
    if affinity.normalize == "row":
        shares = inverse_or_zero(sums)
        return shares, weights, (shares != 0).to(sums.dtype)
    if affinity.normalize == "symmetric":
        side = inverse_root_or_zero(sums)
    else:
        valid = affinity.mask
        if valid is None:
            valid = torch.ones(weights.shape[:2], dtype=torch.bool, device=weights.device)
        steps = affinity.sinkhorn_steps if isinstance(affinity, Affinity) else None
        side = _sinkhorn(omega, weights, valid, steps).exp().unsqueeze(-1)
    b = weights * side
    return side, b, side * omega(b)


def _sinkhorn(omega: Omega, weights: Tensor, valid: Tensor, steps: int | None) -> Tensor:
    """x = log u of the Sinkhorn normalisation [B, M], with its derivatives."""
    make = omega.make

    def log_apply(weights: Tensor, *tensors: Tensor) -> LogApply:
        omega = make(*tensors)
        return lambda x: log_positive(omega(weights * x.exp().unsqueeze(-1)))

    def between(x: Tensor, weights: Tensor, *tensors: Tensor) -> Matvec:
        omega, side = make(*tensors), (x.exp() * valid).unsqueeze(-1)
        return lambda v: (side * omega(side * v.unsqueeze(-1))).squeeze(-1)

    def mass(weights: Tensor, *tensors: Tensor) -> Tensor:
        return weights.squeeze(-1) * valid

    scaling = Scaling(log_apply, between, mass, valid, weights.dtype, steps=steps)
    return solve_scaling(scaling, weights, *omega.tensors)


def check_kernel_values(affinity: Affinity, dtype: torch.dtype) -> None:
    """ValueError unless Ω has the values that its normalisation needs; no check while tracing or capturing."""
    if affinity.normalize not in SYMMETRIC or affinity.kind == "delta":
        return
    readable = can_read_values(affinity.left) and can_read_values(affinity.right)
    if not readable or affinity.left.numel() == 0:
        return
    if affinity.left is not affinity.right and not is_symmetric(affinity, dtype):
        raise ValueError(
            f"normalize={affinity.normalize!r} needs a symmetric affinity, and this one is not (by value); use one "
            'embedding for both sides (left = right; shared_embedding=True of a stage), or normalize="row"'
        )
    if affinity.kind == "dot" and has_negative(affinity, dtype):
        raise ValueError(
            f'normalize={affinity.normalize!r} needs an affinity that is nowhere negative, and this kind="dot" has '
            'negative entries; use features ≥ 0 (a ReLU), kind="gaussian", or normalize="row"'
        )


def is_symmetric(affinity: Affinity, dtype: torch.dtype) -> bool:
    """Return whether Ω_ij = Ω_ji by value, for features in `dtype`.

    Memory is linear in M; time is M² d, unless the two are equal or an early entry differs. An entry may differ by
    what rounding its features can change in it, however large other entries are.
    """
    left, right = _features(affinity, dtype)
    if torch.equal(left, right):
        return True
    dtypes = (left.dtype, affinity.left.dtype, affinity.right.dtype)
    allowed = (16 + left.shape[-1]) * max(torch.finfo(dtype).eps for dtype in dtypes)
    left, right = left.double(), right.double()
    sizes = _sizes(affinity, left, right)
    at_once = _rows_at_once(left, right)
    for start in range(0, left.shape[1], at_once):
        # Each pair once: earlier columns were rows before.
        rows, columns = slice(start, start + at_once), slice(start, None)
        one = _entries(affinity, left[:, rows], right[:, columns])
        other = _entries(affinity, right[:, rows], left[:, columns])
        size = _rounded_size(
            affinity, one, [side[:, rows] for side in sizes], [side[:, columns] for side in sizes]
        )
        # A comparison with NaN is false: such a sample passes, and its NaN reaches the output.
        differs = (one - other).abs() > allowed * size
        if affinity.mask is not None:
            differs &= affinity.mask[:, rows, None] & affinity.mask[:, None, columns]
        if bool(differs.any()):
            return False
    return True


def _features(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return affinity.left.detach().to(dtype), affinity.right.detach().to(dtype)


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
    """The size of either side at each position [B, M].

    One side may be the other times a matrix that maps a position nearly to 0; its rounding is then that of the other.
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
    # An exponential turns a difference of logits into a relative one: below 1 it is the difference itself.
    return size if affinity.kind == "dot" else size + 1


def has_negative(affinity: Affinity, dtype: torch.dtype) -> bool:
    """Return whether a "dot" affinity has entries below 0. Memory is linear in M; time M² d unless features are ≥ 0."""
    left, right = _features(affinity, dtype)
    if affinity.scale >= 0 and bool((left >= 0).all()) and bool((right >= 0).all()):
        return False
    # Two products that are equal in exact arithmetic may differ in sign by rounding.
    slack = 8 * torch.finfo(left.dtype).eps * abs(affinity.scale)
    sizes = right.norm(dim=-1).unsqueeze(1)
    return any(
        bool((affinity.scale * (rows @ right.mT) < -slack * rows.norm(dim=-1, keepdim=True) * sizes).any())
        for rows in left.split(_rows_at_once(left, right), 1)
    )
