"""The continuum operator: its discretisation tends to integrals that are known, with the order of its rule."""

import math

import pytest
import torch
from chains import order

from nonloc.ops import SparseAffinity
from nonloc.processes import Continuum, HorizonKernel, JumpProcess, simulate
from problems import relative


def one_and_x(x):
    return torch.cat([torch.ones_like(x), x], -1)


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
    found = continuum.apply(continuum.sample(z))[0, :, 0]
    return float((found - truth(continuum.points)).abs().max())


@pytest.mark.parametrize("rule", ["midpoint", "gauss"])
def test_a_constant_kernel_takes_z_to_its_mean_minus_z(rule):
    continuum = Continuum(lambda x, y: torch.ones(()), 9, rule=rule)
    z = continuum.sample(cosine)
    mean = continuum.quadrature.integral(z)
    assert relative(continuum.apply(z), mean.unsqueeze(1) - z) < 1e-15


@pytest.mark.parametrize("kind", ["features", "function"])
class TestAPolynomialKernel:
    def made(self, kind, num_cells, rule):
        if kind == "features":
            return Continuum("dot", num_cells, features=one_and_x, rule=rule)
        return Continuum(lambda x, y: 1 + (x * y).sum(-1), num_cells, rule=rule)

    def test_midpoints_are_of_order_2(self, kind):
        errors = [error(self.made(kind, n, "midpoint"), square, of_square) for n in (20, 40, 80, 160)]
        assert all(1.95 < p < 2.05 for p in order(errors)), errors

    def test_two_gauss_points_are_exact(self, kind):
        assert error(self.made(kind, 2, "gauss"), square, of_square) < 1e-15


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


def test_the_kernel_of_the_paper_is_that_of_features_of_the_points():
    continuum = Continuum("gaussian", 5, features=lambda x: torch.sin(x), scale=0.5)
    u = torch.sin(continuum.points)
    z = continuum.sample(cosine)
    rho = torch.exp(0.5 * u * u.T) * continuum.weights
    expected = rho @ z[0] - rho.sum(-1, keepdim=True) * z[0]
    assert relative(continuum.apply(z)[0], expected) < 1e-14


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


def test_the_reversed_process_is_the_reversed_operator():
    continuum = Continuum("heat", 6)
    z = continuum.sample(cosine)
    assert torch.equal(continuum.diffusion(backwards=True).rate(z), -continuum.diffusion().rate(z))


def test_interior_points_keep_their_distance():
    assert Continuum("heat", 10).interior(0.2).tolist() == [False] * 2 + [True] * 6 + [False] * 2


def test_a_function_that_vanishes_somewhere_is_stored_without_it():
    continuum = Continuum(lambda x, y: ((x - y).abs() < 0.15).double().squeeze(-1), 10)
    assert isinstance(continuum.affinity, SparseAffinity)
    assert continuum.affinity.matrix.values().numel() == 10 + 2 * 9


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
        ((lambda x, y: 1.0, 5), {}, r"kernel must give values \[5, 5\].*got float"),
        (("heat", 5), {"rule": "trapezoid"}, "choose one of midpoint, gauss"),
        ((lambda x, y: x, 20_000), {}, "is tabulated, and M = 20000"),
    ],
)
def test_what_is_asked_for_wrongly(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        Continuum(*arguments, **keywords)


@pytest.mark.parametrize("function", [lambda x: 1.0, lambda x: torch.tensor(1.0), lambda x: x[:2]])
def test_a_function_without_a_value_at_every_point_is_refused(function):
    with pytest.raises(ValueError, match=r"function must give \[M\] or \[M, C\] for the 3 points, got"):
        Continuum("heat", 3).sample(function)


def test_one_cell_has_nowhere_to_go():
    continuum = Continuum("heat", 1)
    assert continuum.apply(continuum.sample(lambda x: 7 * x)).tolist() == [[[0.0]]]


@pytest.mark.parametrize(
    ("continuum", "text"),
    [
        (Continuum("heat", 10, rule="gauss"), "Continuum(heat none, gauss, d = 1, M = 10)"),
        (
            Continuum(lambda x, y: (x * y).sum(-1), 3, dimension=2, normalize="row"),
            "Continuum(ρ(x, y) row, midpoint, d = 2, M = 9)",
        ),
        (
            Continuum(HorizonKernel(0.3), 10),
            "Continuum(HorizonKernel(radius=0.3) none, midpoint, d = 1, M = 10)",
        ),
    ],
)
def test_it_says_what_it_is(continuum, text):
    assert repr(continuum) == text
