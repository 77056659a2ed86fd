"""The kernels on a GPU: against float64, the same bits every time, in captured graphs, and in accelerated networks."""

import copy

import pytest
import torch
import torch.nn.functional as F
from fast_problems import (
    LAUNCHES,
    PASSES,
    check_norm,
    convolution_problem,
    exact_convolution,
    last,
    record_launches,
    worst,
)
from torch import nn

from nonloc_paper.fast import accelerate
from nonloc_paper.fast.convolution import MOST_CHANNELS, run_convolution
from nonloc_paper.fast.norm_relu import run_norm_relu, run_sum_norm_relu
from nonloc_paper.networks.build import build
from problems import capture

pytestmark = pytest.mark.gpu

# (kernel, channels in and out, size): those of the PreResNets, and some that no rule was made for.
SHAPES = [
    (3, 3, 16, 32), (3, 16, 16, 32), (3, 32, 32, 16), (3, 64, 64, 8), (3, 64, 64, 16), (3, 128, 128, 8),
    (1, 16, 16, 32), (1, 16, 64, 32), (1, 64, 16, 32), (1, 64, 32, 16), (1, 64, 128, 16), (1, 32, 128, 16),
    (1, 128, 32, 16), (1, 128, 64, 8), (1, 128, 256, 8), (1, 64, 256, 8), (1, 256, 64, 8),
    (3, 7, 20, 9), (1, 20, 7, 5), (3, 1, 1, 3),
]  # fmt: skip
# The largest error, as a multiple of cuDNN's: both round sums of float32 once, and a tie may go either way.
FACTOR = 1.5
NORM_TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


# Convolutions


@pytest.fixture
def all_own(monkeypatch):
    """Let the kernels do every pass."""
    for name in PASSES:
        monkeypatch.setitem(MOST_CHANNELS, name, {1: 256, 3: 256})


def make_problem(shape, batch, dtype):
    """A layer, images and a gradient, on the device."""
    kernel, channels, out_channels, size = shape
    torch.manual_seed(size)
    problem = convolution_problem(kernel, channels, out_channels, batch, size, size, dtype)
    x, weight, grad = (t.cuda() for t in problem)
    layer = nn.Conv2d(
        channels, out_channels, kernel, padding=kernel // 2, bias=False, device="cuda", dtype=dtype
    )
    layer.weight = nn.Parameter(weight)
    return layer, x.requires_grad_(), grad


def passes(out, layer, x, grad):
    return [out, *torch.autograd.grad(out, [x, layer.weight], grad)]


def check_passes(layer, x, grad):
    """Hold every pass to float64: at most FACTOR times as wrong as cuDNN."""
    out = run_convolution(layer, x)
    assert type(out.grad_fn).__name__ == "FastConvolutionBackward"
    found, others = passes(out, layer, x, grad), passes(layer(x), layer, x, grad)
    for name, one, other, exact in zip(
        PASSES, found, others, exact_convolution(x, layer.weight, grad), strict=True
    ):
        assert one.dtype == x.dtype
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert worst(one.detach(), exact) <= FACTOR * worst(other.detach(), exact) + 1e-6, name


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("batch", [128, 80, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_cuda_every_pass_against_float64(shape, dtype, batch):
    check_passes(*make_problem(shape, batch, dtype))


@pytest.mark.parametrize("shape", SHAPES[:7])
def test_cuda_the_passes_of_the_table_against_float64(shape):
    check_passes(*make_problem(shape, 128, torch.bfloat16))


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[0], SHAPES[3], SHAPES[14]])
def test_cuda_convolution_has_the_same_bits_every_time(shape):
    layer, x, grad = make_problem(shape, 128, torch.bfloat16)
    first, *others = [passes(run_convolution(layer, x), layer, x, grad) for _ in range(3)]
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.usefixtures("all_own")
def test_cuda_evaluation_of_many_images():
    layer, x, _ = make_problem((3, 16, 16, 32), 1000, torch.bfloat16)
    with torch.no_grad():
        found, other = run_convolution(layer, x), layer(x)
        exact = F.conv2d(x.double(), layer.weight.double(), padding=1)
    assert worst(found, exact) <= FACTOR * worst(other, exact)


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cuda_autocast_is_that_of_torch(dtype):
    """Weights and images of float32 are rounded before the convolution, and their gradients are float32 again."""
    layer, x, _ = make_problem((3, 3, 16, 12), 8, torch.float32)
    with torch.autocast("cuda", dtype):
        out, other = run_convolution(layer, x), layer(x)
    assert type(out.grad_fn).__name__ == "FastConvolutionBackward"
    grad = torch.randn_like(out)
    exact = exact_convolution(x.to(dtype), layer.weight.to(dtype), grad)
    found, others = passes(out, layer, x, grad), passes(other, layer, x, grad)
    for name, one, two, three in zip(PASSES, found, others, exact, strict=True):
        assert (one.dtype, one.stride()) == (two.dtype, two.stride())
        assert worst(one.detach(), three) <= FACTOR * worst(two.detach(), three) + 1e-6, name


