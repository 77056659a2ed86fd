"""Nearest: rows of new points against all distances, the search by products, the estimate of a dimension."""

import numpy as np
import pytest
import scipy.sparse

from nonloc.processes.nearest import Nearest

RNG = np.random.default_rng


def by_all_pairs(x, new, k):
    """Squared distances, where a new point is among the k + 1 nearest, or as near as the k-th neighbour; else NaN."""
    own = np.sort(np.square(x[:, None] - x[None]).sum(-1), axis=1)[:, k]
    squares = np.square(new[:, None] - x[None]).sum(-1)
    is_near = squares <= np.sort(squares, axis=1)[:, k : k + 1]
    return np.where(is_near | (squares <= own), squares, np.nan)


@pytest.mark.parametrize("dimensions", [1, 3, 17, 40])
def test_rows_of_new_points_are_those_of_all_pairs(dimensions):
    x, new = RNG(0).standard_normal((80, dimensions)), RNG(1).standard_normal((30, dimensions))
    expected = by_all_pairs(x, new, 4)
    rows = Nearest(x, 4).rows(new)
    assert isinstance(rows, scipy.sparse.csr_array)
    actual = np.full(expected.shape, np.nan)
    actual[np.repeat(np.arange(30), np.diff(rows.indptr)), rows.indices] = rows.data
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    assert np.nanmax(np.abs(actual - expected)) < 1e-12


@pytest.mark.parametrize("dimensions", [2, 20])
def test_rows_of_the_points_themselves_are_those_of_their_graph(dimensions):
    nearest = Nearest(RNG(2).standard_normal((90, dimensions)), 5)
    graph = nearest.graph(np.ones_like(nearest.squares)).toarray()
    rows = nearest.rows(nearest.points)
    assert np.array_equal(rows.indptr, np.append(0, np.cumsum(graph.sum(1))))
    assert np.array_equal(rows.indices, np.nonzero(graph)[1])


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_dimension_of_random_points(dimensions):
    # They lie in a plane, a line or a body of a space with 20 dimensions.
    x = RNG(3).random((4000, dimensions)) @ np.linalg.qr(RNG(4).standard_normal((20, dimensions)))[0].T
    assert Nearest(x, 16).dimension() == pytest.approx(dimensions, rel=0.1)


def test_points_at_one_place_have_no_dimension():
    assert Nearest(np.zeros((5, 2)), 2).dimension() == np.inf


def test_the_fitting_scale_is_by_the_median_distance_not_by_that_of_squares():
    line = np.array([[0.0], [1.0], [10.0], [13.0]])  # the nearest other is at 1, 1, 3 and 3
    assert Nearest(line, 1).fitting_scale() == 1 / 2**2
