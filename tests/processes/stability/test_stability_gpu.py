"""Certificates on a CUDA device: the verdicts of the CPU."""

import pytest
import torch

from nonloc.nn.stage import DiffusiveStage
from nonloc.ops import Affinity
from nonloc.processes.stability import certify, cfl_limit
from problems import generator

DEVICE = "cuda"

pytestmark = pytest.mark.gpu


def points(seed=0):
    return torch.randn(2, 12, 3, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("exact_up_to", [1024, 1])
@pytest.mark.parametrize(
    ("normalize", "separate"),
    [("row", False), ("none", False), ("sinkhorn", False), ("row", True), ("none", True)],
)
def test_limits_and_verdicts_are_those_of_the_cpu(normalize, separate, exact_up_to):
    x, y = points(), points(1)
    found = []
    for device in ("cpu", DEVICE):
        left = x.to(device)
        affinity = Affinity(left, y.to(device) if separate else left, "gaussian", normalize)
        limit = cfl_limit(affinity, exact_up_to=exact_up_to)
        weights = [factor * limit.limit * torch.eye(2, dtype=torch.float64) for factor in (0.5, 2.5)]
        verdicts = [certify(affinity, [w], exact_up_to=exact_up_to).verdict for w in weights]
        found.append((limit.kind, verdicts, limit.limit))
    assert found[0][:2] == found[1][:2]
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("affinity", ["heat", "embedded_gaussian"])
def test_a_stable_stage_has_the_values_and_gradients_of_the_cpu_and_its_certificate(affinity, dtype):
    torch.manual_seed(0)
    here = DiffusiveStage(8, 4, weight="stable", affinity=affinity, init="torch").to(dtype)
    x = torch.randn(2, 8, 4, 5, generator=generator(2), dtype=dtype)
    results = []
    for device in ("cpu", DEVICE):
        stage = here.to(device)
        stage.zero_grad()
        result = stage(x.to(device))
        result.square().sum().backward()
        results.append([result.detach().cpu(), *(p.grad.cpu().clone() for p in stage.parameters())])
        assert certify(stage, x.to(device)).verdict == "stable"
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


def test_a_stable_stage_compiles():
    torch.manual_seed(0)
    stage = DiffusiveStage(8, 4, weight="stable", init="torch").to(DEVICE)
    x = torch.randn(2, 8, 4, 5, device=DEVICE)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(stage, fullgraph=True)(x), stage(x), rtol=1e-4, atol=1e-5)
