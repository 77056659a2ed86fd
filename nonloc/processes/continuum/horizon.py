"""HorizonKernel: a constant kernel on a small ball, scaled so that its operator tends to the local Laplacian."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc._checks import is_number
from nonloc.processes.continuum.quadrature import check_dimension

SMALLEST = 1e-70
MOST_CELLS = 2**26


@dataclass(frozen=True)
class HorizonKernel:
    """ρ(x, y) = c_d / radius^(d+2) for |x − y| ≤ radius, else 0, with c_1 = 3 and c_2 = 8/π.

    The constant makes ∫ ρ |y − x|² dy = 2d, so that ℒ tends to the Laplacian as the radius δ tends to 0, with the error
    δ²/20 of the fourth derivative on a line and δ²/24 of Δ²z in the plane, wherever the ball lies inside the domain.

    On a mesh, a cell at the edge of the ball counts by its part inside. A factor 1 + O(h²/δ²) adjusts the height so
    that the sum over the mesh is 2d too. The limit δ → 0 then holds with any number of cells in the ball, and not only
    where h shrinks faster than δ.

    >>> from nonloc.processes import HorizonKernel
    >>> HorizonKernel(0.5).height(dimension=1)
    24.0
    """

    radius: float

    def __post_init__(self) -> None:
        # The height divides by its fourth power.
        if not is_number(self.radius) or not SMALLEST < self.radius < math.inf:
            raise ValueError(f"radius must be a number > {SMALLEST:g} and finite, got {self.radius!r}")

    def height(self, dimension: int) -> float:
        """ρ inside the horizon, for d = 1 or 2."""
        check_dimension(dimension)
        return (3.0, 8 / math.pi)[dimension - 1] / self.radius ** (dimension + 2)

    def on_mesh(self, width: float, dimension: int) -> Callable[[Tensor], Tensor]:
        """ρ as a function of the distances [E] between centres of cells of this width."""

        def inside(distances: Tensor) -> Tensor:
            return self.height(dimension) * ((self.radius - distances) / width + 0.5).clamp(0, 1)

        cells = 2 * self.radius / width + 3
        if cells**dimension > MOST_CELLS:
            raise ValueError(
                f"radius = {self.radius:g} spans {cells**dimension:.1e} cells of width {width:g}, and at most "
                f"{MOST_CELLS:,} are summed over; use a smaller radius, for one of 2 already joins all of [0, 1]^d"
            )
        reach = math.ceil(self.radius / width + 0.5)
        axis = width * torch.arange(-reach, reach + 1, dtype=torch.float64)
        distances = torch.cartesian_prod(*[axis] * dimension).view(-1, dimension).norm(dim=-1)
        moment = float((inside(distances) * distances.square()).sum()) * width**dimension
        return lambda distances: 2 * dimension / moment * inside(distances)
