"""The kernel matrix of a transition density on cells: the paper's averages, and the probabilities they stand for.

With p(x, y) the density of the jump from x to y, ∫ p(x, y) dy = 1, the paper takes 𝒦_ij to be the average of p(x_i, ·)
over cell j and calls it a Markov matrix whose columns sum to 1. Two things need a word. The average lacks the measure
of the cell, 1/M for the M cells of [0, 1]^d: its rows sum to M. And with the measure it is the rows that sum to 1, for
a walker at x_i must go somewhere; the columns do as well only where ∫ p(x, y) dx = 1 too.
"""

from __future__ import annotations

from torch import Tensor

from nonloc._checks import check_whole
from nonloc.processes.continuum.continuum import LARGEST_TABLE, PairKernel, pair_values
from nonloc.processes.continuum.quadrature import quadrature

FORMS = ("average", "probability")


def cell_kernel(
    density: PairKernel, num_cells: int, *, form: str = "probability", dimension: int = 1, nodes: int = 8
) -> Tensor:
    """𝒦 [M, M] of a transition density p on equal cells with centres x_i, in float64.

    density  p(x, y) for x [R, 1, d] and y [1, S, d], values [R, S]
    form     "average": the mean of p(x_i, ·) over cell j, as the paper writes it; rows sum to M
             "probability": its integral over cell j, P(x_i → cell j); rows sum to 1
    nodes    Gauss–Legendre points an axis in each cell
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r} is unknown; choose one of {', '.join(FORMS)}")
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
