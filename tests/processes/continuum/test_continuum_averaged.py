"""The paper's averaged kernel matrix lacks the measure of a cell, and its rows are what can sum to 1."""

import math

import pytest
import torch

from nonloc.processes import cell_kernel
from problems import relative


def density(x, y):
    """1 + x cos πy: what leaves x goes somewhere, ∫ p dy = 1; what arrives at y is 1 + cos(πy)/2."""
    return 1 + (x * torch.cos(math.pi * y)).sum(-1)


@pytest.mark.parametrize("num_cells", [5, 40])
def test_the_average_sums_to_the_number_of_cells(num_cells):
    sums = cell_kernel(density, num_cells, form="average").sum(-1)
    assert relative(sums, torch.full_like(sums, num_cells)) < 1e-14


@pytest.mark.parametrize("num_cells", [5, 40])
def test_with_the_measure_of_a_cell_rows_sum_to_1(num_cells):
    sums = cell_kernel(density, num_cells).sum(-1)
    assert relative(sums, torch.ones_like(sums)) < 1e-14


def test_columns_sum_to_what_arrives_and_not_to_1():
    num_cells = 40
    edges = torch.linspace(0, 1, num_cells + 1, dtype=torch.float64)
    arriving = 1 + 0.5 * num_cells * torch.sin(math.pi * edges).diff() / math.pi
    sums = cell_kernel(density, num_cells).sum(0)
    assert relative(sums, arriving) < 1e-14
    assert float((sums - 1).abs().max()) > 0.4


def test_both_sum_to_1_for_a_symmetric_density():
    kernel = cell_kernel(lambda x, y: 1 + 0.5 * (torch.cos(math.pi * x) * torch.cos(math.pi * y)).sum(-1), 16)
    assert relative(kernel.sum(0), torch.ones(16)) < 1e-14
    assert relative(kernel.sum(1), torch.ones(16)) < 1e-14


def test_an_entry_is_the_integral_over_its_cell():
    edges = torch.tensor([0.25, 0.5], dtype=torch.float64)
    expected = 0.25 + 0.625 * torch.sin(math.pi * edges).diff() / math.pi
    assert relative(cell_kernel(density, 4)[2, 1], expected[0]) < 1e-14


def test_in_the_plane():
    kernel = cell_kernel(lambda x, y: 1 + 0.3 * x[..., 0] * torch.cos(math.pi * y[..., 1]), 4, dimension=2)
    assert kernel.shape == (16, 16)
    assert relative(kernel.sum(-1), torch.ones(16)) < 1e-13


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((None, 4), {}, r"density must be a function p\(x, y\) of points, got NoneType"),
        ((lambda x, y: 1.0, 4), {}, "density must give values .* got float"),
        ((lambda x, y: x - y, 4), {}, r"density must give values \[4, 32\].* got \[4, 32, 1\]"),
        ((lambda x, y: (x - y).sum(-1) / 0, 4), {}, "density gave values that are not finite"),
        ((density, 4), {"nodes": 0}, "nodes must be a whole number ≥ 1, got 0"),
        ((density, 0), {}, "num_cells must be a whole number ≥ 1"),
        ((density, 100_000), {}, "use fewer cells or nodes"),
    ],
)
def test_what_is_asked_for_wrongly(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        cell_kernel(*arguments, **keywords)


def test_one_cell_keeps_its_walker():
    assert cell_kernel(lambda x, y: torch.ones(()), 1).tolist() == [[pytest.approx(1, abs=1e-15)]]


def test_an_unknown_form_lists_the_choices():
    with pytest.raises(ValueError, match="choose one of average, probability"):
        cell_kernel(density, 4, form="paper")
