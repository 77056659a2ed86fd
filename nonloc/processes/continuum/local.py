"""The local heat equation, and how fast it and the nonlocal one grow when time is reversed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc.ops import SparseAffinity, kernel_matrix, row_sums
from nonloc.processes.continuum.continuum import Continuum, PairKernel
from nonloc.processes.continuum.horizon import HorizonKernel
from nonloc.processes.continuum.quadrature import quadrature
from nonloc.processes.graphs import without_sparse_warnings

LARGEST_DENSE = 2048


def local_laplacian(
    num_cells: int, *, dimension: int = 1, device: torch.device | str | None = None
) -> SparseAffinity:
    """The finite-difference Laplacian on the centres of num_cells ** dimension cells, with reflecting boundary.

    As an affinity: 1/h² between cells that share a face, so that `diffuse` is Δʰ, and `Diffusion` the heat equation.

    >>> from nonloc import diffuse
    >>> from nonloc.processes import local_laplacian, quadrature
    >>> squares = quadrature(4).points[None] ** 2
    >>> diffuse(local_laplacian(4), squares).flatten()[1:3].tolist()  # (x²)″ away from the boundary
    [2.0, 2.0]
    """
    size = len(quadrature(num_cells, dimension=dimension).weights)
    index = torch.arange(size, device=device).view([num_cells] * dimension)
    pairs = [
        torch.stack([index.narrow(axis, 0, num_cells - 1), index.narrow(axis, 1, num_cells - 1)]).flatten(1)
        for axis in range(dimension)
    ]
    upper = torch.cat(pairs, 1)
    entries = torch.cat([upper, upper.flip(0)], 1)
    values = torch.full((entries.shape[1],), float(num_cells**2), dtype=torch.float64, device=device)
    with without_sparse_warnings():
        matrix = torch.sparse_coo_tensor(entries, values, (size, size), check_invariants=False)
        return SparseAffinity(matrix.to_sparse_csr(), "none")


@dataclass(frozen=True)
class ReversalGrowth:
    """How fast the fastest mode grows when time runs backwards: e^{rate · t}.

    num_cells       the mesh, with cells of width h = 1 / num_cells
    local_rate      of the finite-difference heat equation: about 4d/h², so without bound under refinement
    nonlocal_rate   of the discrete nonlocal equation, which tends to a limit under refinement where degrees are bounded
    largest_degree  max_x ∫ ρ(x, y) dy on the mesh: nonlocal_rate is at most twice that for a symmetric ρ ≥ 0, and at
                    most that where ρ is positive semi-definite

    >>> from nonloc.processes import reversal_growth
    >>> coarse, fine = reversal_growth(8), reversal_growth(16)
    >>> round(fine.local_rate / coarse.local_rate), round(fine.nonlocal_rate / coarse.nonlocal_rate)
    (4, 1)
    """

    num_cells: int
    local_rate: float
    nonlocal_rate: float
    largest_degree: float


def reversal_growth(
    num_cells: int,
    *,
    kernel: str | PairKernel | HorizonKernel = "heat",
    scale: float = 1.0,
    dimension: int = 1,
) -> ReversalGrowth:
    """Both rates on one mesh.

    The reversed heat equation is ill-posed. The reversed nonlocal equation is not, where degrees are bounded.

    kernel  of the nonlocal equation, as for `Continuum`; symmetric

    >>> from nonloc.processes import reversal_growth
    >>> rates = reversal_growth(100)
    >>> round(rates.local_rate), rates.nonlocal_rate < 1
    (39990, True)
    """
    continuum = Continuum(kernel, num_cells, dimension=dimension, scale=scale)
    if len(continuum.points) > LARGEST_DENSE:
        raise ValueError(
            f"num_cells ** dimension must be at most {LARGEST_DENSE}, for all eigenvalues are computed; got "
            f"{len(continuum.points)}"
        )
    degrees = row_sums(continuum.affinity).squeeze(0)
    return ReversalGrowth(
        num_cells,
        local_rate=_largest_rate(kernel_matrix(local_laplacian(num_cells, dimension=dimension)).squeeze(0)),
        nonlocal_rate=_largest_rate(kernel_matrix(continuum.affinity).squeeze(0)),
        largest_degree=float(degrees.max()),
    )


def _largest_rate(kernel: Tensor) -> float:
    """The largest eigenvalue of diag(K1) − K, for the symmetric K of cells of equal measure."""
    if not torch.allclose(kernel, kernel.mT, rtol=1e-12, atol=0):
        raise ValueError("kernel must be symmetric, ρ(x, y) = ρ(y, x): growth is measured by eigenvalues")
    return float(torch.linalg.eigvalsh(torch.diag(kernel.sum(-1)) - kernel)[-1])
