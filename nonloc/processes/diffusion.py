"""Diffusion, ∂z = ℒz: the proposed stage as a process; and DampedFlow, ∂z = −Kz: the original one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nonloc.ops import Affinity, Operator, SparseAffinity, prepare, self_adjoint_weights
from nonloc.ops.bounds import is_definite
from nonloc.ops.functional import compute_dtype
from nonloc.ops.inner import has_negative_entries
from nonloc.ops.operator import energy
from nonloc.processes.kernel_checks import check_affinity, check_numbers, check_operator
from nonloc.processes.process import Process

Weight = float | Tensor
FollowingAffinity = Callable[[Tensor], Affinity | SparseAffinity]


class Diffusion(Process):
    """Nonlocal diffusion ∂z_i = Σ_j K_ij (z_j − z_i) Wᵀ, and its time reversal.

    affinity   what K is; one made ready for all steps, so its tensors must not be changed afterwards
    weight     W: a number, [C] for a diagonal, or [C, C]
    backwards  True: the sign is turned, anti-diffusion
    """

    def __init__(
        self, affinity: Affinity | SparseAffinity, *, weight: Weight = 1.0, backwards: bool = False
    ) -> None:
        self._kernel = _ReadyKernel(affinity, "affinity")
        self.affinity = self._kernel.affinity
        self.weight = _checked_weight(weight)
        self.backwards = backwards

    def rate(self, z: Tensor) -> Tensor:
        """± (ℒz) Wᵀ [B, M, C]."""
        operator, signal = self._kernel.at(z)
        # ℒ does not see a constant: without it, rounding is relative to how far z is from its mean, not to z.
        signal = self._kernel.zero_masked(signal - self._kernel.mean(signal))
        change = operator.apply(signal) - operator.sums * signal
        return _times_weight(change, self.weight, -1 if self.backwards else 1).to(z.dtype)

    def inner_weights(self) -> Tensor | None:
        """π where Ω is symmetric and ≥ 0, W symmetric positive semi-definite and time runs forwards."""
        if self.backwards or not _is_positive(self.weight) or has_negative_entries(self._kernel.affinity):
            return None
        return self.mean_weights()

    def mean_weights(self) -> Tensor | None:
        """π [B, M] of detailed balance: Σ_i π_i z_i is conserved, in both directions of time."""
        return self._kernel.balance()

    def energy(self, z: Tensor) -> Tensor:
        """½ Σ_ij K_ij |z_i − z_j|² [B]."""
        operator, signal = self._kernel.at(z)
        return energy(operator, signal).to(z.dtype)

    def __repr__(self) -> str:
        return _describe("Diffusion", self._kernel.affinity, self.weight, self.backwards)


class DampedFlow(Process):
    """The original operation as a flow, ∂z_i = −Σ_j K_ij z_j Wᵀ (the paper's ℒ̃), and its time reversal.

    affinity   what K is; or a function z -> affinity, for a kernel that follows the state as in the paper: the flow
               is then nonlinear, and only stepper="euler" takes it
    weight     W: a number, [C] for a diagonal, or [C, C]
    backwards  True: the sign is turned, and the signals grow
    """

    def __init__(
        self,
        affinity: Affinity | SparseAffinity | FollowingAffinity,
        *,
        weight: Weight = 1.0,
        backwards: bool = False,
    ) -> None:
        self._kernel: _ReadyKernel | None = None
        self._follow: FollowingAffinity | None = None
        if callable(affinity):
            self._follow, self.is_linear = affinity, False
        else:
            self._kernel = _ReadyKernel(affinity, "affinity")
            self.affinity = self._kernel.affinity
        self.weight = _checked_weight(weight)
        self.backwards = backwards

    def rate(self, z: Tensor) -> Tensor:
        """∓ (Kz) Wᵀ [B, M, C]."""
        operator, signal = self._kernel_at(z).at(z)
        return _times_weight(operator.apply(signal), self.weight, 1 if self.backwards else -1).to(z.dtype)

    def inner_weights(self) -> Tensor | None:
        """π where K is positive semi-definite in it by construction, W too, and time runs forwards."""
        if self.backwards or self._kernel is None or not _is_positive(self.weight):
            return None
        return self.mean_weights() if is_definite(self._kernel.affinity) else None

    def mean_weights(self) -> Tensor | None:
        """π [B, M] of detailed balance, None where the kernel follows the state."""
        return None if self._kernel is None else self._kernel.balance()

    def energy(self, z: Tensor) -> Tensor:
        """½ Σ_ij K_ij |z_i − z_j|² [B], with the kernel at z."""
        operator, signal = self._kernel_at(z).at(z)
        return energy(operator, signal).to(z.dtype)

    def _kernel_at(self, z: Tensor) -> _ReadyKernel:
        if self._kernel is not None:
            return self._kernel
        assert self._follow is not None
        return _ReadyKernel(self._follow(z), "affinity(z)", is_fixed=False)

    def __repr__(self) -> str:
        affinity = None if self._kernel is None else self._kernel.affinity
        return _describe("DampedFlow", affinity, self.weight, self.backwards)


class _ReadyKernel:
    """An affinity made ready once for each dtype that asks: a simulation pays for its normalisation one time.

    is_fixed  False: the kernel follows a state, and numbers that are not finite are how a simulation ends
    """

    def __init__(self, affinity: Affinity | SparseAffinity, name: str, is_fixed: bool = True) -> None:
        check_affinity(affinity, name)
        if is_fixed:
            check_numbers(affinity, name)
        self.affinity = _without_gradient(affinity)
        self._is_fixed = is_fixed
        self._ready: dict[torch.dtype, Operator] = {}
        self._balance: list[Tensor | None] = []

    def at(self, z: Tensor) -> tuple[Operator, Tensor]:
        """The operator for z's precision, and z in it with zeros where nothing is valid."""
        self._check(z)
        dtype = compute_dtype(self.affinity, z)
        if dtype not in self._ready:
            with torch.no_grad():
                operator = prepare(self.affinity, dtype)
                if self._is_fixed:
                    check_operator(operator, self.affinity)
            self._ready[dtype] = operator
        return self._ready[dtype], self.zero_masked(z).to(dtype)

    def zero_masked(self, z: Tensor) -> Tensor:
        mask = self.affinity.mask
        return z if mask is None else torch.where(mask.unsqueeze(-1), z, 0)

    def mean(self, signal: Tensor) -> Tensor:
        """The mean [B, 1, C] over the valid positions of a signal that is 0 at the others."""
        if self.affinity.mask is None:
            return signal.mean(1, keepdim=True)
        counts = self.affinity.mask.sum(1).clamp_min(1).view(-1, 1, 1)
        return signal.sum(1, keepdim=True) / counts

    def balance(self) -> Tensor | None:
        if not self._balance:
            self._balance.append(self_adjoint_weights(self.affinity))
        return self._balance[0]

    def _check(self, z: Tensor) -> None:
        one = self.affinity
        batch = one.batch if isinstance(one, Affinity) else z.shape[0]
        if z.dim() != 3 or (z.shape[0], z.shape[1]) != (batch, one.positions):
            wanted = f"[{one.batch if isinstance(one, Affinity) else 'B'}, {one.positions}, C]"
            raise ValueError(f"z must be {wanted} like the affinity, got {list(z.shape)}")
        device = one.left.device if isinstance(one, Affinity) else one.matrix.device
        if z.device != device:
            raise ValueError(f"z is on {z.device}, the affinity on {device}; move both to one device")


def _without_gradient(affinity: Affinity | SparseAffinity) -> Affinity | SparseAffinity:
    """The affinity itself, or one that shares its numbers and leaves their graph behind."""
    if isinstance(affinity, SparseAffinity):
        return (
            replace(affinity, matrix=affinity.matrix.detach()) if affinity.matrix.requires_grad else affinity
        )
    if not (affinity.left.requires_grad or affinity.right.requires_grad):
        return affinity
    left = affinity.left.detach()
    right = left if affinity.right is affinity.left else affinity.right.detach()
    return replace(affinity, left=left, right=right)


def _checked_weight(weight: Weight) -> Weight:
    if isinstance(weight, Tensor):
        if weight.dim() == 0:
            return _checked_weight(float(weight))
        if weight.dim() == 1 or (weight.dim() == 2 and weight.shape[0] == weight.shape[1]):
            if not weight.dtype.is_floating_point:
                raise ValueError(f"weight must be floating point, got {weight.dtype}; use weight.double()")
            if not bool(torch.isfinite(weight).all()):
                raise ValueError("weight has values that are not finite; replace them")
            return weight.detach()
        raise ValueError(f"weight must be a number, [C] or [C, C], got {list(weight.shape)}")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise ValueError(f"weight must be a number, or a tensor [C] or [C, C], got {type(weight).__name__}")
    if not math.isfinite(weight):
        raise ValueError(f"weight must be finite, got {weight}")
    return float(weight)


def _times_weight(change: Tensor, weight: Weight, sign: int) -> Tensor:
    """± change Wᵀ."""
    if not isinstance(weight, Tensor):
        factor = sign * weight
        return change if factor == 1 else factor * change
    if weight.shape[0] != change.shape[-1]:
        raise ValueError(
            f"weight {list(weight.shape)} does not fit z with C = {change.shape[-1]} channels; "
            f"it must be a number, [{change.shape[-1]}] or [{change.shape[-1]}, {change.shape[-1]}]"
        )
    weight = sign * weight.to(change)
    return change * weight if weight.dim() == 1 else change @ weight.mT


def _is_positive(weight: Weight) -> bool:
    """Whether W is symmetric and positive semi-definite."""
    if not isinstance(weight, Tensor):
        return weight >= 0
    if weight.dim() == 1:
        return bool((weight >= 0).all())
    if not torch.equal(weight, weight.mT):
        return False
    values = torch.linalg.eigvalsh(weight.double())
    return bool(values[0] >= -1e-14 * values.abs().amax())


def _describe(name: str, affinity: Affinity | SparseAffinity | None, weight: Weight, backwards: bool) -> str:
    if affinity is None:
        kernel = "kernel follows the state"
    elif isinstance(affinity, SparseAffinity):
        kernel = f"sparse {affinity.normalize}, M = {affinity.positions}"
    else:
        kernel = f"{affinity.kind} {affinity.normalize}, B = {affinity.batch}, M = {affinity.positions}"
    shown = f"W {list(weight.shape)}" if isinstance(weight, Tensor) else f"W = {weight:g}"
    return f"{name}({kernel}, {shown}{', backwards' if backwards else ''})"
