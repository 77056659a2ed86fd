"""Lanczos: the largest eigenvalue of each sample, also where the space is soon exhausted."""

import pytest
import torch

from nonloc.processes.matrix_free.lanczos import largest_eigenvalue
from problems import generator, relative


def test_lanczos_finds_the_largest_eigenvalue_of_each_sample():
    values = torch.stack([torch.linspace(-1, 0.9, 300), torch.linspace(-1, -0.5, 300)]).double()
    start = torch.rand(2, 300, generator=generator(), dtype=torch.float64)
    found, residual = largest_eigenvalue(lambda v: values * v, start)
    assert relative(found, values[:, -1]) < 1e-9
    assert bool((residual < 1e-4).all())


def test_lanczos_ends_with_an_exhausted_space():
    values = torch.tensor([[-0.7, -0.2, -0.2]], dtype=torch.float64)
    found, residual = largest_eigenvalue(lambda v: values * v, torch.ones_like(values))
    assert float(found) == pytest.approx(-0.2, abs=1e-14)
    assert float(residual) == 0
