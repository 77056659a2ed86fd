"""The modules on a CUDA device: the values and gradients of the CPU."""

import copy

import pytest
import torch

from nonloc.nn.insert import insert
from nonloc.nn.inspect import feature_trace
from nonloc.nn.stage import DiffusiveStage, OriginalStage

DEVICE = "cuda"
STAGES = [OriginalStage, DiffusiveStage]

pytestmark = pytest.mark.gpu


@pytest.fixture
def x():
    return torch.randn(2, 8, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, **keywords):
    torch.manual_seed(0)
    return kind(8, 3, init="torch", **keywords).double()


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("affinity", ["gaussian", "embedded_gaussian", "dot", "concat", "heat", "delta"])
def test_values_and_gradients_are_those_of_the_cpu(kind, share, affinity, x):
    here = made(kind, share_affinity=share, affinity=affinity, batch_norm=True)
    there = copy.deepcopy(here).to(DEVICE)
    grads = []
    for stage, image in ((here, x), (there, x.to(DEVICE))):
        result = stage(image)
        result.square().sum().backward()
        grads.append([result.detach().cpu(), *(parameter.grad.cpu() for parameter in stage.parameters())])
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("kind", STAGES)
def test_autocast(kind, x):
    stage, x = made(kind).float().to(DEVICE), x.float().to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        result = stage(x)
    assert result.dtype == torch.float32
    # A bfloat16 has 8 bits: a few roundings of 2⁻⁹ of numbers of size 1.
    assert (result - stage(x)).abs().max() < 0.05


def test_insert_and_trace_follow_the_device(x):
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1)).to(DEVICE)
    insert(model, {"0": DiffusiveStage(8, 2, init="torch")})
    (trace,) = feature_trace(model, x.float().to(DEVICE))
    assert trace["blocks"][1]["after"]["norm"] > 0


def test_functional_gradients_of_a_stable_stage_are_those_of_the_cpu():
    torch.manual_seed(0)
    here = DiffusiveStage(8, 2, weight="stable", init_std=0.3)
    x = torch.randn(2, 8, 6, 5)

    def gradients(stage, image):
        def loss(parameters):
            return torch.func.functional_call(stage, parameters, (image,)).square().sum()

        return torch.func.grad(loss)(dict(stage.named_parameters()))

    expected = gradients(here, x)
    actual = gradients(copy.deepcopy(here).to(DEVICE), x.to(DEVICE))
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name].cpu(), gradient, rtol=1e-3, atol=1e-4)
