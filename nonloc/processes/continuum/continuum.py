"""Continuum: the integral operator ℒz(x) = ∫ ρ(x, y) (z(y) − z(x)) dy on [0, 1]^d, and its discretisation.

docs/mathematics.md says which part of ℒ is Hilbert–Schmidt, and what the rows and columns of a kernel matrix sum to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nonloc._checks import check_choice, check_whole
from nonloc.ops import KINDS, Affinity, SparseAffinity, diffuse, kernel_matrix, row_sums, sparse
from nonloc.ops.affinity import shape_or_type
from nonloc.processes.continuum.horizon import HorizonKernel
from nonloc.processes.continuum.quadrature import Quadrature, quadrature
from nonloc.processes.diffusion import Diffusion
from nonloc.processes.graphs import horizon, without_sparse_warnings

PairKernel = Callable[[Tensor, Tensor], Tensor]  # x [R, 1, d], y [1, M, d] -> ρ(x, y) [R, M]
Features = Callable[[Tensor], Tensor]  # x [M, d] -> u(x) [M, k]

# A kernel given as a function is tabulated: 2^27 entries are 2 GiB with their indices.
LARGEST_TABLE = 2**27
BLOCK_ENTRIES = 2**22
PARTS = ("integral", "multiplication")
FORMS = ("average", "probability")


class Continuum:
    """The operator on the points of a quadrature rule: (ℒʰz)_i = Σ_j ρ(x_i, x_j) μ_j (z_j − z_i), which tends to ℒz.

    kernel     a kind of Affinity, for ρ(x, y) = ω(u(x), u(y)) as in the paper; a function ρ(x, y) of points
               x [R, 1, d] and y [1, M, d] with values [R, M]; or a HorizonKernel
    num_cells  points an axis, M = num_cells ** dimension
    dimension  d = 1 or 2
    rule       "midpoint" or "gauss" (for smooth kernels: it converges faster than every power)
    features   u, a function of points [M, d] with values [M, k]; u(x) = x when left out. For a kind alone
    scale      of the kind
    normalize  "none" is the operator above; "row" and "sinkhorn" make a jump process of it

    quadrature, points [M, d], weights [M] and affinity are what it is made of. Everything is float64.

    >>> from nonloc.processes import Continuum
    >>> line = Continuum(lambda x, y: torch.tensor(1.0), num_cells=4)  # ℒz is the mean of z, less z
    >>> line.apply(line.sample(lambda x: x[:, 0])).flatten().tolist()
    [0.375, 0.125, -0.125, -0.375]
    """

    def __init__(
        self,
        kernel: str | PairKernel | HorizonKernel,
        num_cells: int,
        *,
        dimension: int = 1,
        rule: str = "midpoint",
        features: Features | None = None,
        scale: float = 1.0,
        normalize: str = "none",
        device: torch.device | str | None = None,
    ) -> None:
        self.quadrature: Quadrature = quadrature(num_cells, dimension=dimension, rule=rule, device=device)
        self.kernel, self.num_cells, self.dimension, self.rule = kernel, num_cells, dimension, rule
        if not isinstance(kernel, str) and (features is not None or scale != 1):
            raise ValueError('features and scale belong to a kind of affinity, such as kernel="heat"')
        if isinstance(kernel, str):
            self.affinity: Affinity | SparseAffinity = self._of_kind(kernel, features, scale, normalize)
        elif isinstance(kernel, HorizonKernel):
            self.affinity = self._of_horizon(kernel, normalize)
        elif callable(kernel):
            self.affinity = self._of_function(kernel, normalize)
        else:
            raise ValueError(
                f"kernel must be one of {', '.join(KINDS)}, a function ρ(x, y) or a HorizonKernel, got "
                f"{type(kernel).__name__}"
            )

    @property
    def points(self) -> Tensor:
        return self.quadrature.points

    @property
    def weights(self) -> Tensor:
        return self.quadrature.weights

    def sample(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """z [1, M, C] of a function of the points [M, d] with values [M] or [M, C]."""
        values = function(self.points)
        if not isinstance(values, Tensor) or values.dim() not in (1, 2) or len(values) != len(self.points):
            raise ValueError(
                f"function must give [M] or [M, C] for the {len(self.points)} points, got {shape_or_type(values)}; "
                "torch.full((len(x),), c) is a constant"
            )
        return values.reshape(len(self.points), -1).unsqueeze(0)

    def apply(self, z: Tensor) -> Tensor:
        """ℒʰz [1, M, C] for z [1, M, C]."""
        return diffuse(self.affinity, z)

    def diffusion(self, *, backwards: bool = False) -> Diffusion:
        """∂z = ±ℒʰz as a process."""
        return Diffusion(self.affinity, backwards=backwards)

    def interior(self, margin: float) -> Tensor:
        """[M] bool: the points at a distance of at least `margin` from the boundary."""
        return ((self.points >= margin) & (self.points <= 1 - margin)).all(-1)

    def __repr__(self) -> str:
        kernel = self.kernel
        is_function = not isinstance(kernel, (str, HorizonKernel))
        name = "ρ(x, y)" if is_function else str(kernel)
        return f"Continuum({name} {self.affinity.normalize}, {self.rule}, d = {self.dimension}, M = {len(self.points)})"

    def _of_kind(self, kind: str, features: Features | None, scale: float, normalize: str) -> Affinity:
        u = self.points if features is None else features(self.points)
        if not isinstance(u, Tensor) or u.dim() != 2 or len(u) != len(self.points):
            raise ValueError(
                f"features must give [M, k] = [{len(self.points)}, k] for the points, got {shape_or_type(u)}"
            )
        if not bool(torch.isfinite(u).all()):
            raise ValueError("features gave values that are not finite; u must be bounded on all of [0, 1]^d")
        u = u.unsqueeze(0)
        return Affinity(u, u, kind, normalize, scale, measure=self.weights)

    def _of_horizon(self, kernel: HorizonKernel, normalize: str) -> SparseAffinity:
        if self.rule != "midpoint":
            raise ValueError(
                f'a HorizonKernel needs rule="midpoint", got {self.rule!r}: its edge would spoil a smooth rule'
            )
        width = 1 / self.num_cells
        if kernel.radius < width:
            raise ValueError(
                f"radius = {kernel.radius:g} is less than a cell, {width:g}; use num_cells > {1 / kernel.radius:.0f}"
            )
        reach = kernel.radius + 0.5 * width
        values = kernel.on_mesh(width, self.dimension)
        return horizon(self.points, reach, kernel=values, normalize=normalize, measure=self.weights)

    def _of_function(self, kernel: PairKernel, normalize: str) -> SparseAffinity:
        size = len(self.points)
        if size * size > LARGEST_TABLE:
            raise ValueError(
                f"a kernel given as a function is tabulated, and M = {size} positions would need {size * size} "
                "entries; use fewer cells, a kind of affinity with features, or a HorizonKernel"
            )
        blocks = self.points.split(max(1, BLOCK_ENTRIES // size))
        table = torch.cat([pair_values(kernel, rows, self.points) for rows in blocks])
        with without_sparse_warnings():
            return SparseAffinity(table.to_sparse_csr(), normalize, measure=self.weights)


def hilbert_schmidt_norm(continuum: Continuum, part: str = "integral") -> float:
    """The Hilbert–Schmidt norm of one part of the discrete operator in L².

    "integral"        (Σ_ij ρ_ij² μ_i μ_j)^½, which tends to (∬ ρ²)^½ under refinement
    "multiplication"  (Σ_i d_i²)^½, which tends to infinity

    >>> from nonloc.processes import Continuum, hilbert_schmidt_norm
    >>> line = Continuum(lambda x, y: torch.tensor(1.0), num_cells=4)
    >>> hilbert_schmidt_norm(line), hilbert_schmidt_norm(line, "multiplication")
    (1.0, 2.0)
    """
    if not isinstance(continuum, Continuum):
        raise ValueError(f"continuum must be a Continuum, got {type(continuum).__name__}")
    check_choice("part", part, PARTS)
    affinity = continuum.affinity
    if affinity.normalize != "none":
        raise ValueError(f'the continuum must have normalize="none", got {affinity.normalize!r}')
    if part == "multiplication":
        return float(row_sums(affinity).norm())
    return float((continuum.weights * _squares(affinity, continuum.weights)).sum().sqrt())


def _squares(affinity: Affinity | SparseAffinity, weights: Tensor) -> Tensor:
    """Σ_j ρ_ij² μ_j [M], without a matrix a block of rows at a time."""
    if isinstance(affinity, SparseAffinity):
        matrix = affinity.matrix
        terms = matrix.values().square() * weights[matrix.col_indices()]
        return torch.zeros_like(weights).index_add_(0, sparse.rows(matrix), terms)
    size = max(1, BLOCK_ENTRIES // affinity.positions)
    sums = []
    for rows in affinity.left.split(size, 1):
        # K carries μ_j once.
        kernel = kernel_matrix(replace(affinity, left=rows)).squeeze(0)
        sums.append((kernel.square() / weights).sum(-1))
    return torch.cat(sums)


def cell_kernel(
    density: PairKernel, num_cells: int, *, form: str = "probability", dimension: int = 1, nodes: int = 8
) -> Tensor:
    """𝒦 [M, M] of a transition density p on equal cells with centres x_i, in float64.

    density  p(x, y) for x [R, 1, d] and y [1, S, d], values [R, S]
    form     "average": the mean of p(x_i, ·) over cell j, as the paper writes it; rows sum to M
             "probability": its integral over cell j, P(x_i → cell j); rows sum to 1, columns where ∫ p(x, y) dx = 1
    nodes    Gauss–Legendre points an axis in each cell

    >>> from nonloc.processes import cell_kernel
    >>> cell_kernel(lambda x, y: torch.tensor(1.0), num_cells=2)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    check_choice("form", form, FORMS)
    if not callable(density):
        raise ValueError(f"density must be a function p(x, y) of points, got {type(density).__name__}")
    check_whole("nodes", nodes)
    centres = quadrature(num_cells, dimension=dimension).points
    if (len(centres) * nodes**dimension) * len(centres) > LARGEST_TABLE:
        raise ValueError(
            f"{len(centres)} cells with {nodes**dimension} nodes each would need "
            f"{len(centres) ** 2 * nodes**dimension:.1e} values of the density; use fewer cells or nodes"
        )
    inner = quadrature(nodes, dimension=dimension, rule="gauss")
    within = (inner.points - 0.5) / num_cells
    targets = (centres.unsqueeze(1) + within).view(-1, dimension)
    values = pair_values(density, centres, targets, "density")
    averages = values.reshape(len(centres), len(centres), -1) @ inner.weights
    return averages if form == "average" else averages / len(centres)


def pair_values(kernel: PairKernel, x: Tensor, y: Tensor, name: str = "kernel") -> Tensor:
    """ρ(x, y) [R, S] for points x [R, d] and y [S, d], in their dtype; a ValueError where it is no such table."""
    values = kernel(x.unsqueeze(1), y.unsqueeze(0))
    if not isinstance(values, Tensor) or values.shape not in ((len(x), len(y)), ()):
        raise ValueError(
            f"{name} must give values [{len(x)}, {len(y)}] for x {[len(x), 1, x.shape[1]]} and y "
            f"{[1, len(y), y.shape[1]]}, got {shape_or_type(values)}; sum or norm over the last axis"
        )
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{name} gave values that are not finite; it must be bounded, also for x = y")
    return values.to(x).expand(len(x), len(y))