@pytest.mark.usefixtures("all_own")
@pytest.mark.parametrize(
    ("change", "options"),
    [
        pytest.param(torch.Tensor.contiguous, {}, id="channels first"),
        pytest.param(torch.Tensor.float, {}, id="float32"),
        pytest.param(lambda x: x[:0], {}, id="no images"),
        *[
            pytest.param(lambda x: x, options, id=str(options))
            for options in (
                {"stride": 2},
                {"bias": True},
                {"groups": 2},
                {"dilation": 2},
                {"padding": 0},
                {"padding_mode": "circular"},
                {"kernel_size": 5},
                {"kernel_size": (3, 1)},
            )
        ],
    ],
)
def test_cuda_other_convolutions_are_plain_torch(change, options):
    x = change(last(torch.randn(2, 4, 6, 6, device="cuda").bfloat16()))
    options = {"kernel_size": 3, "padding": 1, "bias": False, **options}
    layer = nn.Conv2d(4, 8, **options).to("cuda", x.dtype, memory_format=torch.channels_last)
    out = run_convolution(layer, x)
    assert type(out.grad_fn).__name__ != "FastConvolutionBackward"
    assert torch.equal(out, layer(x))


@pytest.mark.usefixtures("all_own")
def test_cuda_captured_graph_convolves_what_its_input_holds():
    layer, x, grad = make_problem((3, 16, 16, 12), 8, torch.bfloat16)

    def work():
        return passes(run_convolution(layer, x), layer, x, grad)

    graph, found = capture(work)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, device="cuda") + seed)
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, work(), strict=True))
        for one, other in zip(found, passes(layer(x), layer, x, grad), strict=True):
            torch.testing.assert_close(one, other, rtol=2**-6, atol=2**-6 * float(other.abs().max()))


# Batch norm and ReLU


def make_norms(channels):
    """A norm with random parameters, and its copy in float64."""
    torch.manual_seed(4)
    norm = nn.BatchNorm2d(channels)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm.cuda(), copy.deepcopy(norm).double().cuda()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", list(NORM_TOLERANCE))
@pytest.mark.parametrize(
    "shape",
    [(2, 1, 1, 1), (3, 5, 7, 5), (128, 16, 32, 32), (128, 64, 32, 32), (100, 256, 8, 8), (2, 1000, 9, 3)],
)
def test_cuda_norm_against_float64(shape, dtype, training):
    norm, exact_norm = (module.train(training) for module in make_norms(shape[1]))
    x = last((2 * torch.randn(shape, device="cuda") + 1).to(dtype)).requires_grad_(training)
    exact = x.detach().double().requires_grad_(training)
    with torch.set_grad_enabled(training):
        out, before = run_norm_relu(norm, x), exact_norm(exact)
    assert out.dtype == dtype
    assert out.is_contiguous(memory_format=torch.channels_last)
    found, wanted = [out], [before.relu()]
    if training:
        assert type(out.grad_fn).__name__ == "FastNormReLUBackward"
        # At the kink rounding decides which of two right gradients is computed.
        grad = torch.where(before.abs() > 1e-4, torch.randn_like(x), 0)
        found += torch.autograd.grad(out, [x, norm.weight, norm.bias], grad)
        wanted += torch.autograd.grad(wanted[0], [exact, exact_norm.weight, exact_norm.bias], grad.double())
    check_norm(found, wanted, dtype, NORM_TOLERANCE)
    for name, value in exact_norm.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", list(NORM_TOLERANCE))
@pytest.mark.parametrize("stride", [1, 2])
def test_cuda_sum_norm_and_relu_against_float64(dtype, stride):
    """The gradient comes to the sum, through the activation and directly, and is the gradient to both terms."""
    norm, exact_norm = make_norms(64)
    torch.manual_seed(8)
    x, added = (last(torch.randn(16, 64, 9, 12, device="cuda").to(dtype)).requires_grad_() for _ in range(2))
    total, out = run_sum_norm_relu(norm, x, added, stride)
    torch.testing.assert_close(total, x + added, rtol=0, atol=0)
    more, grad = torch.randn_like(total), torch.randn_like(out)
    found = torch.autograd.grad(
        (out.double() * grad).sum() + (total.double() * more).sum(), [x, added, norm.weight, norm.bias]
    )
    assert torch.equal(found[0], found[1])
    exact = total.detach().double().requires_grad_()
    wanted = exact_norm(exact).relu()[:, :, ::stride, ::stride]
    exact_found = torch.autograd.grad(
        (wanted * grad).sum() + (exact * more).sum(), [exact, exact_norm.weight, exact_norm.bias]
    )
    check_norm((out, found[0], *found[2:]), (wanted, *exact_found), dtype, NORM_TOLERANCE)


