"""Diffusion, ∂z = ℒz: the proposed stage as a process; and DampedFlow, ∂z = −Kz: the original one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nonloc._checks import check_flag, check_takes_one, is_finite, is_number, shown
from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.affinity import zero_masked
from nonloc.ops.bounds import has_negative_entries, is_definite, stable_weight_limit
from nonloc.processes.kernel import PreparedKernel
from nonloc.processes.process import Process

Weight = float | Tensor
FollowingAffinity = Callable[[Tensor], Affinity | SparseAffinity]


class _KernelProcess(Process):
    """A process with a kernel, fixed or following the state, and with W."""

    def __init__(
        self,
        affinity: Affinity | SparseAffinity | FollowingAffinity,
        *,
        weight: Weight = 1.0,
        backwards: bool = False,
    ) -> None:
        self._kernel: PreparedKernel | None = None
        self._follow: FollowingAffinity | None = None
        if callable(affinity):
            _check_follows(affinity)
            self._follow, self.is_linear, self.follows_state = affinity, False, True
        else:
            self._kernel = PreparedKernel(affinity, "affinity")
            self.affinity = self._kernel.affinity
        self.weight = _checked_weight(weight)
        check_flag("backwards", backwards)
        self.backwards = backwards

    def mean_weights(self) -> Tensor | None:
        """π [B, M] of detailed balance, None where the kernel follows the state. Diffusion conserves Σ_i π_i z_i, in
        both directions of time."""
        return None if self._kernel is None else self._kernel.balance

    def energy(self, z: Tensor) -> Tensor:
        """½ Σ_ij K_ij |z_i − z_j|² [B], with the kernel at z."""
        return self._kernel_at(z).energy(z)

    def _kernel_at(self, z: Tensor) -> PreparedKernel:
        if self._kernel is not None:
            return self._kernel
        assert self._follow is not None
        return PreparedKernel(self._follow(z), "affinity(z)", is_fixed=False)

    def __repr__(self) -> str:
        affinity, weight = self.affinity, self.weight
        if affinity is None:
            kernel = "kernel follows the state"
        elif isinstance(affinity, SparseAffinity):
            kernel = f"sparse {affinity.normalize}, M = {affinity.positions}"
        else:
            kernel = f"{affinity.kind} {affinity.normalize}, B = {affinity.batch}, M = {affinity.positions}"
        shown = f"W {list(weight.shape)}" if isinstance(weight, Tensor) else f"W = {weight:g}"
        return f"{type(self).__name__}({kernel}, {shown}{', backwards' if self.backwards else ''})"


class Diffusion(_KernelProcess):
    """Nonlocal diffusion ∂z_i = Σ_j K_ij (z_j − z_i) Wᵀ, and its time reversal.

    affinity   of K; it is prepared once for all steps, so do not change its tensors afterwards. Or a function
               z -> affinity, for a kernel that follows the state: the diffusion is then nonlinear, and only
               stepper="euler" takes it
    weight     W: a number, [C] for a diagonal, or [C, C]
    backwards  True: time runs backwards, anti-diffusion

    The matrix of a fixed gaussian or heat kernel is stored up to 256 MiB (M = 5,792 in float64). `prepare` alone would
    not store it for one product; many products are then several times as fast.

    >>> from nonloc import Affinity, Diffusion
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> Diffusion(Affinity(same, same, "heat")).rate(z).flatten().tolist()
    [0.5, -0.5]
    >>> Diffusion(Affinity(same, same, "heat"), backwards=True).rate(z).flatten().tolist()
    [-0.5, 0.5]
    """

    def rate(self, z: Tensor) -> Tensor:
        """± (ℒz) Wᵀ [B, M, C]."""
        kernel = self._kernel_at(z)
        operator, signal = kernel.at(z)
        # ℒ does not see a constant: without it, rounding is relative to how far z is from its mean, not to z.
        signal = zero_masked(signal - kernel.mean(signal), kernel.affinity.mask)
        change = operator.apply(signal) - operator.sums * signal
        return _times_weight(change, self.weight, -1 if self.backwards else 1).to(z.dtype)

    def inner_weights(self) -> Tensor | None:
        """π where Ω is symmetric and ≥ 0, W is symmetric positive semi-definite and time runs forwards."""
        if self.backwards or self._kernel is None or not _is_positive(self.weight):
            return None
        return None if has_negative_entries(self._kernel.affinity) else self.mean_weights()

    def certified_euler_step(self) -> float | None:
        """h up to which no signal grows, by kernel, normalisation and W (`nonloc.ops.bounds`); None if not known."""
        if self.inner_weights() is None or self._kernel is None:
            return None
        limit = stable_weight_limit(self._kernel.affinity)
        largest = _largest_eigenvalue(self.weight)
        if limit is None or limit.numel() == 0 or largest <= 0:
            return None
        return float(limit.min()) / largest

    def range_euler_step(self) -> float | None:
        """1 / (w max_i Σ_j K_ij) for Ω ≥ 0, symmetric or not, and W a number w ≥ 0 or a diagonal ≥ 0. Every new
        value is then a mean of the values before. None elsewhere, and backwards in time."""
        if self.backwards or self._kernel is None or has_negative_entries(self._kernel.affinity):
            return None
        if (isinstance(self.weight, Tensor) and self.weight.dim() == 2) or not _is_positive(self.weight):
            return None
        fastest = self.fastest_rate()
        return 1 / fastest if fastest > 0 else None

    def fastest_rate(self) -> float:
        """w max_i Σ_j K_ij for a symmetric W ≥ 0 with the largest eigenvalue w; 0 for another, or no fixed kernel."""
        if self._kernel is None or not _is_positive(self.weight):
            return 0.0
        return _largest_eigenvalue(self.weight) * self._kernel.largest_row_sum()


class DampedFlow(_KernelProcess):
    """The original operation as a flow, ∂z_i = −Σ_j K_ij z_j Wᵀ (the paper's ℒ̃), and its time reversal.

    affinity   of K; or a function z -> affinity, for a kernel that follows the state as in the paper: the flow is then
               nonlinear, and only stepper="euler" takes it
    weight     W: a number, [C] for a diagonal, or [C, C]
    backwards  True: time runs backwards, and the signals grow

    The matrix of a fixed kernel is stored as in `Diffusion`.

    >>> from nonloc import Affinity
    >>> from nonloc.processes import DampedFlow
    >>> same, z = torch.zeros(1, 2, 1), torch.tensor([[[0.0], [1.0]]])
    >>> DampedFlow(Affinity(same, same, "heat")).rate(z).flatten().tolist()
    [-0.5, -0.5]
    """

    def rate(self, z: Tensor) -> Tensor:
        """∓ (Kz) Wᵀ [B, M, C]."""
        operator, signal = self._kernel_at(z).at(z)
        return _times_weight(operator.apply(signal), self.weight, 1 if self.backwards else -1).to(z.dtype)

    def inner_weights(self) -> Tensor | None:
        """π where K is positive semi-definite in it by construction, W too, and time runs forwards."""
        if self.backwards or self._kernel is None or not _is_positive(self.weight):
            return None
        return self.mean_weights() if is_definite(self._kernel.affinity) else None


def _check_follows(function: FollowingAffinity) -> None:
    """ValueError for what can be called and never returns an affinity: a class, a stage, a layer of torch."""
    fix = "give an Affinity, or a function z -> affinity such as lambda z: Affinity(z, z, 'heat')"
    kind = function if isinstance(function, type) else type(function)
    if hasattr(function, "affinity"):
        raise ValueError(f"affinity is a {kind.__name__}, a stage; give lambda z: stage.affinity(z)")
    is_layer = isinstance(function, nn.Module) and not any(function.children())
    if function is kind or (is_layer and kind.__module__.startswith("torch.nn.")):
        raise ValueError(f"affinity is {kind.__name__}, which returns no affinity of a state; {fix}")
    check_takes_one("affinity", function, "a state z", fix)


def _checked_weight(weight: Weight) -> Weight:
    if isinstance(weight, Tensor):
        if weight.is_meta or weight.is_complex() or weight.layout != torch.strided:
            raise ValueError(
                f"weight must be real numbers in a dense tensor, got {weight.layout} in {weight.dtype} on "
                f"{weight.device}"
            )
        if weight.dim() == 0:
            return _checked_weight(float(weight))
        if weight.dim() == 1 or (weight.dim() == 2 and weight.shape[0] == weight.shape[1]):
            if not weight.dtype.is_floating_point:
                raise ValueError(f"weight must be floating point, got {weight.dtype}; use weight.double()")
            if not bool(torch.isfinite(weight).all()):
                raise ValueError("weight has values that are not finite; replace them")
            return weight.detach()
        raise ValueError(f"weight must be a number, [C] or [C, C], got {list(weight.shape)}")
    if not is_number(weight):
        raise ValueError(f"weight must be a number, or a tensor [C] or [C, C], got {type(weight).__name__}")
    if not is_finite(weight):
        raise ValueError(f"weight must be finite, got {shown(weight)}")
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


def _largest_eigenvalue(weight: Weight) -> float:
    """The largest eigenvalue of a symmetric W."""
    if not isinstance(weight, Tensor):
        return weight
    return float(weight.max() if weight.dim() == 1 else torch.linalg.eigvalsh(weight.double())[-1])
