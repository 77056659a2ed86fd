"""Convolution's kernels in the interpreter, against torch's convolution in float64; the module on the CPU."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from convolution_problems import PASSES, expected, problem, worst
from poisoned import poisoned_memory, surrounded
from torch import nn

from benchmarks.profile_step import kind_of
from interpreted import interpreted
from nonloc_paper.fast import convolution
from nonloc_paper.fast.convolution import MOST_CHANNELS, Convolution, is_own
from nonloc_paper.networks.build import build

# Of the largest entry. The interpreter's products know no bfloat16.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2**-10}


@pytest.fixture(scope="module")
def launch():
    """The launches with interpreted kernels."""
    with interpreted("nonloc_paper.fast.convolution_launch") as module:
        yield module


# (kernel, channels in and out, batch, height, width); a tile of the convolution, positions × columns × outputs; and one
# of the weight gradient, group × rows × columns × outputs and the parts. One program and several, tiles that stand out
# over every edge, channels beside a power of 2, groups, and both sides of a product the larger one.
CASES = [
    ((3, 3, 16, 2, 6, 8), (32, 32, 16), (4, 16, 64, 64, 3)),
    ((3, 3, 16, 1, 5, 3), (16, 16, 16), (1, 16, 32, 16, 1)),
    ((3, 16, 16, 1, 7, 6), (32, 64, 16), (2, 16, 64, 32, 2)),
    ((3, 5, 7, 3, 5, 4), (16, 16, 16), (2, 16, 16, 16, 4)),
    ((3, 20, 18, 1, 3, 5), (64, 64, 16), (1, 16, 64, 16, 1)),
    ((3, 1, 1, 2, 1, 2), (16, 16, 16), (1, 16, 16, 16, 1)),
    ((1, 16, 16, 2, 4, 6), (32, 16, 16), (4, 16, 64, 64, 1)),
    ((1, 6, 40, 3, 5, 3), (16, 16, 32), (1, 16, 16, 64, 2)),
    ((1, 40, 6, 1, 7, 2), (16, 16, 16), (2, 16, 32, 16, 1)),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("sizes", "tile", "part_tile"), CASES)
def test_every_pass(launch, sizes, tile, part_tile, dtype):
    torch.manual_seed(sizes[1])
    x, weight, grad = problem(*sizes, dtype)
    wanted = expected(x, weight, grad)
    x, weight, grad = surrounded(x), surrounded(weight), surrounded(grad)
    tile = launch.Tile(*tile)
    with poisoned_memory():
        found = [
            launch.convolve(x, weight, tile=tile),
            launch.input_gradient(grad, weight, tile=tile),
            launch.weight_gradient(x, grad, weight, tile=launch.PartTile(*part_tile)),
        ]
    for name, one, other in zip(PASSES, found, wanted, strict=True):
        assert one.dtype == dtype
        assert one.is_contiguous(memory_format=torch.channels_last)
        assert worst(one, other) <= TOLERANCE[dtype], name


@pytest.mark.parametrize("sizes", [(3, 16, 16, 2, 8, 8), (3, 3, 16, 3, 8, 8), (1, 16, 24, 2, 5, 5)])
def test_every_pass_with_the_tiles_of_the_rules(launch, sizes):
    torch.manual_seed(2)
    x, weight, grad = problem(*sizes, torch.float32)
    with poisoned_memory():
        found = [
            launch.convolve(x, weight),
            launch.input_gradient(grad, weight),
            launch.weight_gradient(x, grad, weight),
        ]
    for name, one, other in zip(PASSES, found, expected(x, weight, grad), strict=True):
        assert worst(one, other) <= TOLERANCE[torch.float32], name


@pytest.mark.parametrize(
    "lay_out",
    [
        pytest.param(lambda w: w.contiguous(), id="channels first"),
        pytest.param(lambda w: w.transpose(0, 1).contiguous().transpose(0, 1), id="input channels first"),
        pytest.param(lambda w: w.transpose(2, 3).contiguous().transpose(2, 3), id="taps turned"),
    ],
)
def test_weights_may_lie_in_memory_as_they_like_and_their_gradient_lies_likewise(launch, lay_out):
    torch.manual_seed(3)
    x, weight, grad = problem(3, 4, 6, 1, 5, 4, torch.float32)
    wanted = expected(x, weight, grad)
    weight = lay_out(weight)
    found = [
        launch.convolve(x, weight),
        launch.input_gradient(grad, weight),
        launch.weight_gradient(x, grad, weight),
    ]
    assert found[2].stride() == weight.stride()
    for name, one, other in zip(PASSES, found, wanted, strict=True):
        assert worst(one, other) <= TOLERANCE[torch.float32], name


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_its_neighbours_and_nobody_else(launch, value):
    torch.manual_seed(4)
    x, weight, grad = problem(3, 5, 6, 2, 6, 7, torch.float32)
    x[1, 2, 3, 0] = value
    grad[0, 4, 2, 3] = value
    near = torch.zeros(2, 6, 7, dtype=torch.bool)
    near[1, 2:5, :2] = True
    assert torch.equal(~launch.convolve(x, weight).isfinite(), near[:, None].expand(-1, 6, -1, -1))
    near = torch.zeros(2, 6, 7, dtype=torch.bool)
    near[0, 1:4, 2:5] = True
    assert torch.equal(~launch.input_gradient(grad, weight).isfinite(), near[:, None].expand(-1, 5, -1, -1))
    found = launch.weight_gradient(x, grad, weight, tile=launch.PartTile(1, 16, 16, 16, 2)).isfinite()
    wanted = torch.ones_like(found)
    wanted[4] = False
    # The right tap of a pixel at the left edge would be seen from outside the image.
    wanted[:, 2, :, :2] = False
    assert torch.equal(found, wanted)


SHAPES = [
    (3, 3, 16, 32), (3, 16, 16, 32), (3, 32, 32, 16), (3, 64, 64, 8), (3, 64, 64, 16), (3, 128, 128, 8),
    (1, 16, 16, 32), (1, 16, 64, 32), (1, 64, 32, 16), (1, 32, 128, 16), (1, 128, 256, 8), (1, 256, 64, 8),
    (3, 7, 5, 9), (1, 7, 5, 9), (3, 256, 256, 4),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 80, 128, 1000])
@pytest.mark.parametrize(("kernel", "channels", "out_channels", "size"), SHAPES)
def test_rules_keep_the_device_busy_and_the_parts_few(launch, kernel, channels, out_channels, size, batch):
    positions = batch * size * size
    tile = launch.make_part_tile(positions, size, kernel, channels, out_channels)
    assert (positions if kernel == 1 else size) % tile.group == 0
    covered = tile.tiles(positions) * tile.group * tile.rows
    assert covered * tile.parts >= positions
    assert max(tile.columns, tile.outputs) <= launch.WIDE
    assert min(tile.columns, tile.outputs, tile.rows) >= launch.NARROW
    seen = kernel * (tile.group + kernel - 1) * channels
    blocks = -(-seen // tile.columns) * -(-tile.group * out_channels // tile.outputs)
    assert tile.parts == 1 or (tile.parts - 1) * blocks < launch.PROGRAMS


@pytest.mark.parametrize("name", ["conv_kernel", "conv_weight_parts_kernel", "conv_weight_sum_kernel"])
def test_a_profile_counts_the_kernels_as_convolutions(launch, name):
    assert hasattr(launch, name)
    assert kind_of(name) == "convolutions"


def twins(*arguments, **options):
    torch.manual_seed(5)
    module = Convolution(*arguments, **options)
    plain = nn.Conv2d(*arguments, **options)
    plain.load_state_dict(module.state_dict())
    return module, plain


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}, {"padding_mode": "circular"}])
@pytest.mark.parametrize("autocasts", [False, True])
def test_on_the_cpu_it_is_torchs_convolution_to_the_bit(options, autocasts):
    module, plain = twins(4, 6, 3, padding=1, **options)
    x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
        out, wanted = module(x), plain(x)
    assert torch.equal(out, wanted)
    assert out.dtype == wanted.dtype
    grad = torch.randn_like(out)
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (out, wanted)))


@pytest.fixture
def own(launch, monkeypatch):
    """Convolutions of float32 on the CPU go through the interpreted kernels, whose calls are listed."""
    calls = []

    def listed(name, function):
        def call(*arguments):
            calls.append(name)
            return function(*arguments)

        return call

    for name in ("convolve", "input_gradient", "weight_gradient"):
        monkeypatch.setattr(launch, name, listed(name, getattr(launch, name)))
    monkeypatch.setattr(
        Convolution,
        "fuses",
        lambda self, x: x.is_contiguous(memory_format=torch.channels_last) and self._has_own_pass(x),
    )
    monkeypatch.setattr(convolution, "_launches", lambda: launch)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return calls


def only(monkeypatch, *names):
    for name in PASSES:
        monkeypatch.setitem(MOST_CHANNELS, name, {1: 256, 3: 256} if name in names else {})


@pytest.mark.parametrize(
    "names",
    [PASSES, *[(name,) for name in PASSES], PASSES[:2], PASSES[1:]],
    ids=lambda names: "+".join(names),
)
def test_passes_may_be_own_or_torchs_in_any_mixture(own, monkeypatch, names):
    only(monkeypatch, *names)
    torch.manual_seed(6)
    module, _ = twins(4, 6, 3, padding=1, bias=False)
    module = module.to(memory_format=torch.channels_last)
    x, _, grad = problem(3, 4, 6, 2, 5, 4, torch.float32)
    out = module(x.requires_grad_())
    # A gradient that is one number everywhere, and takes its place only once in memory.
    grad = torch.full((1,), 0.7).expand(grad.shape)
    found = [out, *torch.autograd.grad(out, [x, module.weight], grad)]
    assert type(out.grad_fn).__name__ == "_FusedBackward"
    assert own == ["convolve" if name == "forward" else name for name in names]
    for name, one, other in zip(PASSES, found, expected(x, module.weight, grad), strict=True):
        assert worst(one.detach(), other) <= TOLERANCE[torch.float32], name


@pytest.mark.parametrize(
    ("x_learns", "weight_learns", "calls"),
    [
        (False, True, ["convolve", "weight_gradient"]),
        (True, False, ["convolve", "input_gradient"]),
        (False, False, ["convolve"]),
    ],
)
def test_nothing_is_computed_that_nobody_asked_for(own, monkeypatch, x_learns, weight_learns, calls):
    only(monkeypatch, *PASSES)
    module, _ = twins(3, 4, 3, padding=1, bias=False)
    module.weight.requires_grad_(weight_learns)
    x = torch.randn(1, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_(x_learns)
    out = module(x)
    if x_learns or weight_learns:
        out.sum().backward()
    assert own == calls
    assert (x.grad is not None, module.weight.grad is not None) == (x_learns, weight_learns)


def test_without_gradients_a_pass_that_is_torchs_is_torchs_own_operation(own, monkeypatch):
    only(monkeypatch, "weight_gradient")
    module, plain = twins(3, 4, 3, padding=1, bias=False)
    x = torch.randn(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert not module.fuses(x)
        assert torch.equal(module(x), plain(x))


def test_a_second_derivative_is_an_error_and_not_zero(own, monkeypatch):
    only(monkeypatch, *PASSES)
    module, _ = twins(3, 4, 3, padding=1, bias=False)
    x = torch.randn(1, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    (grad,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_without_stride_it_is_the_strided_convolution_of_the_pixels_it_looks_at(own, monkeypatch):
    only(monkeypatch, *PASSES)
    module, plain = twins(4, 6, 1, stride=2, bias=False)
    x = torch.randn(2, 4, 5, 7).contiguous(memory_format=torch.channels_last)
    chosen = x[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
    found = module.without_stride(chosen)
    assert own == ["convolve"]
    torch.testing.assert_close(found, plain(x))
    assert own == ["convolve"]
    torch.testing.assert_close(module(x), plain(x))


def test_every_pass_has_a_rule_for_both_kernels():
    assert set(MOST_CHANNELS) == set(PASSES)
    weight = torch.empty(4, 4, 5, 5)
    assert not any(is_own(name, weight) for name in PASSES)
    weight = torch.empty(257, 257, 1, 1)
    assert not any(is_own(name, weight) for name in PASSES)
    assert is_own("forward", torch.empty(16, 512, 1, 1))
    assert not is_own("forward", torch.empty(16, 512, 3, 3))


def one_batch(network, x, y):
    loss = F.cross_entropy(network(x), y)
    return [loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("spec", ["preresnet11/baseline", "preresnet8-basic/baseline"])
def test_a_network_on_the_kernels_has_the_gradients_of_one_without(own, monkeypatch, spec):
    only(monkeypatch, "weight_gradient", "forward")
    torch.manual_seed(7)
    network = build(spec, init="torch").to(memory_format=torch.channels_last)
    exact = build(spec, init="torch").double()
    exact.load_state_dict(network.state_dict())
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([3, 7])
    wanted = one_batch(exact, x.double(), y)
    del own[:]
    found = one_batch(network, x.contiguous(memory_format=torch.channels_last), y)
    assert own.count("weight_gradient") == own.count("convolve") > 4
    for (name, _), one, other in zip(network.named_parameters(), found[1:], wanted[1:], strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(other.abs().max()) + 1e-9, name
