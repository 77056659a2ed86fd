"""Proposition 1, Theorems 2 to 4 and the nonlocal Poincaré inequality, for the discrete operator.

Each has a plain form, whose hypothesis is the paper's symmetric 𝒦, and a form with the weights π of the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc_paper.theory.case import ROUNDING, Case, excess, mean, path, rise, symmetric_part
from nonloc_paper.theory.check import Hypothesis, Statement, Statements

FLOW_ROUNDING = 1e-10  # of an exponential that is computed to rounding, over many steps
_KERNEL = "K symmetric (with a measure: μ_i K_ij = μ_j K_ji)"
_OMEGA = "Ω symmetric; π > 0 of detailed balance, which is 𝒞 for row and 1 for the others"
NONE = Hypothesis("none")
KERNEL = Hypothesis(_KERNEL, ("has_symmetric_kernel",))
KERNEL_NONNEGATIVE = Hypothesis(f"{_KERNEL} and Ω ≥ 0", (*KERNEL.needs, "is_nonnegative"))
JOINED = ("is_connected", "has_gap")
KERNEL_CONNECTED = Hypothesis(
    f"{_KERNEL}, Ω ≥ 0, connected, gap above rounding", (*KERNEL_NONNEGATIVE.needs, *JOINED)
)
SYMMETRIC = Hypothesis(_OMEGA, ("is_symmetric", "has_balance"))
NONNEGATIVE = Hypothesis(f"{_OMEGA}, and Ω ≥ 0", (*SYMMETRIC.needs, "is_nonnegative"))
CONNECTED = Hypothesis(f"{_OMEGA}, Ω ≥ 0, connected, gap above rounding", (*NONNEGATIVE.needs, *JOINED))
ONE_SIDED = Hypothesis(
    "Ω ≥ 0, not symmetric, every position reaches every other", ("has_law", "is_one_sided", "is_connected")
)
TABLE = Statements()


@TABLE.add("Proposition 1 (i)", "ℒz = 0 for a constant z", NONE, ROUNDING)
def constants_do_not_move(case: Case) -> tuple[float, str]:
    residual = float(case.laplacian.sum(1).abs().max() / case.laplacian.abs().max())
    return residual, f"|ℒ1| is {residual:.1e} of the largest entry of ℒ"


@TABLE.add("Proposition 1 (ii)", "Σ_i (ℒz)_i = 0 for every z", KERNEL, ROUNDING)
def mean_of_the_image(case: Case) -> tuple[float, str]:
    residual = _mean_of_image(case, case.plain)
    return residual, f"the plain mean of ℒz reaches {residual:.1e} of ℒz"


@TABLE.add("Proposition 1 (ii), weighted", "Σ_i π_i (ℒz)_i = 0 for every z", SYMMETRIC, ROUNDING)
def weighted_mean_of_the_image(case: Case) -> tuple[float, str]:
    residual = _mean_of_image(case, case.balance)
    return residual, f"the π-weighted mean of ℒz reaches {residual:.1e} of ℒz"


@TABLE.add("Proposition 1 (iii)", "−Σ_i z_i·(ℒz)_i ≥ 0 for every z", KERNEL_NONNEGATIVE, ROUNDING)
def form_is_positive(case: Case) -> tuple[float, str]:
    residual = _negative_part(case.plain.unsqueeze(1) * case.laplacian)
    return residual, f"the least value of the form is −{residual:.1e} of its largest"


@TABLE.add(
    "Proposition 1 (iii), weighted",
    "−Σ_i π_i z_i·(ℒz)_i = ½ Σ_ij π_i K_ij |z_i − z_j|² ≥ 0 for every z",
    NONNEGATIVE,
    ROUNDING,
)
def weighted_form_is_the_energy(case: Case) -> tuple[float, str]:
    form = case.balance.unsqueeze(1) * case.laplacian
    # As a matrix, the energy has −π_i K_ij off the diagonal and rows that sum to 0.
    energy = symmetric_part(-case.balance.unsqueeze(1) * case.kernel)
    energy = energy - torch.diag(energy.sum(1))
    missed = float((symmetric_part(form) - energy).abs().max() / energy.abs().max())
    return max(_negative_part(form), missed), f"form and energy differ by {missed:.1e}"


@TABLE.add("Theorem 2 (i)", "the mean of z(t) stays what it is", KERNEL, FLOW_ROUNDING)
def mean_is_preserved(case: Case) -> tuple[float, str]:
    return _drift(case, case.plain)


@TABLE.add(
    "Theorem 2 (i), weighted", "the π-weighted mean of z(t) stays what it is", SYMMETRIC, FLOW_ROUNDING
)
def weighted_mean_is_preserved(case: Case) -> tuple[float, str]:
    return _drift(case, case.balance)


@TABLE.add("Theorem 2 (ii)", "z(t) tends to the mean of the start", KERNEL_CONNECTED, FLOW_ROUNDING)
def flow_tends_to_the_mean(case: Case) -> tuple[float, str]:
    return _distance_at_the_end(case, case.plain)


@TABLE.add(
    "Theorem 2 (ii), weighted", "z(t) tends to the π-weighted mean of the start", CONNECTED, FLOW_ROUNDING
)
def flow_tends_to_the_weighted_mean(case: Case) -> tuple[float, str]:
    return _distance_at_the_end(case, case.balance)


@TABLE.add("Theorem 3", "the variance of z(t) never increases", KERNEL_NONNEGATIVE, FLOW_ROUNDING)
def variance_decreases(case: Case) -> tuple[float, str]:
    return _variance(case, case.plain)


@TABLE.add(
    "Theorem 3, weighted", "the π-weighted variance of z(t) never increases", NONNEGATIVE, FLOW_ROUNDING
)
def weighted_variance_decreases(case: Case) -> tuple[float, str]:
    return _variance(case, case.balance)


@TABLE.add(
    "Poincaré inequality",
    "Σ_i π_i |z_i|² ≤ C Σ_ij π_i K_ij |z_i − z_j|² for every z of mean 0; C = 1/(2 gap) is the best constant",
    CONNECTED,
    1e-8,
)
def poincare_inequality(case: Case) -> tuple[float, str]:
    flow = case.balance.unsqueeze(1) * case.kernel
    # The paper's double sum as a matrix, from the kernel and not from the operator.
    double = torch.diag(flow.sum(1) + flow.sum(0)) - flow - flow.T
    roots = case.balance.sqrt()
    least = float(torch.linalg.eigvalsh(double / roots / roots.unsqueeze(1))[1])
    residual = abs(least / (2 * case.gap) - 1) if case.gap > 0 else float("inf")
    return residual, f"1/C is {least:.6g} at most, and 2 gap = {2 * case.gap:.6g}"


@TABLE.add(
    "Theorem 4",
    "‖z(t) − z̄‖ ≤ ‖z(0) − z̄‖ e^(−λt) with λ the spectral gap, and for no larger λ",
    CONNECTED,
    1e-6,
)
def decay_is_exponential(case: Case) -> tuple[float, str]:
    missed, measured = _decay(case, case.start)
    _, attained = _decay(case, case.rates[1][:, 1].view(1, -1, 1))
    residual = max(missed, abs(attained / case.scale - 1)) if case.gap > 0 else float("inf")
    return (
        residual,
        f"gap {case.gap:.6g}; measured late rate {measured:.6g}, from the slowest mode {attained:.6g}",
    )


def _stationary_mean(case: Case) -> tuple[float, str]:
    residual = float("nan") if case.law is None else _mean_of_image(case, case.law)
    plain = _mean_of_image(case, case.plain)
    return residual, f"under π {residual:.1e} of ℒz, the plain mean reaches {plain:.1e}"


# What is left of Proposition 1 (ii) for separate embeddings. It is asked of a kernel that is not symmetric.
stationary_mean_of_the_image = Statement(
    "Separate embeddings",
    "Σ_i π_i (ℒz)_i = 0 for every z, π the stationary law of the jumps i → j",
    ONE_SIDED,
    ROUNDING,
    _stationary_mean,
)


def _mean_of_image(case: Case, weights: Tensor) -> float:
    """Return the largest |Σ_i w_i (ℒz)_i| / Σ_i w_i |(ℒz)_i| over unit signals, which decide for every z."""
    image = weights.unsqueeze(1) * case.laplacian
    return float((image.sum(0).abs() / image.abs().sum(0)).max())


def _negative_part(form: Tensor) -> float:
    """Return how far the least eigenvalue of a quadratic form is below 0, relative to the largest."""
    values = torch.linalg.eigvalsh(symmetric_part(form))
    return max(0.0, float(-values[0] / values.abs().max()))


def _drift(case: Case, weights: Tensor) -> tuple[float, str]:
    means = mean(weights, case.course[1])
    residual = float((means - means[0]).abs().max() / case.start.abs().max())
    return residual, f"it moves by {residual:.1e} of the largest entry"


def _distance_at_the_end(case: Case, weights: Tensor) -> tuple[float, str]:
    residual = float((case.end - mean(weights, case.start)).abs().max() / case.start.abs().max())
    return residual, f"at t = 30/gap it is {residual:.1e} away from it, relative to the largest entry"


def _variance(case: Case, weights: Tensor) -> tuple[float, str]:
    """d/dt var(z) = −2 Σ_i w_i (z_i − z̄)·(−ℒz)_i: the largest value over all z, and the path of one."""
    form = weights.unsqueeze(1) * case.laplacian
    worst = _negative_part(form - torch.outer(weights, form.sum(0)))
    states = case.course[1]
    variances = case.norm(states - mean(weights, states).unsqueeze(1), weights).square()
    return max(worst, rise(variances)), f"largest d/dt over all z: {worst:.1e} of the largest decrease"


def _decay(case: Case, start: Tensor) -> tuple[float, float]:
    """Return (how far ‖z(t) − z̄‖ rises above the bound, the rate over the later half)."""
    times, states = path(case.forward, start, 12 / case.scale)
    distances = case.norm(states - mean(case.balance, states[0]))
    half = len(times) // 2
    rate = float((distances[half] / distances[-1]).log() / (times[-1] - times[half]))
    return excess(distances, distances[0] * torch.exp(-case.scale * times)), rate
