"""(I − hA) x = z: conjugate gradients and GMRES against the dense solution, and the honest end where there is none."""

import pytest
import torch

from nonloc.processes.solvers import NotSolvedError, solve_implicit
from problems import generator


def system(size=80, batch=2):
    """A [B, N, N] that is not symmetric, with eigenvalues around −1.5, and z [B, N]."""
    a = torch.randn(batch, size, size, dtype=torch.float64, generator=generator(0)) / size**0.5
    z = torch.randn(batch, size, dtype=torch.float64, generator=generator(1))
    return a - 1.5 * torch.eye(size, dtype=torch.float64), z


def solve(a, z, step, weights=None):
    return solve_implicit(lambda v: (a @ v.unsqueeze(-1)).squeeze(-1), z, step, weights)


def residual(a, z, step, x):
    """Of each sample, relative to |z|, the largest."""
    left = x - step * (a @ x.unsqueeze(-1)).squeeze(-1)
    return float(((z - left).norm(dim=-1) / z.norm(dim=-1)).max())


def weighted_laplacian(size=80):
    """−D⁻¹(D − S) with a random symmetric S ≥ 0: self-adjoint and dissipative in the weights D."""
    s = torch.rand(2, size, size, dtype=torch.float64, generator=generator(2))
    s = s + s.mT
    degrees = s.sum(-1)
    return s / degrees.unsqueeze(-1) - torch.eye(size, dtype=torch.float64), degrees


@pytest.mark.parametrize("step", [0.01, 1.0, 100.0])
def test_conjugate_gradients_in_the_weights(step):
    a, weights = weighted_laplacian()
    z = system()[1]
    x = solve(a, z, step, weights)
    assert residual(a, z, step, x) <= 1e-12
    truth = torch.linalg.solve(torch.eye(80, dtype=torch.float64) - step * a, z)
    assert float((x - truth).abs().max()) <= 1e-11


@pytest.mark.parametrize("step", [0.01, 1.0, 10.0])
def test_gmres_without_weights(step):
    a, z = system()
    assert residual(a, z, step, solve(a, z, step)) <= 1e-12


def test_gmres_takes_over_where_the_weights_see_too_little():
    a, z = system()
    half = torch.ones(1, 80, dtype=torch.float64)
    half[:, 40:] = 0
    assert residual(a, z, 1.0, solve(a, z, 1.0, half)) <= 1e-12


def test_gmres_starts_anew_when_its_space_is_full():
    # A shift that needs more vectors than a space has.
    a = 3 * torch.diag(torch.linspace(-100, -1, 400, dtype=torch.float64)).unsqueeze(0)
    a = a + torch.diag(torch.ones(399, dtype=torch.float64), 1)
    z = torch.ones(1, 400, dtype=torch.float64)
    assert residual(a, z, 1.0, solve(a, z, 1.0)) <= 1e-12


@pytest.mark.parametrize("diagonal", [[1.0, -1.0], [1.0 + 1e-16, 0.2, -1.0]], ids=["singular", "nearly so"])
def test_a_singular_system_is_not_solved_by_rounding_and_the_error_names_the_residual(diagonal):
    a = torch.diag(torch.tensor(diagonal, dtype=torch.float64)).unsqueeze(0)
    message = r"the residual is \d.*\|z\| after .* \(nearly\) singular.* stepper=\"exact\""
    with pytest.raises(NotSolvedError, match=message):
        solve(a, torch.ones(1, len(diagonal), dtype=torch.float64), 1.0)


def test_a_zero_sample_is_its_own_solution():
    a, z = system()
    z[1] = 0
    x = solve(a, z, 1.0)
    assert bool((x[1] == 0).all())
    expected = torch.linalg.solve(torch.eye(80, dtype=torch.float64) - a[0], z[0])
    assert float((x[0] - expected).abs().max()) <= 1e-11


def test_nan_and_overflow_are_handed_on():
    a, z = system()
    z[0, 0] = torch.nan
    assert not bool(torch.isfinite(solve(a, z, 1.0)).all())
    assert not bool(torch.isfinite(solve(1e9 * a, torch.ones_like(z), 1e308)).all())


@pytest.mark.parametrize("size", [1e-320, 1e-160, 1e300])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_a_state_of_any_size_is_solved_like_any_other(size, is_weighted):
    """Squares of such numbers are 0 or infinite; the solution is the same but for its scale."""
    a, weights = weighted_laplacian()
    z = system()[1]
    actual = solve(a, size * z, 1.0, weights if is_weighted else None)
    # What is left of a number below the normal ones has few digits.
    accuracy = 1e-11 if size > 1e-310 else 1e-3
    assert float((actual / size - solve(a, z, 1.0, weights)).abs().max()) <= accuracy


def test_a_step_that_rounding_hides_is_no_solution():
    a, weights = weighted_laplacian()
    with pytest.raises(NotSolvedError, match="h is too large for this process; use a smaller step_size"):
        solve(a, system()[1], 1e300, weights)


def test_no_sample():
    a, z = system()
    assert solve(a[:0], z[:0], 1.0).shape == (0, 80)
