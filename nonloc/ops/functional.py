"""The one door to the operator: aggregate, diffuse, propagate, kernel_matrix, dirichlet_energy.

Every function takes an `Affinity` and z [B, M, C], and gives z's dtype back. Half precision is computed with
float32 logits and sums. Mixed dtypes are computed in the widest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from nonloc.ops import factored, reference
from nonloc.ops.affinity import Affinity
from nonloc.ops.checks import check_kernel_values
from nonloc.ops.operator import Operator

Weights = Sequence[Tensor | tuple[Tensor, Tensor]] | Tensor

# A backend makes an affinity ready: (affinity, compute dtype) -> Operator. One entry is all it takes to join.
BACKENDS: dict[str, Callable[[Affinity, torch.dtype], Operator]] = {
    "reference": reference.prepare,
    "factored": factored.prepare,
}

# Up to this many kernel entries (B · M · M') the matrix is faster than the detour around it, by measurement on two
# CPU cores (`nonloc bench backends`): attention pays early, blocks of rows only when memory does.
REFERENCE_ENTRIES = {"row": 2**19, "count": 2**23, "none": 2**23, "symmetric": 2**22, "sinkhorn": 2**20}


def aggregate(affinity: Affinity, z: Tensor, *, backend: str = "auto") -> Tensor:
    """(K z)_i = Σ_j K_ij z_j [B, M, C]: the original operation. z is [B, M', C] with sub-sampled givers."""
    _check_z(affinity, z, affinity.right.shape[1])
    with _full_precision(z):
        affinity, signal = _without_masked(affinity, z)
        operator, signal = _prepare(affinity, signal, backend)
        return operator.apply(signal).to(z.dtype)


def diffuse(affinity: Affinity, z: Tensor, *, backend: str = "auto") -> Tensor:
    """Σ_j K_ij (z_j − z_i) = (K z)_i − (Σ_j K_ij) z_i [B, M, C]: the proposed operation, ℒʰ z."""
    _check_square(affinity, "diffuse")
    _check_z(affinity, z, affinity.positions)
    with _full_precision(z):
        affinity, signal = _without_masked(affinity, z)
        operator, signal = _prepare(affinity, signal, backend)
        return (operator.apply(signal) - operator.sums * signal).to(z.dtype)


def propagate(affinity: Affinity, z: Tensor, weights: Weights, *, backend: str = "auto") -> Tensor:
    """z ← z + diffuse(affinity, z) W_nᵀ for each W_n in turn: a whole stage, Eq. (8) of the paper.

    weights  N items or a tensor [N, C, C]; an item is W [C, C], or a pair (W_Z [C, r], W_g [r, C]) that stands
             for W_Z W_g and is never multiplied out: the kernel then works on r channels instead of C
    """
    _check_square(affinity, "propagate")
    _check_z(affinity, z, affinity.positions)
    pairs = _weight_pairs(weights, z.shape[-1])
    with _full_precision(z):
        affinity, signal = _without_masked(affinity, z)
        operator, state = _prepare(affinity, signal, backend)
        for outer, inner in pairs:
            hidden = state if inner is None else state @ inner.to(state.dtype).mT
            change = operator.apply(hidden) - operator.sums * hidden
            state = state + change @ outer.to(state.dtype).mT
        result = state.to(z.dtype)
        return result if affinity.mask is None else torch.where(affinity.mask.unsqueeze(-1), result, z)


def kernel_matrix(affinity: Affinity) -> Tensor:
    """The dense normalised kernel K [B, M, M'], in the affinity's dtype. For small M."""
    dtype = _compute_dtype(affinity.left, affinity.right)
    with _full_precision(affinity.left):
        affinity, _ = _without_masked(affinity, affinity.right)
        check_kernel_values(affinity, dtype)
        kernel = reference.matrix(affinity, dtype)
    return kernel.to(torch.promote_types(affinity.left.dtype, affinity.right.dtype))


def dirichlet_energy(affinity: Affinity, z: Tensor, *, backend: str = "auto") -> Tensor:
    """½ Σ_ij K_ij |z_i − z_j|² of each sample [B]: how rough z is in the eyes of the kernel."""
    _check_square(affinity, "dirichlet_energy")
    _check_z(affinity, z, affinity.positions)
    with _full_precision(z):
        affinity, signal = _without_masked(affinity, z)
        operator, signal = _prepare(affinity, signal, backend)
        # Energies do not see a constant: taking it away keeps large means from cancelling.
        signal = signal - signal.mean(1, keepdim=True)
        squares = signal.square().sum(-1, keepdim=True)
        cross = (signal * operator.apply(signal)).sum(-1, keepdim=True)
        terms = operator.apply(squares) + operator.sums * squares - 2 * cross
        return (0.5 * terms.sum((1, 2))).to(z.dtype)


def choose_backend(affinity: Affinity) -> str:
    """The backend that "auto" stands for: the matrix while it is small, exact shortcuts above."""
    if affinity.kind in ("dot", "delta"):
        return "factored"
    entries = affinity.positions * affinity.right.shape[1]
    # An exported program may serve any batch: its choice must not depend on the one it was traced with.
    if not torch.compiler.is_exporting():
        entries = entries * affinity.batch
    limit = REFERENCE_ENTRIES["row" if affinity.kind == "concat" else affinity.normalize]
    return "reference" if entries <= limit else "factored"


def _prepare(affinity: Affinity, z: Tensor, backend: str) -> tuple[Operator, Tensor]:
    if backend == "auto":
        backend = choose_backend(affinity)
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; choose one of auto, {', '.join(BACKENDS)}")
    dtype = _compute_dtype(affinity.left, affinity.right, z)
    check_kernel_values(affinity, dtype)
    return BACKENDS[backend](affinity, dtype), z.to(dtype)


def _compute_dtype(*tensors: Tensor) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _without_masked(affinity: Affinity, z: Tensor) -> tuple[Affinity, Tensor]:
    """Put zeros where nothing is valid, so that what lies in the padding, NaN included, reaches nobody."""
    if affinity.mask is None:
        return affinity, z
    keep = affinity.mask.unsqueeze(-1)
    left = torch.where(keep, affinity.left, 0)
    right = left if affinity.right is affinity.left else torch.where(keep, affinity.right, 0)
    clean = Affinity(
        left,
        right,
        affinity.kind,
        affinity.normalize,
        affinity.scale,
        mask=affinity.mask,
        measure=affinity.measure,
    )
    return clean, torch.where(keep, z, 0)


def _full_precision(x: Tensor) -> AbstractContextManager[None]:
    """Autocast off: inside, products of logits stay in the dtype chosen here."""
    # Shapes without contents are never autocast, and older versions of torch refuse the question.
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def _check_square(affinity: Affinity, name: str) -> None:
    if not affinity.is_square:
        raise ValueError(
            f"{name} needs z_j − z_i, so left and right must have the same positions; got "
            f"{affinity.positions} and {affinity.right.shape[1]}. Sub-sampled givers work with aggregate alone"
        )


def _check_z(affinity: Affinity, z: Tensor, positions: int) -> None:
    if not isinstance(z, Tensor) or z.dim() != 3:
        got = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(
            f"z must be a tensor [B, M, C], got {got}; "
            "an image [B, C, H, W] becomes one by x.flatten(2).transpose(1, 2)"
        )
    if not z.dtype.is_floating_point:
        raise ValueError(f"z must be floating point, got {z.dtype}; use z.float()")
    if z.shape[0] != affinity.batch or z.shape[1] != positions:
        raise ValueError(
            f"z {list(z.shape)} must have the affinity's batch and positions, [{affinity.batch}, {positions}, C]"
        )
    if z.device != affinity.left.device:
        raise ValueError(
            f"z is on {z.device}, the affinity on {affinity.left.device}; move both to one device"
        )


def _weight_pairs(weights: Weights, channels: int) -> list[tuple[Tensor, Tensor | None]]:
    """Each item as (outer, inner): W = outer, or W = outer inner."""
    pairs: list[tuple[Tensor, Tensor | None]] = []
    for n, item in enumerate(weights):
        outer, inner = item if isinstance(item, (tuple, list)) else (item, None)
        rank = outer.shape[-1] if inner is not None else channels
        fits = outer.shape == (channels, rank) and (inner is None or inner.shape == (rank, channels))
        if not fits:
            got = list(outer.shape) if inner is None else f"({list(outer.shape)}, {list(inner.shape)})"
            raise ValueError(
                f"weights[{n}] is {got}; with C = {channels} channels an item is W [{channels}, {channels}], or a "
                f"pair (W_Z [{channels}, r], W_g [r, {channels}])"
            )
        pairs.append((outer, inner))
    return pairs
