"""The norm ‖z‖² = Σ_i π_i |z_i|² in which a kernel is judged, and the matrix of its step. For small M.

π is the law of detailed balance for a symmetric Ω, and the stationary law of the jumps for another Ω ≥ 0. A signed
kernel, or one with positions that are left for ever, has no such π > 0. It is judged in the plain norm, which is not
its own. So are several kernels without a π in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nonloc.ops import Affinity, SparseAffinity, kernel_matrix, row_sums, self_adjoint_weights
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.bounds import has_negative_entries
from nonloc.processes.jump.stationary import stationary_weights
from nonloc.processes.kernel import check_overflow

# Of √π A √π⁻¹, relative to its largest entry: a smaller asymmetry is rounding.
ASYMMETRY = 1e-12
STATIONARY = "‖z‖² = Σ_i π_i |z_i|², π the stationary law of the kernel"
BALANCED = "‖z‖² = Σ_i π_i |z_i|², π of detailed balance"


@dataclass(frozen=True, eq=False)
class OwnNorm:
    """π > 0 [M], and the norm in words.

    is_own  False: the plain norm, because there is no other
    """

    weights: Tensor
    text: str
    is_own: bool = True

    @property
    def roots(self) -> Tensor:
        """√π [M]."""
        return self.weights.sqrt()

    def in_coordinates(self, matrix: Tensor) -> Tensor:
        """√π A √π⁻¹ [M, M]: its plain norm is that of A here. Made symmetric where it is but for rounding."""
        turned = self.roots.unsqueeze(1) * matrix / self.roots
        if float((turned - turned.T).abs().max()) <= ASYMMETRY * float(turned.abs().max()):
            turned = (turned + turned.T) / 2
        return turned


def step_matrix(affinity: Affinity | SparseAffinity, form: str) -> Tensor:
    """A [M, M] of the step z − A z Wᵀ, in float64: L = diag(K1) − K of the diffusive form, −K of the original one.

    affinity  of one sample, in float64
    """
    kernel = kernel_matrix(affinity)[0].double()
    check_overflow(kernel, affinity)
    if form == "original":
        return -kernel
    # Without the diagonal, which cancels: what is left has row sums 0 to the last digit.
    kernel.diagonal().zero_()
    return torch.diag(kernel.sum(1)) - kernel


def kernel_size(affinity: Affinity | SparseAffinity) -> float:
    """At least 2 max_i Σ_j |K_ij|, the diagonal included: diffusion adds K_ii z_i and takes it away again, and rounds
    both. In memory linear in M."""
    if not has_negative_entries(affinity):
        return 2 * float(row_sums(affinity).max())
    raw = replace(affinity, normalize="none")
    if isinstance(raw, SparseAffinity):
        sizes = row_sums(replace(raw, matrix=raw.matrix.abs()))
    else:
        # |l·r| ≤ |l| |r|
        left, right = (side.norm(dim=-1, keepdim=True) for side in (raw.left, raw.right))
        sizes = row_sums(replace(raw, left=left, right=right, scale=abs(raw.scale)))
    if affinity.normalize == "row":
        sizes = sizes * inverse_or_zero(row_sums(raw)).abs()
    elif affinity.normalize == "count":
        ones = torch.ones(1, affinity.positions, 1, dtype=torch.float64, device=sizes.device)
        every = Affinity(ones, ones, "dot", "none", mask=affinity.mask, measure=affinity.measure)
        sizes = sizes / row_sums(every).amax()
    return 2 * float(sizes.max())


def own_norm(affinity: Affinity | SparseAffinity, matrix: Tensor | None = None) -> OwnNorm:
    """The norm of one sample's kernel; positions that neither give nor receive weigh 1.

    matrix  its `step_matrix` of either form, where that is known: both are −K but for the diagonal
    """
    rates = -(step_matrix(affinity, "original") if matrix is None else matrix)
    rates.diagonal().zero_()
    moves = (rates != 0).any(0) | (rates != 0).any(1)
    balance = self_adjoint_weights(affinity)
    if balance is not None and bool((balance[0].isfinite() & (balance[0] > 0))[moves].all()):
        norm = OwnNorm(torch.where(moves, balance[0].double(), 1), _balance_text(affinity))
        turned = norm.in_coordinates(rates)
        if torch.equal(turned, turned.T):
            return norm
    if bool((rates >= 0).all()):
        law = stationary_weights(rates)
        if law is not None:
            return OwnNorm(torch.where(moves, law, 1), STATIONARY)
    return plain_norm(len(rates), rates.device)


def plain_norm(positions: int, device: torch.device, *, of_several: bool = False) -> OwnNorm:
    """For a kernel without a norm of its own, and for several kernels without one in common."""
    want = "that the kernels have in common" if of_several else "of the kernel's own"
    weights = torch.ones(positions, dtype=torch.float64, device=device)
    return OwnNorm(weights, f"‖z‖² = Σ_i |z_i|², for want of a norm {want}", False)


def _balance_text(affinity: Affinity | SparseAffinity) -> str:
    measured = affinity.measure is not None
    if affinity.normalize == "row":
        return f"‖z‖² = Σ_i π_i |z_i|², π = {'μ ' if measured else ''}𝒞"
    return f"‖z‖² = Σ_i {'μ_i ' if measured else ''}|z_i|²"
