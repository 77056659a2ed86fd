"""simulate with a source and with fixed values: harmonic extensions, dense solutions, and what is no longer claimed."""

import pytest
import torch
from generators import generator_matrix, path_graph

from nonloc.processes import STEPPERS, DampedFlow, Diffusion, JumpProcess, neighbors, simulate
from problems import affinity, generator, relative, signal

each_stepper = pytest.mark.parametrize("stepper", STEPPERS)


def ends(size):
    fixed = torch.zeros(size, dtype=torch.bool)
    fixed[0] = fixed[-1] = True
    return fixed


def random_state(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


@pytest.mark.parametrize(
    ("stepper", "h", "steps"), [("euler", 0.4, 1200), ("exact", 500.0, 1), ("implicit", 1e12, 2)]
)
def test_on_a_path_with_fixed_ends_the_steady_state_is_linear(stepper, h, steps):
    z = random_state(2, 9, 3)
    run = simulate(Diffusion(path_graph(9)), z, num_steps=steps, step_size=h, stepper=stepper, fixed=ends(9))
    along = torch.linspace(0, 1, 9, dtype=torch.float64).view(1, -1, 1)
    assert relative(run.final, z[:, :1] + along * (z[:, -1:] - z[:, :1])) <= 1e-11
    assert torch.equal(run.states[:, :, [0, -1]], z[None, :, [0, -1]].expand(len(run), -1, -1, -1))


@pytest.mark.parametrize("normalize", ["row", "none", "sinkhorn"])
def test_the_steady_state_is_the_harmonic_extension_on_a_graph(normalize):
    process = Diffusion(neighbors(random_state(60, 2), 6, scale="auto", normalize=normalize))
    z, fixed = random_state(1, 60, 2, seed=1), torch.arange(60) % 9 == 0
    run = simulate(process, z, num_steps=2, step_size=1e13, stepper="implicit", fixed=fixed)
    matrix = generator_matrix(process, z[..., :1])[0]
    expected = torch.linalg.solve(matrix[~fixed][:, ~fixed], -matrix[~fixed][:, fixed] @ z[0, fixed])
    assert relative(run.final[0, ~fixed], expected) <= 1e-10


@pytest.mark.parametrize("process", [Diffusion, DampedFlow])
@each_stepper
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_a_step_is_that_of_the_dense_affine_system(kind, stepper, process):
    driven = process(affinity(kind), weight=torch.tensor([[0.5, 0.2], [-0.1, 0.7]], dtype=torch.float64))
    z, source = signal(driven.affinity, 2), random_state(2, 6, 2, seed=5)
    fixed = torch.tensor([[True] + 5 * [False], [False, False, True, True, False, False]])
    h = 0.3
    run = simulate(driven, z, num_steps=1, step_size=h, stepper=stepper, source=source, fixed=fixed)
    moves = (~fixed).unsqueeze(-1).expand_as(z).flatten(1)
    matrix, vector, f = generator_matrix(driven, z), z.flatten(1), source.flatten(1)
    for sample in range(2):
        rows = moves[sample]
        inner = matrix[sample][rows][:, rows]
        rate = (matrix[sample] @ vector[sample] + f[sample])[rows]
        # The solution of dx/dt = A x + r with x(0) = 0, by each method.
        identity = torch.eye(len(inner), dtype=torch.float64)
        change = {
            "euler": h * rate,
            "exact": torch.linalg.solve(inner, (torch.matrix_exp(h * inner) - identity) @ rate),
            "implicit": torch.linalg.solve(identity - h * inner, h * rate),
        }[stepper]
        expected = vector[sample].clone()
        expected[rows] += change
        assert relative(run.final[sample].flatten(), expected) <= 1e-12


@each_stepper
def test_a_source_moves_the_mean_by_its_own_mean_and_no_weighted_mean_is_claimed(stepper):
    """On a symmetric kernel diffusion keeps the mean, so what is left is d mean / dt = mean of f."""
    process, z, source = Diffusion(path_graph(7)), random_state(1, 7, 1), random_state(1, 7, 1, seed=1)
    run = simulate(process, z, num_steps=10, step_size=0.2, stepper=stepper, source=source)
    expected = run.mean[0] + run.times.view(-1, 1, 1) * source.mean()
    assert relative(run.mean, expected) <= 1e-12
    assert run.weighted_mean is None
    assert simulate(process, z, num_steps=1, fixed=ends(7)).weighted_mean is None
    assert simulate(process, z, num_steps=1).weighted_mean is not None


def test_steps_that_are_too_large_are_noticed():
    z = random_state(1, 9, 1)
    with pytest.warns(UserWarning, match="its changes grow"):
        run = simulate(
            Diffusion(path_graph(9)), z, num_steps=60, step_size=0.8, source=0 * z + 1, fixed=ends(9)
        )
    assert run.outcome.ending == "diverged"


def test_the_limit_that_is_named_is_that_of_what_moves():
    """Between two fixed ends L is 2, and the limit 1; that of a free path of three is 2/3."""
    z = torch.tensor([[[0.0], [1.0], [0.0]]], dtype=torch.float64)
    run = simulate(Diffusion(path_graph(3)), z, num_steps=9, step_size=1.5, throw=False, fixed=ends(3))
    assert "beyond the limit of stability, which Lanczos estimates at 1;" in run.outcome.message


def test_a_source_may_widen_the_range_of_a_kernel_that_is_not_symmetric():
    process = Diffusion(affinity("gaussian"))
    z = 1e-3 * signal(process.affinity, 1)
    safe = process.range_euler_step()
    source = torch.zeros(1, 6, 1, dtype=torch.float64)
    source[0, 0] = 1
    run = simulate(process, z, num_steps=20, step_size=1.01 * safe, source=source)
    assert float(run.final.max() - run.final.min()) > 2 * float(z.max() - z.min())
    assert run.outcome.ending == "finished"


Z = torch.ones(2, 5, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"source": torch.ones(5)}, r"broadcasts to z0's \[2, 5, 3\], got \[5\]; .*source.view\(1, -1, 1\)"),
        ({"source": torch.ones(2, 4, 3)}, r"broadcasts to z0's \[2, 5, 3\], got \[2, 4, 3\]"),
        ({"source": 1.0}, "got float"),
        ({"source": torch.full((1, 5, 1), torch.inf)}, "source has values that are not finite"),
        ({"fixed": torch.ones(5)}, r"fixed must be a bool tensor \[5\] or \[2, 5\], got \[5\] torch.float32"),
        ({"fixed": torch.ones(4, dtype=torch.bool)}, r"got \[4\] torch.bool"),
        ({"fixed": [0]}, "got list"),
    ],
)
def test_wrong_arguments_name_the_fix(keywords, message):
    with pytest.raises(ValueError, match=message):
        simulate(Diffusion(path_graph(5)), Z, num_steps=1, **keywords)


def test_a_law_has_neither():
    with pytest.raises(
        ValueError, match=r"a JumpProcess takes neither source nor fixed.*Diffusion\(affinity\)"
    ):
        simulate(JumpProcess(path_graph(5, "row")), Z / 5, num_steps=1, fixed=ends(5))
