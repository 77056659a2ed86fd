"""The kept matrix against the equations as written, where it is taken, and where it is not."""

import pytest
import torch

from nonloc.ops import NORMALIZATIONS, Affinity, SparseAffinity, adjoint, kernel_matrix, prepare
from nonloc.processes import Diffusion, JumpProcess, kernel, simulate
from problems import generator, relative

M = 40


def made(kind, normalize, form="plain", size=1.0, positions=M, dtype=torch.float64):
    x = size * torch.randn(2, positions, 3, dtype=torch.float64, generator=generator(1)).to(dtype)
    is_one_set = normalize in ("symmetric", "sinkhorn")
    y = (
        x
        if is_one_set
        else torch.randn(2, positions, 3, dtype=torch.float64, generator=generator(2)).to(dtype)
    )
    mask = measure = None
    if form in ("masked", "both"):
        mask = torch.rand(2, positions, generator=generator(3)) > 0.3
        if not is_one_set:
            mask[1] = False
    if form in ("measured", "both"):
        measure = torch.rand(positions, dtype=torch.float64, generator=generator(4)).to(dtype)
        measure[3] = 0
    return Affinity(x, y, kind, normalize, mask=mask, measure=measure)


@pytest.mark.parametrize("form", ["plain", "masked", "measured", "both"])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_it_is_the_kernel(kind, normalize, form, monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK_ENTRIES", 7 * M)  # several blocks, the last one smaller
    a = made(kind, normalize, form)
    assert relative(kernel.stored_matrix(a, torch.float64), kernel_matrix(a)) <= 1e-14


@pytest.mark.parametrize("size", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
def test_a_scaling_outside_the_range_of_numbers_is_found(kind, size):
    a = made(kind, "sinkhorn", size=size)
    assert relative(kernel.stored_matrix(a, torch.float64), kernel_matrix(a)) <= 1e-10


def test_it_is_kept_between_what_one_product_keeps_and_256_mebibytes():
    def keeps(positions, kind="heat", dtype=torch.float64, batch=1):
        x = torch.zeros(batch, positions, 1)
        return kernel.stores_matrix(Affinity(x, x, kind), dtype)

    assert not keeps(1000)  # there auto has it already
    assert keeps(1500)
    assert keeps(5792)
    assert not keeps(5793)
    assert keeps(8192, dtype=torch.float32)
    assert not keeps(4096, batch=3)
    assert not keeps(4096, kind="concat")


@pytest.fixture
def large():
    return made("heat", "row", positions=1500, dtype=torch.float32)


def test_a_simulation_by_the_matrix_is_the_one_without(large, monkeypatch):
    z = torch.randn(2, 1500, 2, generator=generator(5))
    kept = simulate(Diffusion(large), z, num_steps=3, step_size=0.5)
    monkeypatch.setattr(kernel, "LARGEST_MATRIX", 0)
    lean = simulate(Diffusion(large), z, num_steps=3, step_size=0.5)
    assert relative(kept.final, lean.final) <= 1e-5
    assert relative(kept.energy, lean.energy) <= 1e-5


def test_a_process_makes_the_matrix_once_and_a_kernel_that_follows_makes_none(large, monkeypatch):
    calls = []
    real = kernel.stored_matrix
    monkeypatch.setattr(kernel, "stored_matrix", lambda *args: calls.append(args) or real(*args))
    z = torch.zeros(2, 1500, 1)
    simulate(Diffusion(large), z, num_steps=2)
    assert len(calls) == 1
    simulate(Diffusion(lambda z: large), z, num_steps=2)
    assert len(calls) == 1


def test_laws_move_by_its_transpose():
    a = made("gaussian", "row", positions=1100)  # 2 × 1100² entries: more than one product keeps
    law = torch.rand(2, 1100, 1, dtype=torch.float64, generator=generator(6))
    assert relative(JumpProcess(a).rate(law), adjoint(a)(law) - law) <= 1e-12


def test_a_graph_stays_sparse():
    graph = SparseAffinity(torch.eye(3, dtype=torch.float64).to_sparse_csr())
    z = torch.randn(1, 3, 2, dtype=torch.float64, generator=generator(7))
    found = kernel.prepare_many(graph, torch.float64).apply(z)
    assert torch.equal(found, prepare(graph, torch.float64).apply(z))
