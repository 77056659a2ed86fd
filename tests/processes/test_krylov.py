"""exp(tA) z against the dense exponential, where the space suffices and where time must be divided."""

import math

import pytest
import torch

from nonloc.processes import krylov as module
from nonloc.processes.krylov import KrylovSpace, dense_exponential, exponential_action, lanczos
from problems import generator, relative


def system(size=60, batch=2, seed=0, symmetric=False):
    """A [B, N, N] with |A| of about 1, and z [B, N]."""
    a = torch.randn(batch, size, size, dtype=torch.float64, generator=generator(seed)) / size**0.5
    z = torch.randn(batch, size, dtype=torch.float64, generator=generator(seed + 1))
    return (a + a.mT) / 2 if symmetric else a, z


def action(a, z, time):
    return exponential_action(lambda v: (a @ v.unsqueeze(-1)).squeeze(-1), z, time)


def dense(a, z, time):
    return (torch.matrix_exp(time * a) @ z.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("time", [1e-3, 1.0, 20.0])
def test_it_is_the_dense_exponential(time, sign, symmetric):
    a, z = system(symmetric=symmetric)
    truth = dense(sign * a, z, time)
    assert float(((action(sign * a, z, time) - truth).norm(dim=-1) / truth.norm(dim=-1)).max()) <= 1e-11


def test_a_state_too_large_for_the_basis_gets_a_smaller_one(monkeypatch):
    a, z = system(symmetric=True)
    monkeypatch.setattr(module, "BASIS_ENTRIES", 2 * 60 * 12)
    assert KrylovSpace(lambda v: v, z, 40).largest == 12
    assert relative(action(a, z, 5.0), dense(a, z, 5.0)) <= 1e-11


def test_an_exhausted_space_is_exact_for_every_time():
    # z of the first sample lies in an invariant space of dimension 2, that of the second is an eigenvector.
    a = torch.diag(torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64)).expand(2, -1, -1)
    z = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0]], dtype=torch.float64)
    truth = z * torch.exp(torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64) * 30)
    assert float((action(a, z, 30.0) / truth - 1)[z != 0].abs().max()) <= 1e-3
    assert float((action(a, z, 30.0) - truth).abs().max()) <= 1e-15


def test_samples_of_very_different_size_are_each_exact():
    a, z = system(batch=3)
    z = z * torch.tensor([1e-200, 1.0, 1e200], dtype=torch.float64).unsqueeze(-1)
    truth = dense(a, z, 2.0)
    size = z.abs().amax(-1, keepdim=True)
    assert relative(action(a, z, 2.0) / size, truth / size) <= 1e-11


def test_zero_stays_zero_beside_others():
    a, z = system()
    z[0] = 0
    actual = action(a, z, 1.0)
    assert bool((actual[0] == 0).all())
    assert relative(actual[1], dense(a, z, 1.0)[1]) <= 1e-12


def test_growth_beyond_the_largest_number_is_not_finite_and_ends():
    a = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    actual = action(a, torch.ones(1, 3, dtype=torch.float64), 1e4)
    assert not bool(torch.isfinite(actual).any())


def test_a_state_that_fades_out_of_the_numbers_is_zero():
    """What is left of it on the way is below the normal numbers, and must not be divided by."""
    z = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    for _ in range(3):
        z = exponential_action(lambda v: -v, z, 360.0)
    assert z.tolist() == [[0.0, 0.0]]


def test_a_time_at_which_rounding_decides_is_refused_with_one_that_is_short_enough():
    a = torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"a step of 1e\+16 is too long .* use step_size ≤ \d\.\de\+12"):
        exponential_action(lambda v: v @ a, z, 1e16)
    actual = exponential_action(lambda v: v @ a, z, 1e10)
    assert float((actual - 0.5).abs().max()) <= 1e-4


def test_nan_is_handed_on():
    a, z = system()
    z[0, 0] = torch.nan
    assert bool(action(a, z, 1.0)[0].isnan().any())


def test_no_sample_and_no_time():
    a, z = system()
    assert action(a[:0], z[:0], 1.0).shape == (0, 60)
    assert torch.equal(action(a, z, 0.0), z)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("angle", [0.005, 0.04, 10.0])
def test_a_rotation_by_the_dense_exponential(angle, batch):
    cos, sin = math.cos(angle), math.sin(angle)
    generator = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=torch.float64).expand(batch, 2, 2)
    truth = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64).expand(batch, 2, 2)
    assert bool(((dense_exponential(generator) - truth).abs() <= 4e-15).all())


def test_float32_reaches_its_own_rounding():
    a, z = system()
    truth = dense(a.float().double(), z.float().double(), 2.0)
    actual = action(a.float(), z.float(), 2.0)
    assert actual.dtype == torch.float32
    assert relative(actual.double(), truth) <= 5e-6


def test_arnoldis_relation_and_an_orthonormal_basis():
    a, z = system()
    space = KrylovSpace(lambda v: (a @ v.unsqueeze(-1)).squeeze(-1), z, 12)
    space.extend(5)
    space.extend(50)
    assert space.is_full
    basis = space.basis
    assert relative(a @ basis[:, :-1].mT, basis.mT @ space.hessenberg) <= 1e-14
    assert relative(basis @ basis.mT, torch.eye(13, dtype=torch.float64).expand(2, -1, -1)) <= 1e-14


@pytest.mark.parametrize("is_enough", [None, lambda high, residual: residual <= 1e-5 * (1 - high)])
def test_lanczos_finds_the_extreme_eigenvalues_of_each_sample(is_enough):
    values = torch.stack([torch.linspace(-1, 0.9, 300), torch.linspace(-1, -0.5, 300)]).double()
    start = torch.rand(2, 300, generator=generator(), dtype=torch.float64)
    low, high, residual = lanczos(lambda v: values * v, start, 150 if is_enough is None else 3000, is_enough)
    assert relative(high, values[:, -1]) < 1e-9
    assert relative(low, values[:, 0]) < 1e-9
    assert bool((residual < 1e-4).all())


@pytest.mark.parametrize("is_enough", [None, lambda high, residual: residual < 0])
def test_lanczos_ends_with_an_exhausted_space(is_enough):
    values = torch.tensor([[-0.7, -0.2, -0.2]], dtype=torch.float64)
    low, high, residual = lanczos(lambda v: values * v, torch.ones_like(values), 60, is_enough)
    assert float(low) == pytest.approx(-0.7, abs=1e-14)
    assert float(high) == pytest.approx(-0.2, abs=1e-14)
    assert float(residual) <= 1e-15
