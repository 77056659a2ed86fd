"""Arithmetic with safe edges: 1/0 and log 0 have values that are chosen here, and gradients that are finite."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

# In the place of log 0: its exponential is 0 in every dtype, and its products are finite, unlike those of −inf.
LOG_ZERO = -1e30


def inverse_or_zero(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0 or so small that 1/x overflows, with a finite gradient there."""
    is_zero = x.abs() < torch.finfo(x.dtype).tiny
    return torch.where(is_zero, 0, 1 / torch.where(is_zero, 1, x))


def inverse_root_or_zero(x: Tensor) -> Tensor:
    """1/√x, and 0 where x is not positive, with a finite gradient there; NaN stays NaN."""
    is_empty = x <= 0
    return torch.where(is_empty, 0, torch.where(is_empty, 1, x).rsqrt())


def log_positive(sums: Tensor, empty: float = -torch.inf) -> Tensor:
    """log of [B, M, 1] as [B, M], and `empty`, without a gradient, where it is not positive; NaN stays NaN."""
    is_empty = sums <= 0
    return torch.where(is_empty, empty, torch.where(is_empty, 1, sums).log()).squeeze(-1)


def zero_or_nan(x: Tensor, dim: int) -> Tensor:
    """0, or NaN where x is not finite somewhere along `dim`: a shortcut that skips x adds it to pass NaN on."""
    return 0 * x.detach().sum(dim, keepdim=True)


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As x.to(dtype), which takes its time also where there is nothing to do."""
    return x if x.dtype == dtype else x.to(dtype)


def full_precision(x: Tensor) -> AbstractContextManager[None]:
    """Switch autocast off: inside, products of logits stay in the chosen dtype."""
    # Meta tensors are never autocast, and older versions of torch refuse to ask or to switch it off for them.
    kind = x.device.type
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()
