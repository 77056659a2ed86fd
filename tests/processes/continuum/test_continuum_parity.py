"""Against others: scipy's graph Laplacian on the same Ω."""

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.sparse import csgraph

from nonloc.ops import SparseAffinity, diffuse, kernel_matrix
from nonloc.processes import Continuum, from_scipy, horizon, neighbors
from problems import generator


def points(size=60):
    return torch.rand(size, 2, generator=generator(), dtype=torch.float64)


def weights(affinity):
    """Ω as a scipy matrix."""
    matrix = affinity.matrix
    arrays = (part.numpy() for part in (matrix.values(), matrix.col_indices(), matrix.crow_indices()))
    return scipy.sparse.csr_array(tuple(arrays), shape=tuple(matrix.shape))


@pytest.mark.parametrize(
    "graph",
    [
        neighbors(points(), 5, scale=3.0, normalize="none"),
        horizon(points(), 0.3, kernel="linear", normalize="none"),
        horizon(points(), 0.3, normalize="none", include_self=False),
    ],
)
def test_diffuse_is_minus_the_graph_laplacian(graph):
    z = torch.randn(1, 60, 3, generator=generator(1), dtype=torch.float64)
    expected = -(csgraph.laplacian(weights(graph)) @ z[0].numpy())
    assert np.abs(diffuse(graph, z)[0].numpy() - expected).max() < 1e-13


def test_symmetric_is_the_normalised_laplacian_of_a_graph_without_loops():
    graph = horizon(points(), 0.3, include_self=False, normalize="symmetric")
    expected = csgraph.laplacian(weights(graph), normed=True).toarray()
    assert np.abs(np.eye(60) - kernel_matrix(graph)[0].numpy() - expected).max() < 1e-14


def test_the_continuum_is_a_graph_laplacian_with_the_cell_measure():
    continuum = Continuum("heat", 30, scale=4.0)
    squares = (continuum.points - continuum.points.T).square().numpy()
    z = continuum.sample(lambda x: x.sin())
    expected = -(csgraph.laplacian(np.exp(-4.0 * squares)) @ z[0].numpy()) / 30
    assert np.abs(continuum.apply(z)[0].numpy() - expected).max() < 1e-14


def test_a_scipy_matrix_keeps_its_laplacian():
    raw = scipy.sparse.random_array((40, 40), density=0.2, rng=np.random.default_rng(0))
    omega = raw + raw.T
    graph = from_scipy(omega, "none")
    assert isinstance(graph, SparseAffinity)
    z = torch.randn(1, 40, 1, generator=generator(2), dtype=torch.float64)
    expected = -(csgraph.laplacian(omega) @ z[0].numpy())
    assert np.abs(diffuse(graph, z)[0].numpy() - expected).max() < 1e-13
