"""Affinity: the pairwise kernel ω(X_i, X_j) as a frozen value. Most backends never make it a matrix."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nonloc._checks import check_choice, check_whole, is_finite, is_number, shown
from nonloc._torch_compat import can_read_values

KINDS = ("gaussian", "heat", "dot", "concat", "delta")
NORMALIZATIONS = ("row", "count", "none", "symmetric", "sinkhorn")
SYMMETRIC = ("symmetric", "sinkhorn")  # of a symmetric Ω between the same positions
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Affinity:
    """A pairwise kernel between positions and the way it is normalised.

    With l_i, r_j the rows of `left` and `right`, the raw kernel Ω_ij is

        "gaussian"  exp(scale · l_i·r_j)        "dot"     scale · l_i·r_j
        "heat"      exp(−scale |l_i − r_j|²)    "concat"  relu(l_i + r_j), d = 1
        "delta"     1 if i = j, else 0

    or any other by its values [B, M, M], Affinity(values, torch.eye(M).expand(B, M, M), "dot"); and, with the row sums
    𝒞_i = Σ_j Ω_ij μ_j, the normalised kernel K_ij is

        "row"        Ω_ij μ_j / 𝒞_i             "count"   Ω_ij μ_j / Σ_j μ_j
        "symmetric"  Ω_ij μ_j / √(𝒞_i 𝒞_j)      "none"    Ω_ij μ_j
        "sinkhorn"   u_i Ω_ij u_j μ_j, with u > 0 such that rows (and μ-weighted columns) sum to 1

    A row with 𝒞_i = 0 is a row of zeros; 𝒞_i < 0 under "row" is divided by as written. "symmetric" and
    "sinkhorn" need Ω symmetric by value and nowhere negative.

    |l − r|² is computed by its expansion around the mean. So log Ω of "heat" has an error of eps · scale · |x|², with
    |x| the size of the features around their mean. Use float64 where they span 1,000 widths 1/√scale.

    left     [B, M, d]  features of the positions that receive
    right    [B, M, d]  features of the positions that give; `aggregate` alone also takes [B, M', d],
                        a sub-sampled set of givers
    mask     [B, M]     bool, True where a position is valid: the others neither give nor receive
    measure  [M]        quadrature weights μ_j ≥ 0 of the continuum; 1 each when left out
    sinkhorn_steps      with "sinkhorn": take this many steps towards u, whatever they reach, and differentiate through
                        them; None: until rows sum to 1. For programs that cannot look at their numbers (`freeze`)

    >>> from nonloc import Affinity, kernel_matrix
    >>> x = torch.tensor([[[0.0], [1.0]]])  # one sample, two positions, one feature
    >>> Affinity(x, x, "heat")
    Affinity(heat, row, B = 1, M = 2, d = 1)
    >>> kernel_matrix(Affinity(x, x, "heat", normalize="none"))
    tensor([[[1.0000, 0.3679],
             [0.3679, 1.0000]]])
    """

    left: Tensor
    right: Tensor
    kind: str
    normalize: str = "row"
    scale: float = 1.0
    _: KW_ONLY
    mask: Tensor | None = None
    measure: Tensor | None = None
    sinkhorn_steps: int | None = None

    def __post_init__(self) -> None:
        if callable(self.kind):
            raise ValueError(
                f"kind must be one of {', '.join(KINDS)}, got a function; give its values: "
                'Affinity(values, torch.eye(M).expand(B, M, M), "dot"), with values [B, M, M], a SparseAffinity of one '
                "matrix, nonloc.processes.horizon(points, radius, kernel=f) for a function of the distance, or "
                "nonloc.processes.Continuum(f, num_cells) for a function of two points"
            )
        check_choice("kind", self.kind, KINDS)
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        self._check_features()
        self._check_scale()
        self._check_mask()
        check_measure(self.measure, self.right.shape[1], self.left, "left")
        if self.sinkhorn_steps is not None:
            check_whole("sinkhorn_steps", self.sinkhorn_steps)

    def __repr__(self) -> str:
        parts = [self.kind, self.normalize, f"B = {self.batch}", f"M = {self.positions}"]
        if not self.is_square:
            parts.append(f"M' = {self.right.shape[1]}")
        parts.append(f"d = {self.left.shape[2]}")
        if self.scale != 1:
            parts.append(f"scale = {self.scale:g}")
        parts += ["masked"] * (self.mask is not None) + ["measured"] * (self.measure is not None)
        return f"Affinity({', '.join(parts)})"

    @property
    def batch(self) -> int:
        return self.left.shape[0]

    @property
    def positions(self) -> int:
        """M, the number of positions that receive."""
        return self.left.shape[1]

    @property
    def is_square(self) -> bool:
        """False when the givers are a sub-sampled set, which only `aggregate` can use."""
        return self.left.shape[1] == self.right.shape[1]

    @property
    def has_logits(self) -> bool:
        """Whether Ω is the exponential of something, its logits."""
        return self.kind in ("gaussian", "heat")

    def sample(self, index: int) -> Affinity:
        """The affinity of one sample of the batch, B = 1; −1 is the last."""
        left = self.left[index].unsqueeze(0)
        # What is symmetric because both sides are one tensor stays so.
        right = left if self.right is self.left else self.right[index].unsqueeze(0)
        mask = None if self.mask is None else self.mask[index].unsqueeze(0)
        return replace(self, left=left, right=right, mask=mask)

    def _check_features(self) -> None:
        for name, value in (("left", self.left), ("right", self.right)):
            check_batched(name, value, "d")
        left, right = self.left.shape, self.right.shape
        if left[0] != right[0] or left[2] != right[2]:
            raise ValueError(
                f"left {list(left)} and right {list(right)} must agree in batch and "
                "features; only the number of positions of right may differ"
            )
        if self.left.device != self.right.device:
            raise ValueError(
                f"left is on {self.left.device} and right on {self.right.device}; move both to one device"
            )
        if self.kind == "concat" and left[2] != 1:
            raise ValueError(
                f'kind="concat" needs d = 1 (left and right [B, M, 1]), got d = {left[2]}; '
                "project the features to one number a position first"
            )
        if left[1] == 0 or right[1] == 0:
            raise ValueError("left and right need at least one position (M ≥ 1)")
        if left[1] != right[1] and (self.kind == "delta" or self.normalize in SYMMETRIC):
            raise ValueError(
                f"kind={self.kind!r} with normalize={self.normalize!r} needs left and right to have the same "
                f"positions, got {left[1]} and {right[1]}; sub-sampled givers need another kind "
                'than "delta", and normalize="row", "count" or "none"'
            )

    def _check_scale(self) -> None:
        if not is_number(self.scale):
            raise ValueError(
                f"scale must be a number, got {type(self.scale).__name__}; fold a learned scale into left"
            )
        if not is_finite(self.scale):
            raise ValueError(f"scale must be finite, got {shown(self.scale)}")
        if not isinstance(self.scale, float):
            object.__setattr__(self, "scale", float(self.scale))  # numpy's, and whole numbers beyond 64 bits
        if self.kind == "heat" and self.scale <= 0:
            raise ValueError(f'kind="heat" needs scale > 0, got {self.scale}')
        if self.kind in ("concat", "delta") and self.scale != 1:
            raise ValueError(f"kind={self.kind!r} has no scale; leave it at 1.0, got {self.scale}")

    def _check_mask(self) -> None:
        mask = self.mask
        if mask is None:
            return
        expected = list(self.left.shape[:2])
        if not self.is_square:
            raise ValueError(
                "mask needs left and right to have the same positions; drop it or do not sub-sample"
            )
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or list(mask.shape) != expected:
            got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"mask must be a bool tensor [B, M] = {expected}, True where valid; got {got}")
        if mask.device != self.left.device:
            raise ValueError(f"mask is on {mask.device}, left on {self.left.device}; move both to one device")


def check_measure(measure: Any, count: int, like: Tensor, name: str) -> None:
    """ValueError unless there is none, or it has a weight ≥ 0 for each of `count` givers, on the device of `like`."""
    if measure is None:
        return
    if not isinstance(measure, Tensor) or list(measure.shape) != [count]:
        raise ValueError(
            f"measure must be a tensor [M] = [{count}] of quadrature weights, got {shape_or_type(measure)}"
        )
    if measure.dtype not in DTYPES:
        raise ValueError(f"measure must be floating point, got {measure.dtype}; use measure.double()")
    if measure.layout != torch.strided:
        raise ValueError(f"measure must be dense, got {measure.layout}; use measure.to_dense()")
    if measure.device != like.device:
        raise ValueError(f"measure is on {measure.device}, {name} on {like.device}; move both to one device")
    # One question, so that a device is waited for once; NaN is in no interval.
    if can_read_values(measure) and not bool(((measure >= 0) & (measure < torch.inf)).all()):
        wrong = "negative weights" if bool((measure < 0).any()) else "weights that are NaN or infinite"
        raise ValueError(f"measure has {wrong}; quadrature weights must be finite and ≥ 0")


def check_batched(name: str, value: Any, last: str) -> None:
    """ValueError unless it is a dense tensor [B, M, `last`] in one of DTYPES."""
    is_tensor = isinstance(value, Tensor)
    if is_tensor and (value.is_nested or value.layout != torch.strided):
        kind = "nested" if value.is_nested else str(value.layout)
        raise ValueError(
            f"{name} must be a dense tensor [B, M, {last}], got a {kind} one; make it dense first"
        )
    if not is_tensor or value.dim() != 3:
        got, fix = shape_or_type(value), how_to_batch(name, value)
        raise ValueError(f"{name} must be a tensor [B, M, {last}], got {got}; {fix}")
    if value.dtype not in DTYPES:
        fix = f"{name}.real" if value.dtype.is_complex else f"{name}.float()"
        raise ValueError(f"{name} must be floating point, of 16 bits or more, got {value.dtype}; use {fix}")


def check_dtype(dtype: Any) -> None:
    """ValueError unless it is one of DTYPES."""
    if dtype not in DTYPES:
        raise ValueError(
            f"dtype must be a floating dtype of torch, such as torch.float32, got {shown(dtype)}"
        )


def shape_or_type(value: Any) -> str:
    """The shape of a tensor, or the type of anything else, for an error message."""
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def shape_and_dtype(value: Any) -> str:
    """The shape and dtype of a tensor, or the type of anything else, for an error message."""
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def how_to_batch(name: str, value: Any) -> str:
    """How to make `value` a tensor of three dimensions (batch, positions, features), for an error message."""
    tensor = name if isinstance(value, Tensor) else f"torch.as_tensor({name})"
    dims = getattr(value, "ndim", 3)
    if dims == 1:
        return f"one number a position becomes one by {tensor}.view(1, -1, 1)"
    if dims == 2:
        return f"one sample becomes a batch of one by {tensor}[None]"
    if dims == 3:
        return f"use {tensor}"
    return f"an image [B, C, H, W] becomes one by {tensor}.flatten(2).transpose(1, 2)"


def position_weights(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """The weight of each giver [B or 1, M']: its measure, and 0 where it is masked."""
    if affinity.measure is None:
        weights = torch.ones(1, affinity.right.shape[1], dtype=dtype, device=affinity.right.device)
    else:
        weights = affinity.measure.to(dtype).unsqueeze(0)
    return weights if affinity.mask is None else weights * affinity.mask


def valid_positions(affinity: Affinity) -> Tensor:
    """[B, M] bool: the mask, or everything."""
    if affinity.mask is not None:
        return affinity.mask
    return torch.ones(affinity.left.shape[:2], dtype=torch.bool, device=affinity.left.device)


def zero_masked(z: Tensor, mask: Tensor | None) -> Tensor:
    """z [B, M, C] with zeros at masked positions, so that NaN in the padding cannot reach the others."""
    return z if mask is None else torch.where(mask.unsqueeze(-1), z, 0)


def without_masked(affinity: Affinity) -> Affinity:
    """The same with zeros at masked positions."""
    if affinity.mask is None:
        return affinity
    left = zero_masked(affinity.left, affinity.mask)
    right = left if affinity.right is affinity.left else zero_masked(affinity.right, affinity.mask)
    return replace(affinity, left=left, right=right)


def centred(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both sides minus the mean of the givers with weight: the expansion of |l − r|² then cancels little.

    Masked positions are 0 again, as they may be far from that mean.
    """
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    with torch.no_grad():
        if affinity.mask is None and affinity.measure is None:
            centre = right.mean(1, keepdim=True)
        else:
            counts = (position_weights(affinity, dtype) > 0).unsqueeze(-1)
            total = torch.where(counts, right, 0).sum(1, keepdim=True)
            centre = total / counts.sum(1, keepdim=True).clamp(min=1)
    left, right = left - centre.detach(), right - centre.detach()
    return zero_masked(left, affinity.mask), zero_masked(right, affinity.mask)
