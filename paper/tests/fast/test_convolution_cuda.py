"""Convolution on a GPU: against float64, the same bits every time, in a captured graph, and in a whole network."""

import pytest
import torch
import torch.nn.functional as F
from convolution_problems import PASSES, expected, problem, worst
from torch import nn

from nonloc_paper.fast.convolution import MOST_CHANNELS, Convolution
from nonloc_paper.networks.build import build

pytestmark = pytest.mark.gpu

# (kernel, channels in and out, size): those of the PreResNets, and some that no rule was made for.
SHAPES = [
    (3, 3, 16, 32), (3, 16, 16, 32), (3, 32, 32, 16), (3, 64, 64, 8), (3, 64, 64, 16), (3, 128, 128, 8),
    (1, 16, 16, 32), (1, 16, 64, 32), (1, 64, 16, 32), (1, 64, 32, 16), (1, 64, 128, 16), (1, 32, 128, 16),
    (1, 128, 32, 16), (1, 128, 64, 8), (1, 128, 256, 8), (1, 64, 256, 8), (1, 256, 64, 8),
    (3, 7, 20, 9), (1, 20, 7, 5), (3, 1, 1, 3),
]  # fmt: skip
# The largest error may be so many times that of cuDNN: both round sums of float32 once, and a tie may go either way.
FACTOR = 1.5


@pytest.fixture
def all_own(monkeypatch):
    for name in PASSES:
        monkeypatch.setitem(MOST_CHANNELS, name, {1: 256, 3: 256})


def twins(*arguments, **options):
    torch.manual_seed(5)
    module = Convolution(*arguments, **options).cuda().to(memory_format=torch.channels_last)
    plain = nn.Conv2d(*arguments, **options).cuda().to(memory_format=torch.channels_last)
    plain.load_state_dict(module.state_dict())
    return module, plain


