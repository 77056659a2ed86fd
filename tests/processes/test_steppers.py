"""The steppers on processes: the exact semigroup, backward Euler far beyond CFL, and the order of each."""

import pytest
import torch
from generators import generator_matrix, path_graph, vectors

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity
from nonloc.processes import STEPPERS, DampedFlow, Diffusion, Process, neighbors, simulate
from problems import affinity, features, generator, relative, signal, symmetric

C = 3
WEIGHTS = {
    "number": 1.0,
    "diagonal": torch.tensor([0.2, 1.0, 0.5], dtype=torch.float64),
    "definite": torch.tensor([[1.0, 0.3, 0.0], [0.3, 0.5, 0.1], [0.0, 0.1, 0.2]], dtype=torch.float64),
    "rotating": torch.tensor([[0.1, 1.0, 0.0], [-1.0, 0.1, 0.3], [0.0, 0.2, 0.5]], dtype=torch.float64),
}


@pytest.mark.parametrize(
    ("kind", "process", "weight", "backwards", "h"),
    [
        ("gaussian", Diffusion, "number", False, 5.0),
        ("gaussian", DampedFlow, "rotating", True, 0.1),
        ("gaussian", Diffusion, "definite", True, 0.1),
        ("heat", Diffusion, "rotating", False, 5.0),
        ("heat", DampedFlow, "diagonal", False, 0.1),
        ("heat", DampedFlow, "number", True, 5.0),
        ("dot", Diffusion, "diagonal", True, 5.0),
        ("dot", DampedFlow, "definite", False, 5.0),
        ("dot", DampedFlow, "number", False, 0.1),
        ("concat", Diffusion, "definite", False, 0.1),
        ("concat", DampedFlow, "rotating", False, 5.0),
        ("concat", Diffusion, "diagonal", True, 0.1),
    ],
)
def test_exact_is_the_dense_exponential(kind, process, weight, backwards, h):
    p = process(affinity(kind, positions=12), weight=WEIGHTS[weight], backwards=backwards)
    z = signal(p.affinity, C)
    truth = torch.matrix_exp(h * generator_matrix(p, z)) @ vectors(z)
    actual = vectors(STEPPERS["exact"](p, h)(z))
    assert float(((actual - truth).norm(dim=1) / truth.norm(dim=1)).max()) <= 1e-11


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("kind", ["heat", "concat"])
def test_implicit_is_the_dense_solution(kind, weight, backwards):
    p = Diffusion(affinity(kind, positions=12), weight=weight, backwards=backwards)
    z, h = signal(p.affinity, C), 0.3
    matrix = torch.eye(12 * C, dtype=torch.float64) - h * generator_matrix(p, z)
    actual = vectors(STEPPERS["implicit"](p, h)(z))
    assert float(((matrix @ actual - vectors(z)).norm(dim=1) / vectors(z).norm(dim=1)).max()) <= 1e-12
    assert relative(actual, torch.linalg.solve(matrix, vectors(z))) <= 1e-11


def test_implicit_takes_as_many_products_as_there_are_eigenvalues():
    """A star, by row: L has 0, 1 and 2, and in its own inner product conjugate gradients need one product for each."""

    class Counted(Diffusion):
        products = 0

        def rate(self, z):
            self.products += 1
            return super().rate(z)

    star = torch.zeros(10, 10, dtype=torch.float64)
    star[0, 1:] = star[1:, 0] = 1
    process = Counted(SparseAffinity(star.to_sparse_csr()))
    z = torch.randn(1, 10, C, generator=generator(1), dtype=torch.float64)
    STEPPERS["implicit"](process, 4.0)(z)
    assert process.products <= 12  # with those that look at the residual


