"""The jump process on a GPU: the CPU's numbers, and walkers with the right law."""

import pytest
import torch
from chains import drift, surprise

from nonloc.ops import Affinity, SparseAffinity
from nonloc.processes import JumpProcess
from problems import features, relative

pytestmark = pytest.mark.gpu


def dense(device):
    x = features("heat", "row", batch=1, positions=12).to(device)
    return Affinity(x, x, "heat", "row", 0.3)


def sparse(device):
    return SparseAffinity(drift(12, 0.7).matrix.to(device))


@pytest.mark.parametrize("make", [dense, sparse])
def test_numbers_are_those_of_the_cpu(make):
    here, there = JumpProcess(make("cpu")), JumpProcess(make("cuda"))
    assert relative(there.stationary_law().cpu(), here.stationary_law()) < 1e-13
    for method in ("dense", "lanczos"):
        for absolute in (False, True):
            found = there.spectral_gap(absolute=absolute, method=method).value.cpu()
            assert relative(found, here.spectral_gap(absolute=absolute, method=method).value) < 1e-9
    assert relative(there.mixing_time().exact.cpu(), here.mixing_time().exact) < 1e-5
    assert there.is_reversible() == here.is_reversible()


@pytest.mark.parametrize("make", [dense, sparse])
def test_walkers_have_the_law_of_the_master_equation(make):
    process = JumpProcess(make("cuda"))
    generator = torch.Generator("cuda").manual_seed(0)
    final = process.sample_paths(100_000, 3, start=0, step_size=0.8, only_final=True, generator=generator)
    law = torch.linalg.matrix_power(process.transition_matrix(0.8)[0], 3)[0]
    assert surprise(torch.bincount(final, minlength=12).cpu(), law.cpu()) < 1


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(ValueError, match="use torch.Generator"):
        JumpProcess(dense("cuda")).sample_paths(3, 1, generator=torch.Generator())
