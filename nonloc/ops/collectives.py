"""Sums over the processes of torch.distributed, with derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed


def all_sum(x: Tensor, group: Any = None) -> Tensor:
    """Return the sum of x over the processes of `group` (all of them when None), in each of them.

    A gradient is that of the sum of all processes' losses. So every process must take it.
    """
    return _AllSum.apply(x, group)


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return all_sum(gradient, ctx.group), None
