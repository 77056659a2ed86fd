"""energy: exact also where a mask leaves few positions and the signal is far from 0."""

import pytest
import torch

from nonloc.ops import Affinity, dirichlet_energy
from nonloc.processes import Diffusion

MASK = torch.tensor([[True, False, False, True, False, False]])


def all_ones(normalize="none"):
    """Ω_ij = 1 between two valid positions of six, with padding that must not be looked at."""
    x = torch.ones(1, 6, 1, dtype=torch.float64)
    x[~MASK] = torch.nan
    return Affinity(x, x, "dot", normalize, mask=MASK)


def two_values(low, high):
    z = torch.full((1, 6, 1), torch.nan, dtype=torch.float64)
    z[0, 0, 0], z[0, 3, 0] = low, high
    return z


@pytest.mark.parametrize(("normalize", "expected"), [("none", 4.0), ("row", 2.0), ("count", 2.0)])
def test_energy_of_two_valid_positions_far_from_zero(normalize, expected):
    """½ Σ_ij K_ij |z_i − z_j|² = K_01 · 2², and no digit of it is lost to a mean of 1e12."""
    z = two_values(1e12 - 1, 1e12 + 1)
    assert dirichlet_energy(all_ones(normalize), z).tolist() == [expected]
    assert Diffusion(all_ones(normalize)).energy(z).tolist() == [expected]


def test_a_masked_constant_has_no_energy_at_all():
    assert dirichlet_energy(all_ones(), two_values(1 / 3e-9, 1 / 3e-9)).tolist() == [0.0]


def test_a_sample_without_a_valid_position_has_no_energy():
    a = Affinity(torch.ones(1, 3, 1), torch.ones(1, 3, 1), "dot", mask=torch.zeros(1, 3, dtype=torch.bool))
    assert dirichlet_energy(a, torch.ones(1, 3, 1)).tolist() == [0.0]
