"""Processes, certificates and graphs on a GPU: the CPU's numbers."""

import pytest
import torch
from chains import drift, surprise

from nonloc.nn.stage import DiffusiveStage
from nonloc.ops import (
    NORMALIZATIONS,
    Affinity,
    SparseAffinity,
    apply_adjoint,
    diffuse,
    row_sums,
    self_adjoint_weights,
)
from nonloc.processes import DampedFlow, Diffusion, JumpProcess, certify, cfl_limit, neighbors, simulate
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


@pytest.mark.parametrize(
    ("stepper", "backwards"),
    [("euler", False), ("euler", True), ("exact", False), ("exact", True), ("implicit", False)],
)
@pytest.mark.parametrize("make", [graph, kernel])
@pytest.mark.parametrize("process", [Diffusion, DampedFlow])
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
    actual = dense_exponential(turn)[0].cpu()
    angle = torch.tensor(angle, dtype=torch.float64)
    truth = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    assert relative(actual, truth) <= 1e-15


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
            actual = there.spectral_gap(absolute=absolute, method=method).value.cpu()
            assert relative(actual, here.spectral_gap(absolute=absolute, method=method).value) < 1e-9
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


def points(seed=0):
    return torch.randn(2, 12, 3, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("exact_up_to", [1024, 1])
@pytest.mark.parametrize(
    ("normalize", "separate"),
    [("row", False), ("none", False), ("sinkhorn", False), ("row", True), ("none", True)],
)
def test_limits_and_verdicts_are_those_of_the_cpu(normalize, separate, exact_up_to):
    x, y = points(), points(1)
    actual = []
    for device in ("cpu", "cuda"):
        left = x.to(device)
        affinity = Affinity(left, y.to(device) if separate else left, "gaussian", normalize)
        limit = cfl_limit(affinity, exact_up_to=exact_up_to)
        weights = [factor * limit.limit * torch.eye(2, dtype=torch.float64) for factor in (0.5, 2.5)]
        verdicts = [certify(affinity, [w], exact_up_to=exact_up_to).verdict for w in weights]
        actual.append((limit.kind, verdicts, limit.limit))
    assert actual[0][:2] == actual[1][:2]
    assert actual[0][2] == pytest.approx(actual[1][2], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("affinity", ["heat", "embedded_gaussian"])
def test_a_stable_stage_has_the_values_and_gradients_of_the_cpu_and_its_certificate(affinity, dtype):
    torch.manual_seed(0)
    here = DiffusiveStage(8, 4, weight="stable", affinity=affinity, init="torch").to(dtype)
    x = torch.randn(2, 8, 4, 5, generator=generator(2), dtype=dtype)
    results = []
    for device in ("cpu", "cuda"):
        stage = here.to(device)
        stage.zero_grad()
        result = stage(x.to(device))
        result.square().sum().backward()
        results.append([result.detach().cpu(), *(p.grad.cpu().clone() for p in stage.parameters())])
        assert certify(stage, x.to(device)).verdict == "stable"
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)
