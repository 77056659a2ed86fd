"""Proposition 1 for the discrete operator, in the plain and in the weighted mean, and the assumption of Section 4.1."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.processes.jump.stationary import stationary_weights
from nonloc_paper.theory.case import ROUNDING, Case
from nonloc_paper.theory.check import Check, conclude

SYMMETRIC_KERNEL = "K symmetric (with a measure: μ_i K_ij = μ_j K_ji)"
SYMMETRIC = "Ω symmetric; π of detailed balance, which is 𝒞 for row and 1 for the others"


def constants_do_not_move(case: Case) -> Check:
    """Proposition 1 (i)."""
    residual = float(case.laplacian.sum(1).abs().max() / case.laplacian.abs().max())
    return conclude(
        "Proposition 1 (i)",
        "ℒz = 0 for a constant z",
        "none",
        case.normalize,
        met=True,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"|ℒ1| is {residual:.1e} of the largest entry of ℒ",
    )


def mean_of_the_image(case: Case) -> Check:
    """Proposition 1 (ii)."""
    residual = _mean_residual(case, case.plain)
    return conclude(
        "Proposition 1 (ii)",
        "Σ_i (ℒz)_i = 0 for every z",
        SYMMETRIC_KERNEL,
        case.normalize,
        met=case.has_symmetric_kernel,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"the plain mean of ℒz reaches {residual:.1e} of ℒz",
    )


def weighted_mean_of_the_image(case: Case) -> Check:
    """Proposition 1 (ii) with the weights that the kernel has."""
    residual = _mean_residual(case, case.balance)
    return conclude(
        "Proposition 1 (ii), weighted",
        "Σ_i π_i (ℒz)_i = 0 for every z",
        SYMMETRIC,
        case.normalize,
        met=case.is_symmetric,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"the π-weighted mean of ℒz reaches {residual:.1e} of ℒz",
    )


def form_is_positive(case: Case) -> Check:
    """Proposition 1 (iii)."""
    residual = _negative_part(case, case.plain)
    return conclude(
        "Proposition 1 (iii)",
        "−Σ_i z_i·(ℒz)_i ≥ 0 for every z",
        f"{SYMMETRIC_KERNEL} and Ω ≥ 0",
        case.normalize,
        met=case.has_symmetric_kernel and case.is_nonnegative,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"the least value of the form is −{residual:.1e} of its largest",
    )


def weighted_form_is_the_energy(case: Case) -> Check:
    """Proposition 1 (iii) and its proof: the form is ½ Σ_ij π_i K_ij |z_i − z_j|²."""
    weights = case.balance.unsqueeze(1)
    form = weights * case.laplacian
    # As a matrix, the energy has −π_i K_ij beside the diagonal and rows that sum to 0.
    energy = -weights * case.kernel
    energy = (energy + energy.T) / 2
    energy = energy - torch.diag(energy.sum(1))
    missed = float(((form + form.T) / 2 - energy).abs().max() / energy.abs().max())
    residual = max(_negative_part(case, case.balance), missed)
    return conclude(
        "Proposition 1 (iii), weighted",
        "−Σ_i π_i z_i·(ℒz)_i = ½ Σ_ij π_i K_ij |z_i − z_j|² ≥ 0 for every z",
        f"{SYMMETRIC}, and Ω ≥ 0",
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"form and energy differ by {missed:.1e}",
    )


def stationary_mean_of_the_image(case: Case) -> Check:
    """What is left of Proposition 1 (ii) for separate embeddings; to be asked of a kernel that is not symmetric."""
    rates = case.kernel.clone()
    rates.diagonal().zero_()
    law = stationary_weights(rates) if bool((rates >= 0).all()) else None
    residual = float("nan") if law is None else _mean_residual(case, law / law.sum())
    plain = _mean_residual(case, case.plain)
    return conclude(
        "Separate embeddings",
        "Σ_i π_i (ℒz)_i = 0 for every z, π the stationary law of the jumps i → j",
        "Ω ≥ 0, not symmetric, every position reaches every other",
        case.normalize,
        met=law is not None and not case.is_symmetric and case.is_connected,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"under π {residual:.1e} of ℒz, the plain mean reaches {plain:.1e}",
    )


def symmetric_with_rows_of_one(case: Case) -> Check:
    """Section 4.1 assumes both at once, "without loss of generality": only sinkhorn has both."""
    flow = case.measure.unsqueeze(1) * case.kernel
    skew = float((flow - flow.T).abs().max() / flow.abs().max())
    rows = float((case.kernel.sum(1) - 1).abs().max())
    return conclude(
        "Section 4.1, symmetric and stochastic",
        "K is symmetric and its rows sum to 1, both at once",
        "Ω symmetric and ≥ 0",
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=max(skew, rows),
        tolerance=ROUNDING,
        detail=f"K is off symmetry by {skew:.1e}, its rows off 1 by {rows:.1e}; sinkhorn has both",
        expected="holds" if case.normalize == "sinkhorn" else "fails",
    )


def _mean_residual(case: Case, weights: Tensor) -> float:
    """The largest |Σ_i w_i (ℒz)_i| / Σ_i w_i |(ℒz)_i| over unit signals, which decide for every z."""
    image = weights.unsqueeze(1) * case.laplacian
    return float((image.sum(0).abs() / image.abs().sum(0)).max())


def _negative_part(case: Case, weights: Tensor) -> float:
    """How far the least eigenvalue of the form Σ_i w_i z_i·(−ℒz)_i is below 0, relative to the largest."""
    form = weights.unsqueeze(1) * case.laplacian
    values = torch.linalg.eigvalsh((form + form.T) / 2)
    return max(0.0, float(-values[0] / values.abs().max()))
