"""Quadrature on the unit interval and square, on integrals that are known."""

import pytest

from nonloc.processes import quadrature


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("rule", ["midpoint", "gauss"])
def test_weights_are_positive_and_sum_to_1(rule, dimension):
    actual = quadrature(7, dimension=dimension, rule=rule)
    assert actual.points.shape == (7**dimension, dimension)
    assert bool((actual.weights > 0).all())
    assert float(actual.weights.sum()) == pytest.approx(1, abs=1e-15)


def test_gauss_in_the_plane_is_exact_in_each_coordinate():
    actual = quadrature(3, dimension=2, rule="gauss")
    values = actual.points[:, :1] ** 5 * actual.points[:, 1:] ** 4
    assert float(actual.integral(values)) == pytest.approx(1 / 30, abs=1e-15)


def test_midpoints_are_the_centres_of_cells_with_the_first_coordinate_slowest():
    actual = quadrature(2, dimension=2)
    assert actual.points.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_cells": 0}, "num_cells must be a whole number ≥ 1"),
        ({"num_cells": 4, "dimension": 3}, "dimension=3 is not supported; choose one of 1, 2"),
        ({"num_cells": 4, "dimension": True}, "dimension=True is not supported"),
        ({"num_cells": 4, "rule": "simpson"}, "choose one of midpoint, gauss"),
    ],
)
def test_what_is_asked_for_wrongly(keywords, message):
    with pytest.raises(ValueError, match=message):
        quadrature(**keywords)
