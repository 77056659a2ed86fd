"""Operator: an affinity made ready to be applied, as a backend hands it to the functions of the door."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nonloc.ops.affinity import Affinity


class Operator(NamedTuple):
    """What a normalised kernel K does, without saying how.

    apply  z [B, M', C] -> K z [B, M, C], in the compute dtype; may be called again and again
    sums   [B, M, 1], the row sums Σ_j K_ij
    """

    apply: Callable[[Tensor], Tensor]
    sums: Tensor


class Omega:
    """Ω as v -> Ω v, with the tensors that it is made from: the derivative of a scaling has to know them.

    make     tensors -> (v -> Ω v)
    tensors  what `make` takes, dense or sparse
    """

    def __init__(self, make: Callable[..., Callable[[Tensor], Tensor]], *tensors: Tensor) -> None:
        self.make, self.tensors = make, tensors
        self._apply = make(*tensors)

    def __call__(self, v: Tensor) -> Tensor:
        return self._apply(v)


class Normalized(Protocol):
    """What a normalisation needs to know of an affinity, whichever form Ω has."""

    @property
    def normalize(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def mask(self) -> Tensor | None: ...


def energy(operator: Operator, z: Tensor) -> Tensor:
    """½ Σ_ij K_ij |z_i − z_j|² of each sample [B], for z [B, M, C] in the compute dtype."""
    # Energies do not see a constant: taking it away keeps large means from cancelling. It is the mean of those that
    # receive anything: zeros in the padding would pull it away from the others.
    receives = (operator.sums != 0).to(z.dtype)
    z = z - (receives * z).sum(1, keepdim=True) / receives.sum(1, keepdim=True).clamp(min=1)
    squares = z.square().sum(-1, keepdim=True)
    cross = (z * operator.apply(z)).sum(-1, keepdim=True)
    terms = operator.apply(squares) + operator.sums * squares - 2 * cross
    return 0.5 * terms.sum((1, 2))


def position_weights(affinity: Affinity, dtype: torch.dtype) -> Tensor:
    """What each giver weighs [B or 1, M']: its measure, and nothing where it is masked."""
    if affinity.measure is None:
        weights = torch.ones(1, affinity.right.shape[1], dtype=dtype, device=affinity.right.device)
    else:
        weights = affinity.measure.to(dtype).unsqueeze(0)
    return weights if affinity.mask is None else weights * affinity.mask


def centred(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Both sides around the mean of the givers that count, so that |l − r|², which sees no shift, is not the difference
    of large numbers by its expansion. What lies in the padding has no say in where that is."""
    left, right = affinity.left.to(dtype), affinity.right.to(dtype)
    with torch.no_grad():
        if affinity.mask is None and affinity.measure is None:
            centre = right.mean(1, keepdim=True)
        else:
            counts = (position_weights(affinity, dtype) > 0).unsqueeze(-1)
            total = torch.where(counts, right, 0).sum(1, keepdim=True)
            centre = total / counts.sum(1, keepdim=True).clamp(min=1)
    return left - centre.detach(), right - centre.detach()


def without_masked(affinity: Affinity) -> Affinity:
    """Features with zeros where nothing is valid, so that what lies in the padding, NaN included, reaches nobody."""
    if affinity.mask is None:
        return affinity
    keep = affinity.mask.unsqueeze(-1)
    left = torch.where(keep, affinity.left, 0)
    right = left if affinity.right is affinity.left else torch.where(keep, affinity.right, 0)
    return replace(affinity, left=left, right=right)


def full_precision(x: Tensor) -> AbstractContextManager[None]:
    """Autocast off: inside, products of logits stay in the dtype chosen here."""
    # Shapes without contents are never autocast, and older versions of torch refuse the question.
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def inverse_or_zero(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0 or so small that 1/x is no number, with a gradient that is finite there."""
    is_zero = x.abs() < torch.finfo(x.dtype).tiny
    return torch.where(is_zero, 0, 1 / torch.where(is_zero, 1, x))


def inverse_root_or_zero(x: Tensor) -> Tensor:
    """1/√x, and 0 where x is not positive, with a gradient that is finite there; NaN stays NaN."""
    is_empty = x <= 0
    return torch.where(is_empty, 0, torch.where(is_empty, 1, x).rsqrt())


def valid_positions(affinity: Affinity) -> Tensor:
    """[B, M] bool: the mask, or everything."""
    if affinity.mask is not None:
        return affinity.mask
    return torch.ones(affinity.left.shape[:2], dtype=torch.bool, device=affinity.left.device)


def nothing_or_nan(x: Tensor, dim: int) -> Tensor:
    """0, or NaN where x has something along `dim` that is not finite: for shortcuts that would skip over it."""
    return 0 * x.detach().sum(dim, keepdim=True)