def both_ways(shape, batch, dtype):
    """A module, its plain twin, images and a gradient, on the device."""
    kernel, channels, out_channels, size = shape
    torch.manual_seed(size)
    x, weight, grad = (t.cuda() for t in problem(kernel, channels, out_channels, batch, size, size, dtype))
    module, plain = twins(channels, out_channels, kernel, padding=kernel // 2, bias=False)
    for one in (module, plain):
        one.to(dtype).weight.data.copy_(weight)
    return module, plain, x.requires_grad_(), grad


def passes(module, x, grad):
    out = module(x)
    return [out, *torch.autograd.grad(out, [x, module.weight], grad)]


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("batch", [128, 80, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_cuda_every_pass_against_float64(shape, dtype, batch):
    module, plain, x, grad = both_ways(shape, batch, dtype)
    found = passes(module, x, grad)
    assert type(found[0].grad_fn).__name__ == "_FusedBackward"
    wanted = expected(x, module.weight, grad)
    for name, one, other, exact in zip(PASSES, found, passes(plain, x, grad), wanted, strict=True):
        assert one.dtype == dtype
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert worst(one.detach(), exact) <= FACTOR * worst(other.detach(), exact) + 1e-6, name


@pytest.mark.parametrize("shape", SHAPES[:7])
def test_cuda_every_pass_as_the_table_has_it(shape):
    module, plain, x, grad = both_ways(shape, 128, torch.bfloat16)
    found = passes(module, x, grad)
    wanted = expected(x, module.weight, grad)
    for name, one, other, exact in zip(PASSES, found, passes(plain, x, grad), wanted, strict=True):
        assert worst(one.detach(), exact) <= FACTOR * worst(other.detach(), exact) + 1e-6, name


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[0], SHAPES[3], SHAPES[14]])
def test_cuda_same_bits_every_time(shape):
    module, _, x, grad = both_ways(shape, 128, torch.bfloat16)
    results = [passes(module, x, grad) for _ in range(3)]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.usefixtures("all_own")
def test_cuda_evaluation_of_many_images():
    module, plain, x, _ = both_ways((3, 16, 16, 32), 1000, torch.bfloat16)
    with torch.no_grad():
        found, other = module(x), plain(x)
        exact = F.conv2d(x.double(), module.weight.double(), padding=1)
    assert worst(found, exact) <= FACTOR * worst(other, exact)


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cuda_autocast_is_that_of_torchs_convolution(dtype):
    """Weights and images of float32: rounded before the convolution, and their gradients are float32 again."""
    module, plain = twins(3, 16, 3, padding=1, bias=False)
    torch.manual_seed(1)
    x = torch.randn(8, 3, 12, 10, device="cuda").contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    with torch.autocast("cuda", dtype):
        out, other = module(x), plain(x)
    assert type(out.grad_fn).__name__ == "_FusedBackward"
    assert out.dtype == other.dtype == dtype
    grad = torch.randn_like(out)
    wanted = expected(x.to(dtype), module.weight.to(dtype), grad)
    found = [out, *torch.autograd.grad(out, [x, module.weight], grad)]
    others = [other, *torch.autograd.grad(other, [x, plain.weight], grad)]
    for name, one, two, exact in zip(PASSES, found, others, wanted, strict=True):
        assert one.dtype == two.dtype
        assert one.stride() == two.stride()
        assert worst(one.detach(), exact) <= FACTOR * worst(two.detach(), exact) + 1e-6, name


def half(*shape):
    return torch.randn(shape, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("x", "options"),
    [
        pytest.param(lambda: half(2, 4, 6, 6).contiguous(), {}, id="channels first"),
        pytest.param(lambda: half(2, 4, 6, 6).float(), {}, id="float32"),
        pytest.param(lambda: half(2, 4, 6, 6), {"stride": 2}, id="stride"),
        pytest.param(lambda: half(2, 4, 6, 6), {"bias": True}, id="bias"),
        pytest.param(lambda: half(2, 4, 6, 6), {"groups": 2}, id="groups"),
        pytest.param(lambda: half(2, 4, 6, 6), {"dilation": 2}, id="dilation"),
        pytest.param(lambda: half(2, 4, 6, 6), {"padding": 0}, id="no padding"),
        pytest.param(lambda: half(2, 4, 6, 6), {"padding_mode": "circular"}, id="another padding"),
        pytest.param(lambda: half(2, 4, 6, 6), {"kernel_size": 5}, id="a large kernel"),
        pytest.param(lambda: half(2, 4, 6, 6), {"kernel_size": (3, 1)}, id="an oblong kernel"),
        pytest.param(lambda: half(0, 4, 6, 6), {}, id="no images"),
    ],
)
@pytest.mark.usefixtures("all_own")
def test_cuda_falls_back_to_plain_torch(x, options):
    x = x()
    options = {"kernel_size": 3, "padding": 1, "bias": False, **options}
    module, plain = (m.to(x.dtype) for m in twins(4, 8, **options))
    out = module(x)
    assert type(out.grad_fn).__name__ != "_FusedBackward"
    assert torch.equal(out, plain(x))


@pytest.mark.usefixtures("all_own")
def test_cuda_not_fused_can_be_differentiated_twice():
    module, _, x, _ = both_ways((3, 4, 4, 5), 2, torch.bfloat16)
    module.fused = False
    (grad,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert second.isfinite().all()
    assert second.abs().max() > 0


@pytest.mark.usefixtures("all_own")
def test_cuda_captured_graph_convolves_what_its_input_holds():
    module, plain, x, grad = both_ways((3, 16, 16, 12), 8, torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        passes(module, x, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = passes(module, x, grad)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, device="cuda") + seed)
        graph.replay()
        for one, other in zip(found, passes(module, x, grad), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(found, passes(plain, x, grad), strict=True):
            torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6 * float(other.abs().max()))


def one_batch(network, x, y, autocasts):
    with torch.autocast("cuda", torch.bfloat16, enabled=autocasts):
        loss = F.cross_entropy(network(x).float(), y)
    return [loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("spec", ["preresnet20/baseline", "preresnet20-basic/baseline"])
@pytest.mark.parametrize("owns_all", [False, True])
def test_cuda_network_with_and_without_on_one_batch(spec, owns_all, monkeypatch, request):
    """Bfloat16 by autocast; both are held to float64 in the Euclidean norm of every gradient."""
    if owns_all:
        request.getfixturevalue("all_own")
    torch.manual_seed(5)
    network = build(spec).cuda().to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (32,), device="cuda")
    exact_network = build(spec).double().cuda()
    exact_network.load_state_dict(network.state_dict())
    wanted = one_batch(exact_network, x.double(), y, False)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    errors = {}
    for fused in (True, False):
        network.load_state_dict(start)
        for module in network.modules():
            if isinstance(module, Convolution):
                module.fused = fused
        found = one_batch(network, x, y, True)
        errors[fused] = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    assert max(errors[True]) <= 1.5 * max(errors[False])
    # Rounding to bfloat16 is what both are wrong by, and it is by about as much in every layer.
    for one, other in zip(errors[True], errors[False], strict=True):
        assert one <= 2 * other + 0.02


def test_cuda_every_convolution_of_the_bottleneck_network_has_its_own_weight_gradient(monkeypatch):
    from nonloc_paper.fast import convolution_launch

    calls = []
    plain = convolution_launch.weight_gradient
    monkeypatch.setattr(
        convolution_launch, "weight_gradient", lambda *given: calls.append(given) or plain(*given)
    )
    network = build("preresnet20/baseline").cuda().to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", torch.bfloat16):
        network(x).float().sum().backward()
    assert len(calls) == sum(isinstance(module, Convolution) for module in network.modules()) == 22


def test_cuda_compiled_it_gives_the_same_outputs():
    module, plain, x, _ = both_ways((3, 4, 8, 6), 4, torch.bfloat16)
    torch.testing.assert_close(torch.compile(module)(x), plain(x))
