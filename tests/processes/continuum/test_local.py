"""The local heat equation, and the reversal of time: ill-posed there, harmless here."""

import math
from itertools import pairwise

import pytest
import torch
from chains import order

from nonloc.ops import diffuse
from nonloc.processes import local_laplacian, quadrature, reversal_growth
from problems import relative

MESHES = (16, 32, 64, 128)


def mode(num_cells, wave, dimension=1):
    points = quadrature(num_cells, dimension=dimension).points
    return torch.cos(wave * math.pi * points).prod(-1).view(1, -1, 1)


@pytest.mark.parametrize("dimension", [1, 2])
def test_cosines_are_its_modes(dimension):
    """The reflecting boundary makes cos(kπx) an eigenvector, to −4d/h² sin²(kπh/2)."""
    actual = diffuse(local_laplacian(20, dimension=dimension), mode(20, 3, dimension))
    expected = -4 * dimension * 20**2 * math.sin(3 * math.pi / 40) ** 2 * mode(20, 3, dimension)
    assert relative(actual, expected) < 1e-12


class TestReversal:
    grown = tuple(reversal_growth(n) for n in MESHES)

    def test_the_local_rate_is_that_of_the_shortest_wave(self):
        for growth in self.grown:
            n = growth.num_cells
            assert growth.local_rate == pytest.approx(4 * n**2 * math.cos(math.pi / (2 * n)) ** 2, rel=1e-12)

    def test_the_nonlocal_rate_converges_with_the_mesh(self):
        rates = [growth.nonlocal_rate for growth in self.grown]
        steps = [abs(b - a) for a, b in pairwise(rates)]
        assert all(p > 1.9 for p in order(steps)), rates
        assert steps[-1] < 1e-4

    def test_the_nonlocal_rate_is_bounded_by_the_degree_on_every_mesh(self):
        limit = math.sqrt(math.pi) * math.erf(0.5)  # max_x ∫ exp(−(x − y)²) dy, at x = ½
        for growth in self.grown:
            assert growth.nonlocal_rate <= growth.largest_degree <= limit

    def test_a_kernel_that_is_not_positive_definite_stays_below_twice_the_degree(self):
        apart = reversal_growth(64, kernel=lambda x, y: ((x - 0.5) * (y - 0.5) < 0).double().squeeze(-1))
        assert apart.largest_degree == pytest.approx(0.5)
        assert apart.nonlocal_rate == pytest.approx(1.0)

    def test_a_kernel_that_is_not_symmetric_is_refused(self):
        with pytest.raises(ValueError, match="kernel must be symmetric"):
            reversal_growth(8, kernel=lambda x, y: (x + 2 * y).squeeze(-1))

    def test_a_mesh_too_fine_for_its_eigenvalues_is_refused(self):
        with pytest.raises(ValueError, match="must be at most 2048"):
            reversal_growth(50, dimension=2)
