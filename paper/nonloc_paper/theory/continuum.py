"""The statements about the integral operator on [0, 1], on kernels whose answers are known: ρ = 1 + xy and ρ = xy.

ρ = 1 + xy has the degree d(x) = 1 + x/2, and ℒ(x²) = 1/3 + x/4 − x² − x³/2. Gauss–Legendre points integrate all of
that exactly, so what is left is rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.ops import kernel_matrix
from nonloc.processes.continuum.continuum import Continuum
from nonloc_paper.theory.case import is_nothing, path
from nonloc_paper.theory.check import Check, conclude

ROUNDING = 1e-12
FLOW_ROUNDING = 1e-10
ENERGY = 79 / 720  # −∫ z ℒz for ρ = 1 + xy and z = x²
MESHES = (16, 64, 256)
SYMMETRIC = "ρ symmetric"
NOT_NEGATIVE = "ρ symmetric and ≥ 0"
BELOW = "ρ symmetric, ≥ 0, with degrees ∫ ρ(x, y) dy bounded below"


def bounded_below(points: Tensor) -> Tensor:
    """u(x) = (1, x), so that u(x)·u(y) = 1 + xy."""
    return torch.cat([torch.ones_like(points), points], -1)


def touching_zero(points: Tensor) -> Tensor:
    """u(x) = x, so that u(x)·u(y) = xy, whose degree x/2 has no lower bound."""
    return points


def smooth_continuum(num_cells: int = 24) -> Continuum:
    """ρ = 1 + xy on Gauss–Legendre points."""
    return Continuum("dot", num_cells, rule="gauss", features=bounded_below)


def operator_statements(continuum: Continuum) -> list[Check]:
    """Proposition 1 for z = x²."""
    z = continuum.sample(lambda x: x.square())
    image = continuum.apply(z)
    integral = continuum.quadrature.integral
    constant = float(continuum.apply(torch.ones_like(z)).abs().max())
    total = float(integral(image)[0].abs().max() / integral(image.abs())[0].max())
    energy = -float(integral(z * image))
    symmetric, positive = is_symmetric(continuum), is_nonnegative(continuum)
    return [
        of_continuum("Proposition 1 (i)", "ℒz = 0 for a constant z", "none", True, constant, ROUNDING),
        of_continuum("Proposition 1 (ii)", "∫ ℒz dx = 0", SYMMETRIC, symmetric, total, ROUNDING),
        of_continuum(
            "Proposition 1 (iii)",
            "−∫ z ℒz dx ≥ 0; for ρ = 1 + xy and z = x² it is 79/720",
            NOT_NEGATIVE,
            symmetric and positive,
            abs(energy / ENERGY - 1),
            ROUNDING,
            f"{energy:.12g}, and 79/720 = {ENERGY:.12g}",
        ),
    ]


def flow_statements(continuum: Continuum) -> list[Check]:
    """Theorems 2, 3 and 4 from z(0) = x², whose mean is 1/3."""
    start = continuum.sample(lambda x: x.square())
    weights = continuum.weights
    gap = _gap(continuum)
    times, states = path(continuum.diffusion(), start, 30 / gap if gap > 1e-6 else 30.0, saved=60)
    means = (weights.unsqueeze(-1) * states).sum(1)
    distances = (weights.unsqueeze(-1) * (states - 1 / 3).square()).sum((1, 2)).sqrt()
    # Below this the distance is rounding.
    seen = distances > 1e-11 * distances[0]
    above = distances / (distances[0] * torch.exp(-gap * times))
    symmetric, positive = is_symmetric(continuum), is_nonnegative(continuum)
    met = symmetric and positive
    return [
        of_continuum(
            "Theorem 2 (i)",
            "∫ z(t) dx stays what it is",
            SYMMETRIC,
            symmetric,
            float((means - 1 / 3).abs().max()),
            FLOW_ROUNDING,
        ),
        of_continuum(
            "Theorem 2 (ii)",
            "z(t) tends to its mean",
            NOT_NEGATIVE,
            met,
            float((states[-1] - 1 / 3).abs().max()),
            FLOW_ROUNDING,
        ),
        of_continuum(
            "Theorem 3",
            "the variance of z(t) never increases",
            NOT_NEGATIVE,
            met,
            max(0.0, float((distances.square().diff() / distances[0] ** 2).max())),
            FLOW_ROUNDING,
        ),
        of_continuum(
            "Theorem 4",
            "‖z(t) − z̄‖ ≤ ‖z(0) − z̄‖ e^(−λt), λ the spectral gap",
            BELOW,
            met and gap > 0,
            max(0.0, float(above[seen].max()) - 1),
            1e-6,
            f"gap {gap:.6g}",
        ),
    ]


def poincare_statements(
    below: Callable[[Tensor], Tensor] = bounded_below, touching: Callable[[Tensor], Tensor] = touching_zero
) -> list[Check]:
    """The lemma as stated, for ρ = xy, and with the hypothesis that its proof needs."""
    checks = []
    claim = "∫ z² ≤ C ∬ ρ (z(y) − z(x))² for every z of mean 0"
    statement = f"there is a C with {claim}: 1/(2 gap) stays bounded on finer meshes"
    for features, name, hypothesis, expected in (
        (below, "Poincaré inequality", BELOW, "holds"),
        (touching, "Poincaré inequality as stated", "ρ symmetric, > 0 but for x = 0 or y = 0", "fails"),
    ):
        meshes = [Continuum("dot", cells, features=features) for cells in MESHES]
        gaps = [_gap(mesh) for mesh in meshes]
        shrinks = 1 - gaps[-1] / gaps[0]
        checks.append(
            of_continuum(
                name,
                statement,
                hypothesis,
                all(is_symmetric(mesh) and is_nonnegative(mesh) for mesh in meshes),
                shrinks,
                0.5,
                "gaps " + ", ".join(f"{gap:.4g}" for gap in gaps) + f" on {MESHES} cells",
                expected,
            )
        )
    return checks


def of_continuum(
    name: str,
    statement: str,
    hypothesis: str,
    met: bool,
    residual: float,
    tolerance: float,
    detail: str = "",
    expected: str = "holds",
) -> Check:
    """A check of the integral operator."""
    detail = detail or f"off by {residual:.1e}"
    return conclude(
        name,
        statement,
        hypothesis,
        "continuum",
        met=met,
        residual=residual,
        tolerance=tolerance,
        detail=detail,
        expected=expected,
    )


def turned_operator(continuum: Continuum) -> Tensor:
    """−ℒʰ [M, M] in the coordinates of L²."""
    kernel = kernel_matrix(continuum.affinity)[0]
    roots = continuum.weights.sqrt()
    turned = roots.unsqueeze(1) * (torch.diag(kernel.sum(1)) - kernel) / roots
    return (turned + turned.T) / 2


def _gap(continuum: Continuum) -> float:
    return float(torch.linalg.eigvalsh(turned_operator(continuum))[1])


def _density_of_pairs(continuum: Continuum) -> Tensor:
    """ρ(x_i, x_j) [M, M]."""
    return kernel_matrix(continuum.affinity)[0] / continuum.weights


def is_symmetric(continuum: Continuum) -> bool:
    """ρ(x, y) = ρ(y, x) at the points, but for rounding."""
    values = _density_of_pairs(continuum)
    return is_nothing(values - values.T, values)


def is_nonnegative(continuum: Continuum) -> bool:
    """ρ ≥ 0 at the points."""
    return bool((_density_of_pairs(continuum) >= 0).all())
