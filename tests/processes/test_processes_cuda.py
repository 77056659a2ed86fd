"""Processes and graphs on a GPU: the CPU's states and numbers."""

import pytest
import torch

from nonloc.ops import (
    NORMALIZATIONS,
    Affinity,
    SparseAffinity,
    apply_adjoint,
    diffuse,
    row_sums,
    self_adjoint_weights,
)
from nonloc.processes import DampedFlow, Diffusion, horizon, neighbors, simulate
from nonloc.processes.krylov import dense_exponential
from problems import features, generator, relative, signal

pytestmark = pytest.mark.gpu


def graph(device, normalize="row"):
    points = torch.rand(200, 2, dtype=torch.float64, generator=generator(0)).to(device)
    return neighbors(points, 6, scale=20.0, normalize=normalize)


def kernel(device, normalize="row"):
    x = features("heat", "symmetric", positions=40).to(device)
    return Affinity(x, x, "heat", normalize)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_a_sparse_kernel(normalize, channels):
    z = torch.randn(2, 200, channels, dtype=torch.float64, generator=generator(1))
    here, there = graph("cpu", normalize), graph("cuda", normalize)
    assert there.matrix.is_cuda
    for function in (diffuse, apply_adjoint):
        assert relative(function(there, z.cuda()).cpu(), function(here, z)) <= 1e-12
    assert relative(row_sums(there).cpu(), row_sums(here)) <= 1e-12
    assert relative(self_adjoint_weights(there).cpu(), self_adjoint_weights(here)) <= 1e-12


def test_a_directed_graph_has_no_weights_and_an_adjoint():
    dense = torch.rand(30, 30, dtype=torch.float64, generator=generator(2))
    a = SparseAffinity(dense.cuda().to_sparse_csr())
    p = torch.rand(1, 30, 2, dtype=torch.float64, generator=generator(3))
    assert self_adjoint_weights(a) is None
    truth = (dense / dense.sum(-1, keepdim=True)).T @ p
    assert relative(apply_adjoint(a, p.cuda()).cpu(), truth) <= 1e-13


def test_a_horizon():
    points = torch.rand(100, 2, generator=generator(0))
    here, there = horizon(points, 0.2, kernel="linear"), horizon(points.cuda(), 0.2, kernel="linear")
    assert torch.equal(there.matrix.to_dense().cpu(), here.matrix.to_dense())


@pytest.mark.parametrize("stepper", ["euler", "exact", "implicit"])
@pytest.mark.parametrize("make", [graph, kernel])
@pytest.mark.parametrize("process", [Diffusion, DampedFlow])
@pytest.mark.parametrize("backwards", [False, True])
def test_simulations(process, make, stepper, backwards):
    weight = torch.tensor([[0.1, 1.0], [-1.0, 0.3]], dtype=torch.float64)
    size = make("cpu").positions
    z = torch.randn(2, size, 2, dtype=torch.float64, generator=generator(4))
    runs = [
        simulate(
            process(make(device), weight=weight, backwards=backwards),
            z.to(device),
            num_steps=3,
            step_size=0.2,
            stepper=stepper,
        )
        for device in ("cpu", "cuda")
    ]
    for name in ("states", "mean", "weighted_mean", "variance", "energy"):
        here, there = (getattr(run, name) for run in runs)
        assert there.is_cuda
        assert relative(there.cpu(), here) <= 1e-11


def test_conjugate_gradients():
    a = kernel("cuda")
    run = simulate(Diffusion(a), signal(a).cuda(), num_steps=4, step_size=1e4, stepper="implicit")
    assert float((run.final - run.weighted_mean[0].unsqueeze(1)).abs().max()) <= 1e-6


@pytest.mark.parametrize("angle", [0.005, 0.04, 0.3])
def test_a_single_dense_exponential(angle):
    turn = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=torch.float64, device="cuda").unsqueeze(0)
    found = dense_exponential(turn)[0].cpu()
    angle = torch.tensor(angle, dtype=torch.float64)
    truth = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    assert relative(found, truth) <= 1e-15
