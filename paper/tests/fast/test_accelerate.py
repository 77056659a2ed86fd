"""accelerate: the plain network to the bit on the CPU, with its names and hooks; and right on the kernels."""

import copy

import pytest
import torch
from fast_problems import interpret_launches, last
from torch import nn

from interpreted import interpreted
from nonloc_paper.fast import FastResidualBlock, accelerate, convolution, norm_relu
from nonloc_paper.networks.build import build
from nonloc_paper.networks.residual import Trunk, basic, bottleneck

SPECS = [
    "preresnet11/diffusive-1@2",
    "preresnet11-public/baseline",
    "preresnet8-basic/baseline",
    "restorer8/original-1@2",
]


def outputs_and_gradients(model, x):
    out = model(x)
    grads = torch.autograd.grad(out.square().sum(), [x, *model.parameters()])
    return [out.detach(), *grads]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("training", [True, False])
def test_on_the_cpu_it_is_the_plain_network_to_the_bit(spec, training):
    torch.manual_seed(0)
    plain = build(spec, init="torch").train(training)
    fast = accelerate(copy.deepcopy(plain))
    assert type(fast) is not type(plain)
    x = torch.randn(2, 3, 12, 12, requires_grad=True)
    assert all(map(torch.equal, outputs_and_gradients(fast, x), outputs_and_gradients(plain, x)))
    state, expected = fast.state_dict(), plain.state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_it_works_in_place_and_once():
    model = build("preresnet11/baseline")
    parameters = dict(model.named_parameters())
    assert accelerate(model) is model
    types = [type(module) for module in model.modules()]
    assert [type(module) for module in accelerate(model).modules()] == types
    assert types.count(FastResidualBlock) == 3
    assert all(dict(model.named_parameters())[name] is value for name, value in parameters.items())


def test_a_module_in_the_place_of_a_convolution_is_called():
    torch.manual_seed(2)
    plain = bottleneck(4, 3, 6)
    plain.convolutions[0] = nn.Sequential(plain.convolutions[0], nn.Dropout(0.0))
    x = torch.randn(2, 4, 5, 6)
    assert torch.equal(accelerate(copy.deepcopy(plain))(x), plain(x))


def test_another_model_stays_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert [type(module) for module in accelerate(model)] == [nn.Conv2d, nn.BatchNorm2d]


def test_hooks_see_the_inputs_outputs_and_gradients_of_a_block():
    torch.manual_seed(1)
    trunk = accelerate(Trunk([bottleneck(4, 3, 4), basic(4, 4), basic(4, 4)], {}).eval())
    x = torch.randn(2, 4, 6, 6)
    seen, grads = [], []
    trunk.blocks[1].register_forward_hook(lambda block, inputs, output: seen.extend([*inputs, output]))
    trunk.blocks[0].register_full_backward_hook(lambda block, inputs, outputs: grads.append(outputs[0]))
    trunk(x.requires_grad_()).sum().backward()
    first = trunk.blocks[0](x)
    assert torch.equal(seen[0], first)
    assert torch.equal(seen[1], trunk.blocks[1](first))
    assert grads[0].shape == x.shape


@pytest.mark.parametrize("spec", ["preresnet11/baseline", "restorer8/baseline"])
def test_converted_norms_keep_their_relu(spec):
    torch.manual_seed(0)
    model = accelerate(build(spec).train())
    x = torch.randn(4, 3, 16, 16)
    model(x)
    expected = model.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert any(isinstance(module, nn.SyncBatchNorm) for module in converted.modules())
    torch.testing.assert_close(converted.eval()(x), expected)


@pytest.fixture(scope="module")
def kernels():
    """The modules with interpreted kernels: (convolution, norm)."""
    with (
        interpreted("nonloc_paper.fast.convolution_kernels") as first,
        interpreted("nonloc_paper.fast.norm_relu_kernels") as second,
    ):
        yield first, second


@pytest.fixture
def calls(kernels, monkeypatch):
    """The names of the launches, by interpreted kernels, for channels-last features on the CPU."""
    return interpret_launches(monkeypatch, dict(zip((convolution, norm_relu), kernels, strict=True)))


def randomize(model):
    """Move the norms away from their initial values."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.bias, module.running_mean):
                nn.init.normal_(values, std=0.3)


def check_against_float64(model, x):
    """Train one batch on the kernels and in float64: outputs, gradients and buffers."""
    randomize(model)
    exact = copy.deepcopy(model).double()
    fast = accelerate(copy.deepcopy(model)).to(memory_format=torch.channels_last)
    wanted = outputs_and_gradients(exact, x.double().requires_grad_())
    found = outputs_and_gradients(fast, last(x).requires_grad_())
    names = ["outputs", "x", *(name for name, _ in exact.named_parameters())]
    for name, one, other in zip(names, found, wanted, strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(other.abs().max()) + 1e-9, name
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name].double(), value.double(), rtol=1e-4, atol=1e-5)


def small_trunk(is_public):
    """Shapes that do not change, statistics and sums passed on, a stage, strides in 1×1 and 3×3 convolutions."""
    blocks = [
        bottleneck(4, 3, 6, is_public=is_public),
        bottleneck(6, 3, 6, is_public=is_public),
        bottleneck(6, 3, 6, is_public=is_public),
        bottleneck(6, 3, 8, stride=2, is_public=is_public),
        basic(8, 5, stride=2),
    ]
    return Trunk(blocks, {1: lambda channels: nn.Conv2d(channels, channels, 1, bias=False)})


@pytest.mark.parametrize("is_public", [False, True])
def test_blocks_on_the_kernels_have_the_gradients_of_float64(calls, is_public):
    torch.manual_seed(9)
    check_against_float64(small_trunk(is_public), torch.randn(2, 4, 5, 6))
    # Not inside a convolution: the first norm, those after a stage and before a shortcut that is one; with a stride in
    # a 3×3 convolution, all of that block.
    assert calls.count("moments_and_activation") == (7 if is_public else 5)
    # The norm before a 1×1 convolution to fewer channels has its gradient from that.
    assert (calls.count("gradients"), calls.count("feature_gradient")) == (13, 1)
    # 17 convolutions in the blocks; with a stride in the 3×3, or in a shortcut from x, torch convolves.
    convolutions = 13 if is_public else 15
    assert calls.count("convolve") == convolutions
    assert calls.count("weight_gradient") + calls.count("pointwise_gradients") == convolutions


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["preresnet11/diffusive-1@2", "preresnet8-basic/baseline", "restorer8/baseline"]
)
def test_networks_on_the_kernels_have_the_gradients_of_float64(calls, spec):
    torch.manual_seed(9)
    check_against_float64(build(spec, init="torch"), torch.randn(2, 3, 8, 8))
    assert "gradients" in calls


@pytest.mark.parametrize("is_public", [False, True])
def test_evaluation_on_the_kernels(calls, is_public):
    torch.manual_seed(3)
    plain = small_trunk(is_public).eval()
    randomize(plain)
    x = torch.randn(2, 4, 5, 6)
    fast = accelerate(copy.deepcopy(plain)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = plain.to(memory_format=torch.channels_last)(last(x))
        assert not calls, "the plain network calls no kernel"
        torch.testing.assert_close(fast(last(x)), expected, rtol=1e-4, atol=1e-5)
    assert calls.count("activation") == 14
