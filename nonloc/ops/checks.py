"""What "symmetric" and "sinkhorn" ask of the numbers: Ω symmetric and nowhere negative. Eager only.

Symmetry is tested on probes: Ω (or its logits) and its transpose are applied to fixed vectors, which costs no
M × M memory and tells any two different matrices apart but for a set of measure zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops.affinity import Affinity, can_check_values

ROWS_AT_ONCE = 1024


def check_kernel_values(affinity: Affinity, dtype: torch.dtype) -> None:
    """Raise the ValueError that names the fix; do nothing while tracing or capturing."""
    if affinity.normalize not in ("symmetric", "sinkhorn") or affinity.kind == "delta":
        return
    if (
        not (can_check_values(affinity.left) and can_check_values(affinity.right))
        or affinity.left.numel() == 0
    ):
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
    """Whether Ω_ij = Ω_ji by value, for the features left and right [B, M, d] of an affinity."""
    if torch.equal(left, right):
        return True
    # In float64, so that what is allowed is the rounding of the features and not that of sums over all positions.
    known = torch.finfo(left.dtype).eps
    left, right = left.double(), right.double()
    probes = _probes(left)
    forward, backward = _apply(affinity, left, right, probes), _apply(affinity, right, left, probes)
    scale = _apply(affinity, left.abs(), right.abs(), probes.abs()).abs().amax((1, 2)) + 1e-300
    difference = (forward - backward).abs().amax((1, 2)) / scale
    allowed = max(16 * known, 64 * torch.finfo(left.dtype).eps * left.shape[1] ** 0.5)
    # A comparison with NaN is false: such a sample passes, and its NaN travels to the output.
    return not bool((difference > allowed).any())


def _probes(left: Tensor) -> Tensor:
    """Three fixed vectors [1, M, 3] without structure that a kernel could share."""
    index = torch.arange(1, left.shape[1] + 1, dtype=torch.float64, device=left.device)
    columns = [torch.cos(index * k) for k in (1.2345678, 2.7182818, 0.5772156)]
    return torch.stack(columns, -1).to(left.dtype).unsqueeze(0)


def _apply(affinity: Affinity, left: Tensor, right: Tensor, probes: Tensor) -> Tensor:
    """The logits of an exponential kernel, or Ω itself, applied to the probes in memory linear in M."""
    if affinity.kind == "concat":
        blocks = [torch.relu(rows + right.mT) @ probes for rows in left.split(ROWS_AT_ONCE, 1)]
        return torch.cat(blocks, 1)
    product = left @ (right.mT @ probes.expand(left.shape[0], -1, -1))
    if affinity.kind != "heat":
        return product
    total = probes.sum(1, keepdim=True)
    squares = left.square().sum(-1, keepdim=True) * total
    squares = squares + (right.square().sum(-1, keepdim=True) * probes).sum(1, keepdim=True)
    return squares - 2 * product


def has_negative(affinity: Affinity, left: Tensor, right: Tensor) -> bool:
    """Whether a "dot" affinity has entries below 0: in memory linear in M, in time M² d unless the features are ≥ 0."""
    if affinity.scale >= 0 and bool((left >= 0).all()) and bool((right >= 0).all()):
        return False
    # Two products that are equal in exact arithmetic may differ in sign by rounding alone.
    slack = 8 * torch.finfo(left.dtype).eps * abs(affinity.scale)
    sizes = right.norm(dim=-1).unsqueeze(1)
    return any(
        bool((affinity.scale * (rows @ right.mT) < -slack * rows.norm(dim=-1, keepdim=True) * sizes).any())
        for rows in left.split(ROWS_AT_ONCE, 1)
    )
