"""Theorems 2, 3 and 4 and the nonlocal Poincaré inequality, for the exact flow of the discrete operator."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc_paper.theory.case import Case, mean, path
from nonloc_paper.theory.check import Check, conclude
from nonloc_paper.theory.operator import SYMMETRIC, SYMMETRIC_KERNEL

FLOW_ROUNDING = 1e-10  # of an exponential that is computed to rounding, over many steps
CONNECTED = f"{SYMMETRIC}, Ω ≥ 0 and connected"


def mean_is_preserved(case: Case) -> Check:
    """Theorem 2 (i)."""
    return _mean_preserved(
        case, case.plain, "Theorem 2 (i)", "the mean of z(t)", SYMMETRIC_KERNEL, case.has_symmetric_kernel
    )


def weighted_mean_is_preserved(case: Case) -> Check:
    """Theorem 2 (i) with the weights that the kernel has."""
    return _mean_preserved(
        case,
        case.balance,
        "Theorem 2 (i), weighted",
        "the π-weighted mean of z(t)",
        SYMMETRIC,
        case.is_symmetric,
    )


def flow_tends_to_the_mean(case: Case) -> Check:
    """Theorem 2 (ii)."""
    met = case.has_symmetric_kernel and case.is_nonnegative and case.is_connected
    hypothesis = f"{SYMMETRIC_KERNEL}, Ω ≥ 0 and connected"
    return _tends_to(case, case.plain, "Theorem 2 (ii)", "the mean of the start", hypothesis, met)


def flow_tends_to_the_weighted_mean(case: Case) -> Check:
    """Theorem 2 (ii) with the weights that the kernel has."""
    met = case.is_symmetric and case.is_nonnegative and case.is_connected
    name = "Theorem 2 (ii), weighted"
    return _tends_to(case, case.balance, name, "the π-weighted mean of the start", CONNECTED, met)


def variance_decreases(case: Case) -> Check:
    """Theorem 3."""
    met = case.has_symmetric_kernel and case.is_nonnegative
    hypothesis = f"{SYMMETRIC_KERNEL} and Ω ≥ 0"
    return _variance(case, case.plain, "Theorem 3", "the variance", hypothesis, met)


def weighted_variance_decreases(case: Case) -> Check:
    """Theorem 3 with the weights that the kernel has."""
    met = case.is_symmetric and case.is_nonnegative
    return _variance(
        case, case.balance, "Theorem 3, weighted", "the π-weighted variance", f"{SYMMETRIC}, and Ω ≥ 0", met
    )


def poincare_inequality(case: Case) -> Check:
    """The lemma, with its best constant: 1/(2 gap) in the paper's form."""
    weights = case.balance.unsqueeze(1)
    flow = weights * case.kernel
    # The paper's double sum Σ_ij π_i K_ij |z_i − z_j|² as a matrix, from the kernel and not from the operator.
    double = torch.diag(flow.sum(1) + flow.sum(0)) - flow - flow.T
    roots = case.balance.sqrt()
    values = torch.linalg.eigvalsh(double / roots / roots.unsqueeze(1))
    least = float(values[1])
    residual = abs(least / (2 * case.gap) - 1) if case.gap > 0 else float("inf")
    return conclude(
        "Poincaré inequality",
        "Σ_i π_i |z_i|² ≤ C Σ_ij π_i K_ij |z_i − z_j|² for every z of mean 0; C = 1/(2 gap) is the best constant",
        CONNECTED,
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative and case.is_connected,
        residual=residual,
        tolerance=1e-8,
        detail=f"1/C is {least:.6g} at most, and 2 gap = {2 * case.gap:.6g}",
    )


def decay_is_exponential(case: Case) -> Check:
    """Theorem 4, with the measured rate beside the gap."""
    gap = case.gap if case.gap > 0 else 1.0
    missed, measured = _decay(case, case.start, gap)
    slowest = case.rates[1][:, 1].view(1, -1, 1)
    _, attained = _decay(case, slowest, gap)
    residual = max(missed, abs(attained / gap - 1)) if case.gap > 0 else float("inf")
    return conclude(
        "Theorem 4",
        "‖z(t) − z̄‖ ≤ ‖z(0) − z̄‖ e^(−λt) with λ the spectral gap, and for no larger λ",
        CONNECTED,
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative and case.is_connected,
        residual=residual,
        tolerance=1e-6,
        detail=f"gap {case.gap:.6g}; measured late rate {measured:.6g}, from the slowest mode {attained:.6g}",
    )


def _mean_preserved(case: Case, weights: Tensor, name: str, what: str, hypothesis: str, met: bool) -> Check:
    means = mean(weights, case.course[1])
    residual = float((means - means[0]).abs().max() / case.start.abs().max())
    return conclude(
        name,
        f"{what} stays what it is",
        hypothesis,
        case.normalize,
        met=met,
        residual=residual,
        tolerance=FLOW_ROUNDING,
        detail=f"it moves by {residual:.1e} of the largest entry",
    )


def _tends_to(case: Case, weights: Tensor, name: str, what: str, hypothesis: str, met: bool) -> Check:
    residual = float((case.end - mean(weights, case.start)).abs().max() / case.start.abs().max())
    return conclude(
        name,
        f"z(t) tends to {what}",
        hypothesis,
        case.normalize,
        met=met,
        residual=residual,
        tolerance=FLOW_ROUNDING,
        detail=f"at t = 30/gap it is {residual:.1e} away from it, relative to the largest entry",
    )


def _variance(case: Case, weights: Tensor, name: str, what: str, hypothesis: str, met: bool) -> Check:
    """d/dt var(z) = −2 Σ_i w_i (z_i − z̄)·(−ℒz)_i: the largest value over all z, and the path of one."""
    form = weights.unsqueeze(1) * case.laplacian
    form = form - torch.outer(weights, form.sum(0))
    values = torch.linalg.eigvalsh((form + form.T) / 2)
    worst = max(0.0, float(-values[0] / values.abs().max()))
    states = case.course[1]
    centred = states - mean(weights, states).unsqueeze(1)
    variances = case.norm(centred, weights).square()
    rise = max(0.0, float((variances.diff() / variances[0]).max()))
    return conclude(
        name,
        f"{what} of z(t) never increases",
        hypothesis,
        case.normalize,
        met=met,
        residual=max(worst, rise),
        tolerance=FLOW_ROUNDING,
        detail=f"largest d/dt over all z: {worst:.1e} of the largest decrease",
    )


def _decay(case: Case, start: Tensor, gap: float) -> tuple[float, float]:
    """(how far ‖z(t) − z̄‖ rises above the bound, the rate over the later half)."""
    times, states = path(case.forward, start, 12 / gap)
    distances = case.norm(states - mean(case.balance, states[0]))
    bound = distances[0] * torch.exp(-gap * times)
    missed = max(0.0, float((distances / bound).max()) - 1)
    half = len(times) // 2
    rate = float((distances[half] / distances[-1]).log() / (times[-1] - times[half]))
    return missed, rate