@pytest.mark.parametrize(
    ("normalize", "h", "weight"),
    [(normalize, 1e7, "number") for normalize in NORMALIZATIONS]
    + [("row", 1e5, "rotating"), ("none", 1e7, "rotating")],
)
def test_implicit_is_stable_far_beyond_cfl(normalize, h, weight):
    """Steps of any length end in the weighted mean, channel by channel (both W have their spectrum in Re > 0)."""
    a, steps = symmetric("heat", normalize, positions=12), 8
    process = Diffusion(a, weight=WEIGHTS[weight])
    run = simulate(process, 3 + signal(a, C), num_steps=steps, step_size=h, stepper="implicit")
    modes = torch.linalg.eigvals(generator_matrix(process, signal(a, C)))
    slowest = float(modes.abs()[modes.abs() > 1e-9].min())
    # Each step divides the slowest mode by |1 + h λ|; the others are gone before it.
    left = 100 * (h * slowest - 1) ** -steps
    assert left < 1e-3
    solved = steps * 1e-12 * float(run.states[0].norm())  # what the residuals may add up to
    assert float((run.final - run.weighted_mean[0].unsqueeze(1)).abs().max()) <= left + solved
    assert float((run.weighted_mean - run.weighted_mean[0]).abs().max()) <= solved


def test_a_stepper_joins_by_one_entry(monkeypatch):
    def midpoint(process, step_size):
        return lambda z: z + step_size * process.rate(z + 0.5 * step_size * process.rate(z))

    monkeypatch.setitem(STEPPERS, "midpoint", midpoint)
    p = Diffusion(symmetric("heat"))
    z = signal(p.affinity)
    run = simulate(p, z, num_steps=1, step_size=0.5, stepper="midpoint")
    assert relative(run.final, z + 0.5 * p.rate(z) + 0.125 * p.rate(p.rate(z))) <= 1e-13


@pytest.mark.parametrize("stepper", ["exact", "implicit"])
def test_a_nonlinear_flow_is_refused_with_the_fix(stepper):
    flow = DampedFlow(lambda z: Affinity(z, z, "heat"))
    with pytest.raises(ValueError, match='linear in z.*use stepper="euler".*DampedFlow a fixed affinity'):
        simulate(flow, torch.ones(1, 4, 2), num_steps=1, stepper=stepper)


@pytest.mark.parametrize("stepper", ["exact", "implicit"])
def test_a_reaction_with_a_fixed_kernel_is_told_what_is_not_linear(stepper):
    class Reaction(Process):
        is_linear = False
        affinity = path_graph(4)

        def rate(self, z):
            return z - z**3

    with pytest.raises(
        ValueError, match=r"Reaction.is_linear is False\).*euler.*set is_linear = True"
    ) as error:
        simulate(Reaction(), torch.ones(1, 4, 2), num_steps=1, stepper=stepper)
    assert "follows" not in str(error.value)


@pytest.mark.parametrize("stepper", STEPPERS)
def test_a_sub_sampled_measure_of_zero_is_no_trouble(stepper):
    # A position of measure 0 receives and does not give: π is 0 there, and an implicit step must solve it too.
    x = features("heat", "row", positions=8)
    measure = torch.ones(8, dtype=torch.float64)
    measure[3] = 0
    p = Diffusion(Affinity(x, x, "heat", measure=measure))
    z, h = signal(p.affinity, C), 2.0
    a = generator_matrix(p, z)
    identity = torch.eye(8 * C, dtype=torch.float64)
    truth = {
        "euler": lambda: vectors(z) + h * a @ vectors(z),
        "exact": lambda: torch.matrix_exp(h * a) @ vectors(z),
        "implicit": lambda: torch.linalg.solve(identity - h * a, vectors(z)),
    }[stepper]()
    assert relative(vectors(STEPPERS[stepper](p, h)(z)), truth) <= 1e-12


@pytest.mark.parametrize("step_size", [3e6, 1e11])
def test_an_exact_step_far_beyond_rest_ends_there(step_size):
    torch.manual_seed(8)
    graph = neighbors(torch.rand(100, 2, dtype=torch.float64), 8, scale="auto")
    z = torch.randn(1, 100, 1, dtype=torch.float64)
    final = simulate(Diffusion(graph), z, num_steps=1, step_size=step_size, stepper="exact").final
    assert final.min() >= z.min() - 1e-12
    assert final.max() <= z.max() + 1e-12
    assert Diffusion(graph).rate(final).abs().max() < 1e-13
