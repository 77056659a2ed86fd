"""The continuum operator: its discretisation tends to integrals that are known, with the order of its rule."""

import math
from itertools import pairwise

import pytest
import torch
from chains import order

from nonloc.ops import kernel_matrix
from nonloc.processes import Continuum, JumpProcess, cell_kernel, hilbert_schmidt_norm, simulate
from nonloc.processes.continuum import continuum as module
from problems import relative


def one_and_x(x):
    return torch.cat([torch.ones_like(x), x], -1)


def product(x, y):
    return 1 + (x * y).sum(-1)


def square(x):
    return x[:, 0].square()


def of_square(x):
    """∫ (1 + xy) (y² − x²) dy."""
    x = x[:, 0]
    return 1 / 3 - x**2 + x / 4 - x**3 / 2


def cosine(x):
    return torch.cos(math.pi * x).prod(-1)


def of_cosine(x, scale=1.0):
    """∫ exp(−scale |x − y|²) (z(y) − z(x)) dy for z the product of cosines, by 60 Gauss points an axis."""
    rule = Continuum("heat", 60, dimension=x.shape[1], rule="gauss").quadrature
    weights = torch.exp(-scale * torch.cdist(x, rule.points).square()) * rule.weights
    return (weights * (cosine(rule.points) - cosine(x).unsqueeze(-1))).sum(-1)


def error(continuum, z, truth):
    actual = continuum.apply(continuum.sample(z))[0, :, 0]
    return float((actual - truth(continuum.points)).abs().max())


@pytest.mark.parametrize(("kernel", "options"), [("dot", {"features": one_and_x}), (product, {})])
def test_two_gauss_points_are_exact_for_a_polynomial(kernel, options):
    assert error(Continuum(kernel, 2, rule="gauss", **options), square, of_square) < 1e-15


@pytest.mark.parametrize("dimension", [1, 2])
class TestAHeatKernel:
    def test_midpoints_are_of_order_2(self, dimension):
        made = [Continuum("heat", n, dimension=dimension) for n in (8, 16, 32)]
        errors = [error(c, cosine, of_cosine) for c in made]
        assert all(1.9 < p < 2.1 for p in order(errors)), errors

    def test_gauss_points_converge_faster_than_every_power(self, dimension):
        made = [Continuum("heat", n, dimension=dimension, rule="gauss") for n in (2, 4, 8, 10)]
        errors = [error(c, cosine, of_cosine) for c in made]
        first, second = order(errors[:3])
        assert first > 7
        assert second > 20
        assert errors[-1] < 1e-14

    def test_a_function_and_a_kind_are_the_same(self, dimension):
        kind = Continuum("heat", 7, dimension=dimension, scale=3.0)
        function = Continuum(lambda x, y: torch.exp(-3 * (x - y).square().sum(-1)), 7, dimension=dimension)
        z = kind.sample(cosine)
        assert relative(function.apply(z), kind.apply(z)) < 1e-14


def test_solutions_converge_with_the_operator():
    """∂z = ℒz with ρ = 1 is z → mean + e^{−t} (z − mean)."""

    def final(num_cells):
        continuum = Continuum(lambda x, y: torch.ones(()), num_cells)
        z = simulate(continuum.diffusion(), continuum.sample(square), num_steps=1, stepper="exact").final[
            0, :, 0
        ]
        return float((z - (1 / 3 + math.exp(-1) * (square(continuum.points) - 1 / 3))).abs().max())

    errors = [final(n) for n in (10, 20, 40)]
    assert all(1.98 < p < 2.02 for p in order(errors)), errors


@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
def test_normalised_it_is_a_jump_process_whose_law_converges(normalize):
    """Under sinkhorn π is the measure; under row, of density ∫ ρ(x, y) dy up to a constant."""
    continuum = Continuum("heat", 12, rule="gauss", normalize=normalize)
    density = JumpProcess(continuum.affinity).stationary_law()[0] / continuum.weights
    degrees = torch.ones(12) if normalize == "sinkhorn" else self_integral(continuum.points[:, 0])
    assert relative(density / density[0], degrees / degrees[0]) < 1e-12


