"""Driven: a process with a source, and with positions whose values are fixed."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops.affinity import shape_and_dtype, shape_or_type
from nonloc.processes.jump.process import JumpProcess
from nonloc.processes.process import Process, mask_of


class Driven(Process):
    """dz/dt = rate(z) + f at positions that move, 0 at those that are fixed. Nothing is conserved, so there is no mean
    under π.

    process  is what drives it without f; where it is linear, so is this one up to a constant
    source   f, of a shape that broadcasts to z0's; None for none
    fixed    [M] or [B, M], True where z stays as in z0; None for nowhere
    """

    def __init__(self, process: Process, source: Tensor | None, fixed: Tensor | None, z0: Tensor) -> None:
        if isinstance(process, JumpProcess):
            raise ValueError(
                "a JumpProcess takes neither source nor fixed, because its states would be no laws; use "
                "Diffusion(affinity)"
            )
        self.affinity, self.is_linear = process.affinity, process.is_linear
        self.follows_state = process.follows_state
        self._process = process
        self._source = None if source is None else _checked_source(source, z0)
        self._moves = torch.ones(1, z0.shape[1], 1, dtype=torch.bool, device=z0.device)
        if fixed is not None:
            self._moves = ~_checked_fixed(fixed, z0)
        if (mask := mask_of(process)) is not None:
            self._moves = self._moves & mask.unsqueeze(-1)

    def rate(self, z: Tensor) -> Tensor:
        """rate(z) + f [B, M, C], 0 where z is fixed."""
        change = self._process.rate(z)
        return torch.where(self._moves, change if self._source is None else change + self._source, 0)

    def linear_rate(self, v: Tensor) -> Tensor:
        """The part of `rate` that is linear in a change v [B, M, C], which is 0 where z is fixed."""
        return torch.where(self._moves, self._process.rate(torch.where(self._moves, v, 0)), 0)

    def checked_euler_step(self, step_size: float) -> float:
        return self._process.checked_euler_step(step_size)

    def inner_weights(self) -> Tensor | None:
        """Those of the process: its rate stays self-adjoint and dissipative on what moves."""
        return self._process.inner_weights()

    def energy(self, z: Tensor) -> Tensor | None:
        return self._process.energy(z)


def _checked_source(source: Tensor, z0: Tensor) -> Tensor:
    fits = isinstance(source, Tensor) and source.dim() == 3
    if not fits or any(a not in (1, b) for a, b in zip(source.shape, z0.shape, strict=True)):
        raise ValueError(
            f"source must be a tensor that broadcasts to z0's {list(z0.shape)}, got {shape_or_type(source)}; one "
            "number a position is source.view(1, -1, 1)"
        )
    if source.device != z0.device:
        raise ValueError(f"source is on {source.device}, z0 on {z0.device}; move both to one device")
    source = source.detach().to(z0.dtype)
    if not bool(torch.isfinite(source).all()):
        raise ValueError("source has values that are not finite; replace them")
    return source


def _checked_fixed(fixed: Tensor, z0: Tensor) -> Tensor:
    """[B or 1, M, 1]."""
    shapes = [[z0.shape[1]], list(z0.shape[:2])]
    if not isinstance(fixed, Tensor) or fixed.dtype != torch.bool or list(fixed.shape) not in shapes:
        raise ValueError(
            f"fixed must be a bool tensor {shapes[0]} or {shapes[1]}, got {shape_and_dtype(fixed)}; of indices, "
            "mask[indices] = True"
        )
    if fixed.device != z0.device:
        raise ValueError(f"fixed is on {fixed.device}, z0 on {z0.device}; move both to one device")
    return fixed.view(-1, z0.shape[1], 1)