def test_cuda_gradient_of_any_layout():
    norm, _ = make_norms(8)
    x = last(torch.randn(4, 8, 6, 6, device="cuda")).requires_grad_()
    one, other = (
        torch.autograd.grad(y.mean((2, 3)).square().sum(), x)[0]
        for y in (run_norm_relu(norm, x), norm(x).relu())
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("case", ["channels first", "float64", "gradients in eval mode"])
def test_cuda_other_norms_are_plain_torch(case):
    norm, exact_norm = make_norms(4)
    x = torch.randn(2, 4, 6, 6, device="cuda")
    if case == "float64":
        norm, x = exact_norm, last(x.double())
    elif case == "gradients in eval mode":
        norm, x = norm.eval(), last(x).requires_grad_()
    out = run_norm_relu(norm, x)
    assert type(out.grad_fn).__name__ == "ReluBackward0"
    assert torch.equal(out, norm(x).relu())


def test_cuda_norm_has_the_same_bits_every_time():
    norm, _ = make_norms(64)
    x = last(torch.randn(32, 64, 16, 16, device="cuda")).requires_grad_()
    grad, results = torch.randn_like(x), []
    for _ in range(3):
        out = run_norm_relu(norm, x)
        results.append([out, *torch.autograd.grad(out, [x, norm.weight, norm.bias], grad)])
    first, *others = results
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_cuda_captured_graph_normalizes_what_its_input_holds():
    norm, _ = make_norms(24)
    plain = copy.deepcopy(norm)
    x = last(torch.zeros(8, 24, 10, 10, device="cuda")).requires_grad_()
    grad = torch.randn_like(x)

    def work(out, module):
        return out, *torch.autograd.grad(out, [x, module.weight, module.bias], grad)

    state = copy.deepcopy(norm.state_dict())
    graph, found = capture(lambda: work(run_norm_relu(norm, x), norm))
    norm.load_state_dict(state)
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, device="cuda") + seed)
        graph.replay()
        for one, other in zip(found, work(plain(x).relu(), plain), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert int(norm.num_batches_tracked) == 3
    torch.testing.assert_close(norm.running_var, plain.running_var)


# Networks


def one_batch(network, x, y, dtype):
    """The loss and all gradients."""
    with torch.autocast("cuda", dtype, enabled=dtype == torch.bfloat16):
        loss = F.cross_entropy(network(x).float() if dtype == torch.bfloat16 else network(x), y)
    return [loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


def errors_on_one_batch(spec, dtype):
    """The error of the loss and of every gradient against float64, in the Euclidean norm: (accelerated, plain)."""
    torch.manual_seed(5)
    plain = build(spec).cuda().to(memory_format=torch.channels_last)
    x = last(torch.randn(32, 3, 32, 32, device="cuda"))
    y = torch.randint(0, 10, (32,), device="cuda")
    exact = one_batch(copy.deepcopy(plain).double(), x.double(), y, torch.float64)
    fast = accelerate(copy.deepcopy(plain))
    return [
        [
            float((a - b).norm() / b.norm())
            for a, b in zip(one_batch(network, x, y, dtype), exact, strict=True)
        ]
        for network in (fast, plain)
    ]


@pytest.mark.parametrize(
    "spec", ["preresnet20/baseline", "preresnet20-basic/baseline", "preresnet20-public/baseline"]
)
@pytest.mark.parametrize("owns_all", [False, True])
def test_cuda_accelerated_against_plain_in_bfloat16(spec, owns_all, request):
    if owns_all:
        request.getfixturevalue("all_own")
    fast, plain = errors_on_one_batch(spec, torch.bfloat16)
    assert max(fast) <= 1.5 * max(plain)
    # Both are wrong because they round to bfloat16, by about as much in every layer.
    for one, other in zip(fast, plain, strict=True):
        assert one <= 2 * other + 0.02


@pytest.mark.parametrize("spec", ["preresnet20/baseline", "preresnet20-basic/baseline"])
def test_cuda_accelerated_against_plain_in_float32(spec):
    """With tf32 off; at the kink of a ReLU rounding decides about single entries."""
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True, benchmark=False):
        fast, plain = errors_on_one_batch(spec, torch.float32)
    assert max(fast) < max(2 * max(plain), 1e-5)
    assert max(plain) < 1e-2


@pytest.fixture
def calls(monkeypatch):
    """The names of the launches."""
    return record_launches(monkeypatch, {module: module._kernels() for module in LAUNCHES})


# 22 convolutions and 19 norms. In the public layout two 3×3 convolutions and two shortcuts from x have a stride. Apart
# from convolutions are the norms of blocks with such a stride, the first norms of blocks that change the shape or
# follow one with such a stride, and the last norm; the others before a 3×3 convolution are activated apart.
@pytest.mark.parametrize(
    ("spec", "convolutions", "apart", "activated"),
    [("preresnet20/baseline", 22, 4, 6), ("preresnet20-public/baseline", 18, 10, 4)],
)
def test_cuda_accelerated_network_runs_through_the_kernels(calls, spec, convolutions, apart, activated):
    plain = build(spec).cuda().to(memory_format=torch.channels_last)
    network = accelerate(copy.deepcopy(plain))
    x = last(torch.randn(4, 3, 32, 32, device="cuda"))
    with torch.autocast("cuda", torch.bfloat16):
        plain(x).float().sum().backward()
        assert not calls
        network(x).float().sum().backward()
    assert calls.count("weight_gradient") + calls.count("pointwise_gradients") == convolutions
    assert calls.count("moments_and_activation") == apart
    assert calls.count("activation") == activated
    assert calls.count("gradients") + calls.count("feature_gradient") == 19
    assert 0 < calls.count("convolve") < convolutions
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        network.eval()(x)
    assert calls.count("activation") == activated + 19


def test_cuda_accelerated_network_has_the_same_bits_every_time_and_captured():
    torch.manual_seed(5)
    network = accelerate(build("preresnet29/baseline").cuda().to(memory_format=torch.channels_last))
    x, y = last(torch.randn(96, 3, 32, 32, device="cuda")), torch.randint(0, 10, (96,), device="cuda")

    def work():
        return one_batch(network, x, y, torch.bfloat16)

    results = [work() for _ in range(3)]
    graph, captured = capture(work)
    for _ in range(2):
        graph.replay()
        results.append([one.clone() for one in captured])
    first, *others = results
    # The loss and what comes from torch's own kernels are the same, too.
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_cuda_accelerated_networks_have_the_same_bits_side_by_side():
    """What a program takes before it is there is wrong only now and then, and on a busy GPU."""
    torch.manual_seed(6)
    network = accelerate(build("preresnet29/baseline").cuda().to(memory_format=torch.channels_last))
    x, y = last(torch.randn(128, 3, 32, 32, device="cuda")), torch.randint(0, 10, (128,), device="cuda")
    networks = [copy.deepcopy(network) for _ in range(12)]
    streams = [torch.cuda.Stream() for _ in networks]

    def work():
        found, current = [], torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        for stream, one in zip(streams, networks, strict=True):
            with torch.cuda.stream(stream):
                found.append(one_batch(one, x, y, torch.bfloat16))
        for stream in streams:
            current.wait_stream(stream)
        return found

    graph, found = capture(work)
    for _ in range(50):
        graph.replay()
        first, *others = found
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_cuda_accelerated_evaluation_against_plain():
    torch.manual_seed(7)
    plain = build("preresnet20/baseline").cuda().to(memory_format=torch.channels_last)
    x = last(torch.randn(64, 3, 32, 32, device="cuda"))
    plain(x)
    plain.eval()
    fast = accelerate(copy.deepcopy(plain))
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(x.double())
        with torch.autocast("cuda", torch.bfloat16):
            found, other = fast(x), plain(x)
    assert float((found - exact).norm()) <= 2 * float((other - exact).norm())


def test_cuda_compiled_code_is_plain_torch():
    torch.manual_seed(6)
    norm, _ = make_norms(8)
    x = last(torch.randn(4, 8, 6, 6, device="cuda"))
    expected = copy.deepcopy(norm)(x).relu()
    torch.testing.assert_close(torch.compile(lambda x: run_norm_relu(norm, x))(x), expected)
    layer, x, _ = make_problem((3, 4, 8, 6), 4, torch.bfloat16)
    torch.testing.assert_close(torch.compile(lambda x: run_convolution(layer, x))(x), layer(x))


def test_cuda_functional_gradients_are_plain_torch():
    torch.manual_seed(0)
    model = accelerate(build("preresnet11/baseline")).to("cuda", memory_format=torch.channels_last).eval()
    x = last(torch.randn(2, 3, 16, 16, device="cuda"))
    parameters = dict(model.named_parameters())

    def loss(values):
        return torch.func.functional_call(model, values, (x,)).square().sum()

    # By default torch's convolutions use tf32, whose error is larger than what is compared here.
    with torch.backends.cudnn.flags(allow_tf32=False, deterministic=True, benchmark=False):
        found = torch.func.grad(loss)(parameters)
        expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for name, gradient in zip(parameters, expected, strict=True):
        assert float((found[name] - gradient).norm() / gradient.norm()) < 1e-4, name
