"""The integral part of ℒ is a Hilbert–Schmidt operator; the multiplication by the degree is not."""

import math
from itertools import pairwise

import pytest
import torch
from chains import order

from nonloc.ops import kernel_matrix
from nonloc.processes import Continuum, HorizonKernel, hilbert_schmidt_norm
from nonloc.processes.continuum import continuum as module


def product(x, y):
    return 1 + (x * y).sum(-1)


EXACT = math.sqrt(1 + 1 / 2 + 1 / 9)  # of 1 + xy


def test_gauss_points_give_it_exactly_for_a_polynomial():
    assert hilbert_schmidt_norm(Continuum(product, 3, rule="gauss")) == pytest.approx(EXACT, rel=1e-15)


def test_midpoints_are_of_order_2():
    errors = [abs(hilbert_schmidt_norm(Continuum(product, n)) - EXACT) for n in (10, 20, 40)]
    assert all(1.98 < p < 2.02 for p in order(errors)), errors


def test_a_kind_in_blocks_of_rows_gives_that_of_the_matrix(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 40)
    continuum = Continuum("heat", 5, dimension=2, rule="gauss", scale=2.0)
    rho = kernel_matrix(continuum.affinity)[0] / continuum.weights
    expected = (rho.square() * torch.outer(continuum.weights, continuum.weights)).sum().sqrt()
    assert hilbert_schmidt_norm(continuum) == pytest.approx(float(expected), rel=1e-14)


def test_it_is_the_norm_of_the_matrix_in_an_orthonormal_basis():
    continuum = Continuum("heat", 8, rule="gauss")
    root = continuum.weights.sqrt()
    matrix = root.unsqueeze(-1) * kernel_matrix(continuum.affinity)[0] / root
    assert hilbert_schmidt_norm(continuum) == pytest.approx(
        float(torch.linalg.matrix_norm(matrix)), rel=1e-14
    )


@pytest.mark.parametrize("kernel", [product, "heat"])
def test_under_refinement_only_the_integral_part_settles(kernel):
    meshes = [Continuum(kernel, n) for n in (50, 100, 200)]
    integral = [hilbert_schmidt_norm(c) for c in meshes]
    multiplication = [hilbert_schmidt_norm(c, "multiplication") for c in meshes]
    assert max(integral) / min(integral) < 1.001
    for coarse, fine in pairwise(multiplication):
        assert fine / coarse == pytest.approx(math.sqrt(2), rel=1e-3)


def test_a_horizon_kernel_has_a_norm_that_grows_as_it_shrinks():
    """(∬ ρ²)^½ is about (9/δ⁶ · 2δ)^½ on a line: the limit, a differential operator, has none."""
    wide, narrow = (hilbert_schmidt_norm(Continuum(HorizonKernel(r), 400)) for r in (0.04, 0.02))
    assert narrow / wide == pytest.approx(2**2.5, rel=0.05)


def test_an_unknown_part_lists_the_choices():
    with pytest.raises(ValueError, match="choose one of integral, multiplication"):
        hilbert_schmidt_norm(Continuum("heat", 3), "both")


def test_something_else_is_refused():
    with pytest.raises(ValueError, match="continuum must be a Continuum, got int"):
        hilbert_schmidt_norm(3)


def test_a_normalised_kernel_is_refused():
    with pytest.raises(ValueError, match='must have normalize="none"'):
        hilbert_schmidt_norm(Continuum("heat", 3, normalize="row"))