def self_integral(x):
    """∫ exp(−(x − y)²) dy on [0, 1]."""
    return math.sqrt(math.pi) / 2 * (torch.erf(x) + torch.erf(1 - x))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (("laplace", 5), {}, "kind='laplace' is unknown"),
        ((3.0, 5), {}, r"a function ρ\(x, y\) or a HorizonKernel, got float"),
        ((lambda x, y: x * y, 5), {}, r"kernel must give values \[5, 5\]"),
        ((lambda x, y: 1 / (x - y).squeeze(-1), 5), {}, "values that are not finite"),
        ((lambda x, y: x, 5), {"scale": 2.0}, "features and scale belong to a kind"),
        (("heat", 5), {"features": lambda x: x[:, 0]}, r"features must give \[M, k\] = \[5, k\]"),
        (("heat", 5), {"features": lambda x: x / 0}, "features gave values that are not finite"),
        ((lambda x, y: x, 20_000), {}, "is tabulated, and M = 20000"),
    ],
)
def test_what_is_asked_for_wrongly(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        Continuum(*arguments, **keywords)


def density(x, y):
    """1 + x cos πy: what leaves x goes somewhere, ∫ p dy = 1; what arrives at y is 1 + cos(πy)/2."""
    return 1 + (x * torch.cos(math.pi * y)).sum(-1)


def test_the_average_sums_to_the_number_of_cells():
    num_cells = 40
    sums = cell_kernel(density, num_cells, form="average").sum(-1)
    assert relative(sums, torch.full_like(sums, num_cells)) < 1e-14


def test_columns_sum_to_what_arrives_and_not_to_1():
    num_cells = 40
    edges = torch.linspace(0, 1, num_cells + 1, dtype=torch.float64)
    arriving = 1 + 0.5 * num_cells * torch.sin(math.pi * edges).diff() / math.pi
    sums = cell_kernel(density, num_cells).sum(0)
    assert relative(sums, arriving) < 1e-14
    assert float((sums - 1).abs().max()) > 0.4


def test_an_entry_is_the_integral_over_its_cell():
    edges = torch.tensor([0.25, 0.5], dtype=torch.float64)
    expected = 0.25 + 0.625 * torch.sin(math.pi * edges).diff() / math.pi
    assert relative(cell_kernel(density, 4)[2, 1], expected[0]) < 1e-14


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((None, 4), {}, r"density must be a function p\(x, y\) of points, got NoneType"),
        ((lambda x, y: x - y, 4), {}, r"density must give values \[4, 32\].* got \[4, 32, 1\]"),
        ((lambda x, y: (x - y).sum(-1) / 0, 4), {}, "density gave values that are not finite"),
        ((density, 4), {"nodes": 0}, "nodes must be a whole number ≥ 1, got 0"),
        ((density, 100_000), {}, "use fewer cells or nodes"),
    ],
)
def test_a_wrong_density_names_the_fix(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        cell_kernel(*arguments, **keywords)


EXACT = math.sqrt(1 + 1 / 2 + 1 / 9)  # of 1 + xy


def test_gauss_points_give_it_exactly_for_a_polynomial():
    assert hilbert_schmidt_norm(Continuum(product, 3, rule="gauss")) == pytest.approx(EXACT, rel=1e-15)


def test_a_kind_in_blocks_of_rows_gives_that_of_the_matrix(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 40)
    continuum = Continuum("heat", 5, dimension=2, rule="gauss", scale=2.0)
    rho = kernel_matrix(continuum.affinity)[0] / continuum.weights
    expected = (rho.square() * torch.outer(continuum.weights, continuum.weights)).sum().sqrt()
    assert hilbert_schmidt_norm(continuum) == pytest.approx(float(expected), rel=1e-14)


@pytest.mark.parametrize("kernel", [product, "heat"])
def test_under_refinement_only_the_integral_part_settles(kernel):
    meshes = [Continuum(kernel, n) for n in (50, 100, 200)]
    integral = [hilbert_schmidt_norm(c) for c in meshes]
    multiplication = [hilbert_schmidt_norm(c, "multiplication") for c in meshes]
    assert max(integral) / min(integral) < 1.001
    for coarse, fine in pairwise(multiplication):
        assert fine / coarse == pytest.approx(math.sqrt(2), rel=1e-3)


def test_a_normalised_kernel_is_refused():
    with pytest.raises(ValueError, match='must have normalize="none"'):
        hilbert_schmidt_norm(Continuum("heat", 3, normalize="row"))
