"""What Sections 4.2 and 4.3 say of the continuum beside the theorems: Hilbert–Schmidt norms, reversal, cells."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nonloc.processes.continuum.continuum import Continuum, cell_kernel, hilbert_schmidt_norm
from nonloc.processes.continuum.local import reversal_growth
from nonloc.processes.continuum.quadrature import quadrature
from nonloc_paper.theory.check import Check
from nonloc_paper.theory.continuum import (
    MESHES,
    NOT_NEGATIVE,
    ROUNDING,
    bounded_below,
    is_symmetric,
    of_continuum,
    turned_operator,
)

NORM = (29 / 18) ** 0.5  # (∬ (1 + xy)²)^½


def hilbert_schmidt_statements(features: Callable[[Tensor], Tensor] = bounded_below) -> list[Check]:
    """Only the integral part of ℒ has a finite norm; it is the boundedness of ℒ that makes the reversal stable."""
    meshes = [Continuum("dot", cells, rule="gauss", features=features) for cells in MESHES]
    integral = [hilbert_schmidt_norm(mesh) for mesh in meshes]
    other = [hilbert_schmidt_norm(mesh, "multiplication") for mesh in meshes]
    bound = [float(torch.linalg.eigvalsh(turned_operator(mesh))[-1]) for mesh in meshes]
    finite = all(math.isfinite(norm) for norm in integral)
    return [
        of_continuum(
            "Section 4.2, Hilbert–Schmidt",
            "z ↦ ∫ ρ(x, y) z(y) dy is a Hilbert–Schmidt operator, with the norm (∬ ρ²)^½ = (29/18)^½",
            "∬ ρ² < ∞",
            finite,
            max(abs(norm / NORM - 1) for norm in integral),
            ROUNDING,
            f"{integral[-1]:.9g}",
        ),
        of_continuum(
            "Section 4.2, Hilbert–Schmidt as stated",
            "ℒ itself is a Hilbert–Schmidt operator: its norm stays bounded on finer meshes",
            "∬ ρ² < ∞",
            finite,
            1 - other[0] / other[-1],
            0.5,
            "z ↦ d(x) z has the norms "
            + ", ".join(f"{norm:.4g}" for norm in other)
            + f" on {MESHES} points, like √M",
            "fails",
        ),
        of_continuum(
            "Section 4.2, bounded",
            "ℒ is a bounded operator, so that its flow can be reversed: λ_max(−ℒ) stays bounded on finer meshes",
            "ρ symmetric and bounded",
            all(is_symmetric(mesh) for mesh in meshes),
            bound[-1] / bound[0] - 1,
            0.5,
            "λ_max " + ", ".join(f"{value:.5g}" for value in bound),
        ),
    ]


def reversal_statements(kernel: str = "heat", cells: tuple[int, int] = (16, 64)) -> list[Check]:
    """Section 4.2: the reversed heat equation is ill-posed, the reversed nonlocal equation is not."""
    coarse, fine = (reversal_growth(count, kernel=kernel) for count in cells)
    nonlocal_rise = fine.nonlocal_rate / coarse.nonlocal_rate - 1
    local_rise = fine.local_rate / coarse.local_rate
    return [
        of_continuum(
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
    chosen = _density if density is None else density
    average = cell_kernel(chosen, 16, form="average")
    probability = cell_kernel(chosen, 16)
    rows = float((probability.sum(1) - 1).abs().max())
    columns = float((average.sum(0) - 1).abs().max())
    rule = quadrature(32, rule="gauss")
    masses = chosen(rule.points.unsqueeze(1), rule.points.unsqueeze(0)) @ rule.weights
    met = bool((masses - 1).abs().max() <= ROUNDING)
    return [
        of_continuum(
            "Section 4.3, cells",
            "with the measure of the cell, 𝒦_ij = ∫_cell j p(x_i, ·), the rows of 𝒦 sum to 1",
            "∫ p(x, y) dy = 1",
            met,
            rows,
            ROUNDING,
        ),
        of_continuum(
            "Section 4.3, cells as stated",
            "𝒦_ij, the average of p(x_i, ·) over cell j, is a Markov matrix with columns that sum to 1",
            "∫ p(x, y) dy = 1",
            met,
            columns,
            ROUNDING,
            f"on 16 cells the averages' columns sum to {float(average.sum(0).min()):.3g} … "
            f"{float(average.sum(0).max()):.3g}, and with the measure of the cell to "
            f"{float(probability.sum(0).min()):.3g} … {float(probability.sum(0).max()):.3g}: the rows sum to 1 then",
            "fails",
        ),
    ]


def _density(x: Tensor, y: Tensor) -> Tensor:
    return ((1 + x * y) / (1 + x / 2)).squeeze(-1)
