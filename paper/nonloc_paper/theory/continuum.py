"""The statements about the integral operator on [0, 1], on kernels whose answers are known: ρ = 1 + xy and ρ = xy.

ρ = 1 + xy has the degree d(x) = 1 + x/2, and ℒ(x²) = 1/3 + x/4 − x² − x³/2. Gauss–Legendre points integrate all of
that exactly, so what is left is rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops import kernel_matrix
from nonloc.processes.continuum.continuum import Continuum, cell_kernel, hilbert_schmidt_norm
from nonloc.processes.continuum.local import reversal_growth
from nonloc.processes.continuum.quadrature import quadrature
from nonloc_paper.theory.case import ROUNDING, excess, is_nothing, path, rise, symmetric_part
from nonloc_paper.theory.check import Check, decide
from nonloc_paper.theory.theorems import FLOW_ROUNDING

ENERGY = 79 / 720  # −∫ z ℒz for ρ = 1 + xy and z = x²
NORM = (29 / 18) ** 0.5  # (∬ (1 + xy)²)^½
MESHES = (16, 64, 256)
SYMMETRIC = "ρ symmetric"
NOT_NEGATIVE = "ρ symmetric and ≥ 0"
BELOW = "ρ symmetric, ≥ 0, with degrees ∫ ρ(x, y) dy bounded below"

Features = Callable[[Tensor], Tensor]


def bounded_below(points: Tensor) -> Tensor:
    """u(x) = (1, x), so that u(x)·u(y) = 1 + xy."""
    return torch.cat([torch.ones_like(points), points], -1)


def touching_zero(points: Tensor) -> Tensor:
    """u(x) = x, so that u(x)·u(y) = xy, whose degree x/2 has no lower bound."""
    return points


def continuum_checks() -> list[Check]:
    """Return the checks of all statements about the integral operator, in the order of the paper."""
    smooth = Continuum("dot", 24, rule="gauss", features=bounded_below)
    return [
        *operator_statements(smooth),
        *flow_statements(smooth),
        *poincare_statements(),
        *hilbert_schmidt_statements(),
        *reversal_statements(),
        *cell_statements(),
    ]


def operator_statements(continuum: Continuum) -> list[Check]:
    """Proposition 1 for z = x²."""
    z = continuum.sample(lambda x: x.square())
    image, integral = continuum.apply(z), continuum.quadrature.integral
    constant = float(continuum.apply(torch.ones_like(z)).abs().max())
    total = float(integral(image)[0].abs().max() / integral(image.abs())[0].max())
    energy = -float(integral(z * image))
    symmetric, positive = _signs(continuum)
    claim = "−∫ z ℒz dx ≥ 0; for ρ = 1 + xy and z = x² it is 79/720"
    detail = f"{energy:.12g}, and 79/720 = {ENERGY:.12g}"
    missed = abs(energy / ENERGY - 1)
    return [
        _check("Proposition 1 (i)", "ℒz = 0 for a constant z", "none", True, constant, ROUNDING),
        _check("Proposition 1 (ii)", "∫ ℒz dx = 0", SYMMETRIC, symmetric, total, ROUNDING),
        _check("Proposition 1 (iii)", claim, NOT_NEGATIVE, symmetric and positive, missed, ROUNDING, detail),
    ]


def flow_statements(continuum: Continuum) -> list[Check]:
    """Theorems 2, 3 and 4 from z(0) = x², whose mean is 1/3."""
    start = continuum.sample(lambda x: x.square())
    weights, gap = continuum.weights.unsqueeze(-1), _rates(continuum)[1]
    times, states = path(continuum.diffusion(), start, 30 / gap if gap > 1e-6 else 30.0, saved=60)
    drift = float(((weights * states).sum(1) - 1 / 3).abs().max())
    distances = (weights * (states - 1 / 3).square()).sum((1, 2)).sqrt()
    # Below this the distance is rounding.
    is_clear = distances > 1e-11 * distances[0]
    late = excess(distances[is_clear], distances[0] * torch.exp(-gap * times[is_clear]))
    symmetric, positive = _signs(continuum)
    met, left = symmetric and positive, float((states[-1] - 1 / 3).abs().max())
    variance, rate = (
        "the variance of z(t) never increases",
        "‖z(t) − z̄‖ ≤ ‖z(0) − z̄‖ e^(−λt), λ the spectral gap",
    )
    return [
        _check("Theorem 2 (i)", "∫ z(t) dx stays what it is", SYMMETRIC, symmetric, drift, FLOW_ROUNDING),
        _check("Theorem 2 (ii)", "z(t) tends to its mean", NOT_NEGATIVE, met, left, FLOW_ROUNDING),
        _check("Theorem 3", variance, NOT_NEGATIVE, met, rise(distances.square()), FLOW_ROUNDING),
        _check("Theorem 4", rate, BELOW, met and gap > 0, late, 1e-6, f"gap {gap:.6g}"),
    ]


def poincare_statements(below: Features = bounded_below, touching: Features = touching_zero) -> list[Check]:
    """The lemma with the hypothesis that its proof needs, and as stated, for ρ = xy."""
    claim = "∫ z² ≤ C ∬ ρ (z(y) − z(x))² for every z of mean 0"
    statement = f"there is a C with {claim}: 1/(2 gap) stays bounded on finer meshes"
    checks = []
    for features, name, hypothesis, expected in (
        (below, "Poincaré inequality", BELOW, "holds"),
        (touching, "Poincaré inequality as stated", "ρ symmetric, > 0 but for x = 0 or y = 0", "fails"),
    ):
        meshes = [Continuum("dot", cells, features=features) for cells in MESHES]
        gaps, met = [_rates(mesh)[1] for mesh in meshes], all(all(_signs(mesh)) for mesh in meshes)
        detail = "gaps " + ", ".join(f"{gap:.4g}" for gap in gaps) + f" on {MESHES} cells"
        checks.append(_check(name, statement, hypothesis, met, 1 - gaps[-1] / gaps[0], 0.5, detail, expected))
    return checks


def hilbert_schmidt_statements(features: Features = bounded_below) -> list[Check]:
    """Only the integral part of ℒ has a finite norm; it is the boundedness of ℒ that makes the reversal stable."""
    meshes = [Continuum("dot", cells, rule="gauss", features=features) for cells in MESHES]
    integral = [hilbert_schmidt_norm(mesh) for mesh in meshes]
    other = [hilbert_schmidt_norm(mesh, "multiplication") for mesh in meshes]
    bound = [_rates(mesh)[-1] for mesh in meshes]
    finite, symmetric = all(map(math.isfinite, integral)), all(_signs(mesh)[0] for mesh in meshes)
    norms = ", ".join(f"{norm:.4g}" for norm in other)
    return [
        _check(
            "Section 4.2, Hilbert–Schmidt",
            "z ↦ ∫ ρ(x, y) z(y) dy is a Hilbert–Schmidt operator, with the norm (∬ ρ²)^½ = (29/18)^½",
            "∬ ρ² < ∞",
            finite,
            max(abs(norm / NORM - 1) for norm in integral),
            ROUNDING,
            f"{integral[-1]:.9g}",
        ),
        _check(
            "Section 4.2, Hilbert–Schmidt as stated",
            "ℒ itself is a Hilbert–Schmidt operator: its norm stays bounded on finer meshes",
            "∬ ρ² < ∞",
            finite,
            1 - other[0] / other[-1],
            0.5,
            f"z ↦ d(x) z has the norms {norms} on {MESHES} points, like √M",
            "fails",
        ),
        _check(
            "Section 4.2, bounded",
            "ℒ is a bounded operator, so that its flow can be reversed: λ_max(−ℒ) stays bounded on finer meshes",
            "ρ symmetric and bounded",
            symmetric,
            bound[-1] / bound[0] - 1,
            0.5,
            "λ_max " + ", ".join(f"{value:.5g}" for value in bound),
        ),
    ]


def reversal_statements(cells: tuple[int, int] = (16, 64)) -> list[Check]:
    """Section 4.2: the reversed heat equation is ill-posed, the reversed nonlocal equation is not."""
    coarse, fine = (reversal_growth(count, kernel="heat") for count in cells)
    nonlocal_rise = fine.nonlocal_rate / coarse.nonlocal_rate - 1
    local_rise = fine.local_rate / coarse.local_rate
    return [
        _check(
            "Section 4.2, anti-diffusion",
            "the reversed nonlocal equation grows at a rate that finer meshes do not raise, the reversed heat equation "
            "at one like 1/h²",
            NOT_NEGATIVE,
            True,
            max(abs(nonlocal_rise), abs(local_rise / (cells[1] / cells[0]) ** 2 - 1)),
            0.05,
            f"nonlocal {coarse.nonlocal_rate:.5g} → {fine.nonlocal_rate:.5g}, local {coarse.local_rate:.4g} → "
            f"{fine.local_rate:.4g} from {cells[0]} to {cells[1]} cells",
        )
    ]


def cell_statements(density: Callable[[Tensor, Tensor], Tensor] | None = None) -> list[Check]:
    """Section 4.3: 𝒦_ij as the average of p(x_i, ·) over cell j, for p(x, y) = (1 + xy) / (1 + x/2)."""
    density = density or (lambda x, y: ((1 + x * y) / (1 + x / 2)).squeeze(-1))
    average, probability = cell_kernel(density, 16, form="average"), cell_kernel(density, 16)
    rows = float((probability.sum(1) - 1).abs().max())
    averages, sums = average.sum(0), probability.sum(0)
    rule = quadrature(32, rule="gauss")
    masses = density(rule.points.unsqueeze(1), rule.points.unsqueeze(0)) @ rule.weights
    hypothesis, met = "∫ p(x, y) dy = 1", bool((masses - 1).abs().max() <= ROUNDING)
    claim = "with the measure of the cell, 𝒦_ij = ∫_cell j p(x_i, ·), the rows of 𝒦 sum to 1"
    return [
        _check("Section 4.3, cells", claim, hypothesis, met, rows, ROUNDING),
        _check(
            "Section 4.3, cells as stated",
            "𝒦_ij, the average of p(x_i, ·) over cell j, is a Markov matrix with columns that sum to 1",
            hypothesis,
            met,
            float((averages - 1).abs().max()),
            ROUNDING,
            f"on 16 cells the averages' columns sum to {float(averages.min()):.3g} … {float(averages.max()):.3g}, and "
            f"with the measure of the cell to {float(sums.min()):.3g} … {float(sums.max()):.3g}: the rows sum to 1 "
            "then",
            "fails",
        ),
    ]


def _check(
    name: str,
    statement: str,
    hypothesis: str,
    met: bool,
    residual: float,
    tolerance: float,
    detail: str = "",
    expected: str = "holds",
) -> Check:
    verdict = decide(met, residual, tolerance)
    detail = detail or f"off by {residual:.1e}"
    return Check(name, statement, hypothesis, "continuum", verdict, residual, detail, expected)


def _rates(continuum: Continuum) -> list[float]:
    """Return the eigenvalues of −ℒʰ in L², from the smallest."""
    kernel, roots = kernel_matrix(continuum.affinity)[0], continuum.weights.sqrt()
    laplacian = torch.diag(kernel.sum(1)) - kernel
    return torch.linalg.eigvalsh(symmetric_part(roots.unsqueeze(1) * laplacian / roots)).tolist()


def _signs(continuum: Continuum) -> tuple[bool, bool]:
    """Return (whether ρ(x, y) = ρ(y, x) at the points but for rounding, whether ρ ≥ 0 there)."""
    values = kernel_matrix(continuum.affinity)[0] / continuum.weights
    return is_nothing(values - values.T, values), bool((values >= 0).all())
