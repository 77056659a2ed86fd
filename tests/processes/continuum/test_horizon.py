"""The horizon kernel: its constants, and the local Laplacian as its limit."""

import math

import pytest
import torch
from chains import order

from nonloc.processes import Continuum, HorizonKernel

LEADING = {1: 1 / 20, 2: 1 / 24}


def cosine(x):
    return torch.cos(math.pi * x).prod(-1)


def relative_errors(radius, num_cells, dimension, margin):
    """ℒz / Δz − 1 where z is not near 0, at points at a distance of `margin` from the boundary."""
    continuum = Continuum(HorizonKernel(radius), num_cells, dimension=dimension)
    z = continuum.sample(cosine)
    actual = continuum.apply(z).flatten()
    laplacian = -dimension * math.pi**2 * z.flatten()
    keep = continuum.interior(margin) & (z.flatten().abs() > 0.2)
    return (actual / laplacian - 1)[keep]


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_second_moment_is_2d(dimension):
    """∫ ρ r² dy by the shells of the ball: 2 dr on a line, 2πr dr in the plane."""
    kernel = HorizonKernel(0.3)
    shells = 2 * 0.3**3 / 3 if dimension == 1 else 2 * math.pi * 0.3**4 / 4
    assert kernel.height(dimension) * shells == pytest.approx(2 * dimension, rel=1e-15)


@pytest.mark.parametrize("cells", [4, 10])
def test_on_a_line_it_tends_to_the_second_derivative_with_order_2(cells):
    errors = [
        float(relative_errors(radius, round(cells / radius), 1, 0.2).abs().max())
        for radius in (0.2, 0.1, 0.05, 0.025)
    ]
    assert all(1.9 < p < 2.1 for p in order(errors)), errors


@pytest.mark.parametrize(("dimension", "cells"), [(1, 40), (2, 10)])
def test_the_error_is_the_next_term_of_its_expansion(dimension, cells):
    radius = 0.1
    expected = -(radius**2) * LEADING[dimension] * dimension * math.pi**2
    actual = relative_errors(radius, round(cells / radius), dimension, 0.2)
    assert float((actual / expected - 1).abs().max()) < 0.03


def test_with_a_fixed_horizon_the_mesh_converges_to_the_integral():
    """∫_{|s| ≤ δ} 3/δ³ (cos π(x+s) − cos πx) ds = 6/δ³ (sin(πδ)/π − δ) cos πx."""
    radius = 0.2
    exact = 6 / radius**3 * (math.sin(math.pi * radius) / math.pi - radius) / -(math.pi**2)
    errors = [
        float((relative_errors(radius, n, 1, 0.25) + 1 - exact).abs().max()) for n in (50, 100, 200, 400)
    ]
    assert all(1.9 < p < 2.1 for p in order(errors)), errors


LENGTH = "radius must be a number > 1e-70 and finite"


@pytest.mark.parametrize(
    ("radius", "message"),
    [
        *((radius, LENGTH) for radius in (-1.0, math.nan, math.inf, 1e-200, "1")),
        (1e9, "spans .* cells .*; use a smaller radius"),
        (0.01, "radius = 0.01 is less than a cell, 0.1; use num_cells > 100"),
    ],
)
def test_a_radius_that_cannot_be_meant_is_refused(radius, message):
    with pytest.raises(ValueError, match=message):
        Continuum(HorizonKernel(radius), 10)
