"""Meshes: one kernel ρ on finer and finer meshes, with every property that a hypothesis names, read off numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from nonloc.ops import kernel_matrix
from nonloc.processes.continuum.continuum import Continuum, hilbert_schmidt_norm
from nonloc.processes.jump.stationary import reachable_positions
from nonloc_paper.theory.case import ROUNDING, is_gap, is_nothing, modes

CELLS = (16, 64, 256)


class Meshes:
    """ρ on meshes with 16, 64 and 256 points.

    make  the Continuum with a given number of points
    """

    def __init__(self, make: Callable[[int], Continuum]) -> None:
        self.make = make
        self.all = [make(cells) for cells in CELLS]

    @cached_property
    def kernels(self) -> list[Tensor]:
        """ρ(x_i, x_j) μ_j [M, M]."""
        return [kernel_matrix(mesh.affinity)[0] for mesh in self.all]

    @cached_property
    def values(self) -> list[Tensor]:
        """ρ(x_i, x_j) [M, M]."""
        return [kernel / mesh.weights for kernel, mesh in zip(self.kernels, self.all, strict=True)]

    @property
    def is_symmetric(self) -> bool:
        return all(is_nothing(values - values.T, values) for values in self.values)

    @property
    def is_nonnegative(self) -> bool:
        return all(bool((values >= 0).all()) for values in self.values)

    @property
    def is_positive(self) -> bool:
        """Whether ρ > 0 at the points, which are inside the domain."""
        return all(bool((values > 0).all()) for values in self.values)

    @property
    def is_connected(self) -> bool:
        return all(bool(reachable_positions(kernel).all()) for kernel in self.kernels)

    @property
    def has_gap(self) -> bool:
        return all(is_gap(rates(mesh)) for mesh in self.all)

    @property
    def is_square_integrable(self) -> bool:
        """Whether ∬ ρ² has a limit."""
        return settles([hilbert_schmidt_norm(mesh) for mesh in self.all])

    @property
    def has_bounded_degrees(self) -> bool:
        """Whether the largest degree ∫ ρ(x, y) dy has a limit."""
        return settles([float(kernel.sum(1).max()) for kernel in self.kernels])

    @property
    def has_degrees_above_zero(self) -> bool:
        """Whether the least degree has a limit other than 0."""
        return settles([float(1 / kernel.sum(1).min()) for kernel in self.kernels])


def rates(continuum: Continuum) -> Tensor:
    """Return the eigenvalues [M] of −ℒʰ in L² by its kernel, from the smallest."""
    kernel = kernel_matrix(continuum.affinity)[0]
    return modes(continuum.weights, torch.diag(kernel.sum(1)) - kernel)[0]


def settles(values: Sequence[float]) -> bool:
    """Whether the second of two changes is clearly smaller, as it is on the way to a limit.

    Values that grow have changes that do not shrink, even where they grow like log M.
    """
    first, second, third = values
    if not all(map(math.isfinite, values)):
        return False
    return abs(third - second) <= max(0.75 * abs(second - first), ROUNDING * abs(third))
