"""Quadrature on [0, 1]^d: the points and weights of a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nonloc._checks import check_choice, check_whole, is_whole

DIMENSIONS = (1, 2)


@dataclass(frozen=True, eq=False)
class Quadrature:
    """∫ f(x) dx ≈ Σ_i weights_i f(points_i).

    points   [M, d]  float64, the first coordinate running slowest
    weights  [M]     positive, their sum is 1

    >>> from nonloc.processes import quadrature
    >>> rule = quadrature(2, rule="gauss")
    >>> rule.integral(rule.points**3)  # of x³, which is 1/4
    tensor([0.2500], dtype=torch.float64)
    """

    points: Tensor
    weights: Tensor

    def integral(self, values: Tensor) -> Tensor:
        """Σ_i weights_i values_i for values [..., M, C] -> [..., C]."""
        return (self.weights.unsqueeze(-1) * values).sum(-2)


def quadrature(
    num_cells: int, *, dimension: int = 1, rule: str = "midpoint", device: torch.device | str | None = None
) -> Quadrature:
    """A rule with num_cells points an axis, M = num_cells ** dimension.

    rule  "midpoint": the centres of equal cells, of second order for smooth integrands;
          "gauss": Gauss–Legendre, exact for polynomials of degree 2 num_cells − 1 in each coordinate

    >>> from nonloc.processes import quadrature
    >>> quadrature(2).points.tolist(), quadrature(2).weights.tolist()
    ([[0.25], [0.75]], [0.5, 0.5])
    >>> quadrature(3, dimension=2).points.shape
    torch.Size([9, 2])
    """
    check_whole("num_cells", num_cells)
    check_dimension(dimension)
    check_choice("rule", rule, RULES)
    points, weights = (torch.as_tensor(side, device=device) for side in RULES[rule](num_cells))
    grid = torch.cartesian_prod(*[points] * dimension).view(-1, dimension)
    products = torch.cartesian_prod(*[weights] * dimension).view(-1, dimension).prod(-1)
    return Quadrature(grid, products)


def check_dimension(dimension: int) -> None:
    """Raise the ValueError that lists the choices."""
    if not is_whole(dimension) or dimension not in DIMENSIONS:
        raise ValueError(f"dimension={dimension!r} is not supported; choose one of 1, 2")


def _midpoint(count: int) -> tuple[np.ndarray, np.ndarray]:
    return (np.arange(count) + 0.5) / count, np.full(count, 1 / count)


def _gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * (nodes + 1), 0.5 * weights


RULES: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "midpoint": _midpoint,
    "gauss": _gauss_legendre,
}
