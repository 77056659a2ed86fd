"""cfl_limit: the largest stable step z + h ℒz of a kernel, and how it is known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc._checks import check_whole
from nonloc.ops import Affinity, Operator, SparseAffinity, prepare, self_adjoint_weights
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.bounds import has_negative_entries, stable_weight_limit
from nonloc.processes.kernel import check_affinity, check_operator
from nonloc.processes.krylov import lanczos
from nonloc.processes.stability.certificate import EXACT_POSITIONS, split_samples
from nonloc.processes.stability.growth import largest_singular
from nonloc.processes.stability.own_norm import BALANCED, OwnNorm, kernel_size, own_norm, step_matrix

LANCZOS_PRODUCTS = 60
# Relative to the largest eigenvalue: smaller ones count as 0.
NOTHING = 1e-12
LARGEST_CONDITION = 1e8
MAX_NORM = "max_i |z_i|"


@dataclass(frozen=True)
class CFLLimit:
    """The largest h for which z + h ℒz enlarges no signal.

    limit     h; inf where nothing moves; 0 where no step at all is known to be safe
    kind      "exact": to rounding, larger steps do enlarge a signal; "certified": every step up to it is safe, larger
              ones may be
    norm      the norm in which it holds
    reason    how it is known
    estimate  for a certified limit, the one by Lanczos or by the eigenvalues. Lanczos finds λ_max from below, so this
              may be too large: an estimate, never a certificate. None where there is none

    >>> from nonloc import Affinity, cfl_limit
    >>> same = torch.zeros(1, 2, 1, dtype=torch.float64)
    >>> [cfl_limit(Affinity(same, same, "heat"), exact_up_to=most).kind for most in (1024, 0)]
    ['exact', 'certified']
    """

    limit: float
    kind: str
    norm: str
    reason: str
    estimate: float | None = None


def cfl_limit(affinity: Affinity | SparseAffinity, *, exact_up_to: int = EXACT_POSITIONS) -> CFLLimit:
    """The largest h for which a step z + h ℒz enlarges no signal, in the kernel's own norm; see `CFLLimit`.

    exact_up_to  M up to which the eigenvalues are computed; above it the limit is a bound from below, by what the
                 kernel is or by its degrees. The smallest limit of the batch is returned.

    >>> from nonloc import Affinity, cfl_limit
    >>> same = torch.zeros(1, 2, 1, dtype=torch.float64)  # L has the eigenvalues 0 and 1
    >>> round(cfl_limit(Affinity(same, same, "heat")).limit, 6)
    2.0
    """
    check_affinity(affinity)
    check_whole("exact_up_to", exact_up_to, least=0)
    with torch.no_grad():
        limits = [_sample_limit(one, exact_up_to) for one in split_samples(affinity)]
    return min(limits, key=lambda one: one.limit)


def _sample_limit(affinity: Affinity | SparseAffinity, exact_up_to: int) -> CFLLimit:
    """The limit of one sample in float64."""
    if affinity.positions > exact_up_to:
        return _by_bound(affinity)
    matrix = step_matrix(affinity, "diffusive")
    norm = own_norm(affinity, matrix)
    turned = norm.in_coordinates(matrix)
    if not bool(turned.any()):
        return CFLLimit(float("inf"), "exact", norm.text, "nothing moves: ℒ = 0")
    if norm.is_own and torch.equal(turned, turned.T):
        return _by_eigenvalues(turned, norm)
    if norm.is_own:
        return _by_contraction(turned, matrix, norm)
    if bool((matrix - torch.diag(matrix.diagonal()) <= 0).all()):
        return _by_stochastic_step(matrix, _spectral_limit(torch.linalg.eigvals(matrix)))
    return _by_eigenvectors(matrix, norm)


def _by_eigenvalues(turned: Tensor, norm: OwnNorm) -> CFLLimit:
    values = torch.linalg.eigvalsh(turned)
    low, high = float(values[0]), float(values[-1])
    if low < -NOTHING * max(abs(low), high):
        reason = (
            f"the signed kernel gives L the eigenvalue {low:.3g} < 0: every step enlarges its eigenvector"
        )
        return CFLLimit(0.0, "exact", norm.text, reason)
    return CFLLimit(2 / high, "exact", norm.text, f"2 / λ_max(L), with λ_max = {high:.6g}")


def _by_contraction(turned: Tensor, matrix: Tensor, norm: OwnNorm) -> CFLLimit:
    """The largest h with ‖I − hB‖ ≤ 1, that is B + Bᵀ ≥ h BᵀB, where B is not symmetric."""
    values, vectors = torch.linalg.eigh(turned + turned.T)
    # B and Bᵀ have the null space of B + Bᵀ in common: the signals that are constant where positions are joined.
    moving = values > NOTHING * values[-1]
    limit = 1 / largest_singular(turned @ (vectors[:, moving] * values[moving].rsqrt())) ** 2
    identity = torch.eye(len(turned), dtype=turned.dtype, device=turned.device)
    if largest_singular(identity - limit * turned) <= 1 + 1e-11:
        reason = "the largest h with ‖I − hL‖ = 1, since Ω is not symmetric"
        return CFLLimit(limit, "exact", norm.text, reason)
    return _by_stochastic_step(matrix, limit)


def _by_stochastic_step(matrix: Tensor, estimate: float | None) -> CFLLimit:
    largest = float(matrix.diagonal().max())
    reason = f"up to 1 / max_i Σ_j≠i K_ij = 1 / {largest:.6g} the step takes averages"
    return CFLLimit(1 / largest, "certified", MAX_NORM, reason, estimate)


def _by_eigenvectors(matrix: Tensor, norm: OwnNorm) -> CFLLimit:
    """A signed kernel without a norm of its own: I − hL in the coordinates of its eigenvectors."""
    values, vectors = torch.linalg.eig(matrix)
    estimate = _spectral_limit(values)
    condition = float(torch.linalg.cond(vectors))
    if estimate == 0:
        low = float(values.real.min())
        reason = f"L has an eigenvalue with real part {low:.3g} < 0: steps of any size grow when repeated"
        return CFLLimit(0.0, "exact", norm.text, reason)
    if condition < LARGEST_CONDITION:
        reason = f"|1 − hλ| ≤ 1 for all eigenvalues of L, whose eigenvectors have condition {condition:.1e}"
        return CFLLimit(estimate, "exact", "‖V⁻¹z‖, V the eigenvectors of L", reason)
    reason = "L has no well-conditioned eigenvectors, so no norm is known"
    return CFLLimit(0.0, "certified", norm.text, reason, estimate)


def _spectral_limit(values: Tensor) -> float:
    """The largest h with |1 − hλ| ≤ 1 for all λ: min 2 Re λ / |λ|² over λ ≠ 0; inf where all are 0."""
    size = values.abs()
    moving = values[size > NOTHING * size.max()]
    limits = 2 * moving.real / moving.abs().square()
    return max(0.0, float(limits.min())) if len(limits) else float("inf")


def _by_bound(affinity: Affinity | SparseAffinity) -> CFLLimit:
    operator = prepare(affinity, torch.float64).operator
    check_operator(operator, affinity)
    degrees = operator.sums.expand(-1, affinity.positions, 1).squeeze(-1)
    known = stable_weight_limit(affinity)
    balance = self_adjoint_weights(affinity)
    # A norm with π = 0 at a position that moves does not see it.
    own = balance is not None and bool((balance > 0)[degrees != 0].all())
    low, high = _extreme_eigenvalues(operator, balance) if balance is not None else (0.0, 0.0)
    estimate = None if balance is None else 2 / high if high > 0 else float("inf")
    is_signed = low < -1e-8 * max(high, -low) and has_negative_entries(affinity)
    # Entries of K may cancel in L, and leave their rounding.
    if is_signed and low < -NOTHING * kernel_size(affinity):
        reason = f"the signed kernel has a signal with Σ π z Lz = {low:.3g} Σ π |z|²: every step enlarges it"
        return CFLLimit(0.0, "exact", BALANCED, reason)
    if known is None:
        return CFLLimit(0.0, "certified", MAX_NORM, "a signed kernel has no bound by its degrees", estimate)
    if not own:
        # Then only what follows from averages holds, and not what follows from a positive semi-definite Ω.
        largest = float(degrees.max())
        limit = 1 / (largest * (1 + (affinity.positions + 64) * 2.0**-52)) if largest > 0 else float("inf")
        return CFLLimit(limit, "certified", MAX_NORM, "up to 1 / max_i Σ_j K_ij the step takes averages")
    reason = "by kernel and normalisation (nonloc.ops.bounds); the estimate is by Lanczos"
    return CFLLimit(float(known[0]), "certified", BALANCED, reason, estimate)


def _extreme_eigenvalues(operator: Operator, balance: Tensor) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of L, estimated by Lanczos from inside the spectrum."""
    roots = balance.double().sqrt()
    inverse = inverse_or_zero(roots)

    def apply(v: Tensor) -> Tensor:
        z = (inverse * v).unsqueeze(-1)
        return roots * (operator.sums * z - operator.apply(z)).squeeze(-1)

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(roots.shape, dtype=torch.float64, generator=generator).to(roots.device)
    low, high, _ = lanczos(apply, start * (roots > 0), LANCZOS_PRODUCTS)
    return float(low), float(high)
