"""The convolution kernels in the interpreter, against float64; which passes they do."""

import pytest
import torch
import torch.nn.functional as F
from fast_problems import (
    EPSILON,
    MOMENTUM,
    PASSES,
    convolution_problem,
    exact_convolution,
    interpret_launches,
    last,
    poisoned_memory,
    surrounded,
    worst,
)
from torch import nn

from interpreted import interpreted
from nonloc_paper.fast import convolution
from nonloc_paper.fast.convolution import MOST_CHANNELS, is_own, run_convolution

# Of the largest entry. The interpreter's products do not know bfloat16.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2**-10}


@pytest.fixture(scope="module")
def kernels():
    with interpreted("nonloc_paper.fast.convolution_kernels") as module:
        yield module


@pytest.fixture(scope="module")
def norm_kernels():
    with interpreted("nonloc_paper.fast.norm_relu_kernels") as module:
        yield module


def all_passes(kernels, x, weight, grad):
    return [
        kernels.convolve(x, weight)[0],
        kernels.input_gradient(grad, weight)[0],
        kernels.weight_gradient(x, grad, weight),
    ]


def check(found, exact, dtype=torch.float32):
    for name, one, other in zip(PASSES, found, exact, strict=True):
        assert worst(one.detach(), other) <= TOLERANCE[dtype], name


SLOW = pytest.mark.slow
# (kernel, channels in and out, batch, height, width); positions × columns × outputs of a tile; group × rows × columns
# × outputs of a tile of the weight gradient, and its parts. One program and several, tiles that reach over every edge,
# channels that are no power of 2, groups, and the larger side of a product on either side.
CASES = [
    pytest.param((3, 3, 16, 2, 6, 8), (32, 32, 16), (4, 16, 64, 64, 3), torch.float32),
    pytest.param((3, 5, 7, 3, 5, 4), (16, 16, 16), (2, 16, 16, 16, 4), torch.float16),
    pytest.param((1, 16, 16, 2, 4, 6), (32, 16, 16), (4, 16, 64, 64, 1), torch.float32),
    pytest.param((1, 40, 6, 1, 7, 2), (16, 16, 16), (2, 16, 32, 16, 1), torch.float16),
    pytest.param((3, 3, 16, 1, 5, 3), (16, 16, 16), (1, 16, 32, 16, 1), torch.float32, marks=SLOW),
    pytest.param((3, 16, 16, 1, 7, 6), (32, 64, 16), (2, 16, 64, 32, 2), torch.float32, marks=SLOW),
    pytest.param((3, 20, 18, 1, 3, 5), (64, 64, 16), (1, 16, 64, 16, 1), torch.float16, marks=SLOW),
    pytest.param((3, 1, 1, 2, 1, 2), (16, 16, 16), (1, 16, 16, 16, 1), torch.float32),
    pytest.param((1, 6, 40, 3, 5, 3), (16, 16, 32), (1, 16, 16, 64, 2), torch.float16, marks=SLOW),
]


@pytest.mark.parametrize(("sizes", "tile", "part_tile", "dtype"), CASES)
def test_every_pass(kernels, monkeypatch, sizes, tile, part_tile, dtype):
    launch = {"num_warps": 4, "num_stages": 3}
    tile = dict(zip(("BLOCK_P", "BLOCK_C", "BLOCK_O"), tile, strict=True))
    *part_tile, parts = part_tile
    part_tile = dict(zip(("GROUP", "BLOCK_R", "BLOCK_C", "BLOCK_O"), part_tile, strict=True))
    monkeypatch.setattr(kernels, "make_tile", lambda *sizes: (1, tile | launch))
    monkeypatch.setattr(kernels, "make_part_tile", lambda *sizes: (parts, part_tile | launch))
    torch.manual_seed(sizes[1])
    problem = convolution_problem(*sizes, dtype)
    with poisoned_memory():
        found = all_passes(kernels, *(surrounded(t) for t in problem))
    assert all(one.dtype == dtype and one.is_contiguous(memory_format=torch.channels_last) for one in found)
    check(found, exact_convolution(*problem), dtype)


@pytest.mark.parametrize(
    "sizes", [pytest.param((3, 16, 16, 2, 8, 8), marks=SLOW), (3, 3, 16, 3, 8, 8), (1, 16, 24, 2, 5, 5)]
)
def test_every_pass_with_the_tiles_of_the_rules(kernels, sizes):
    torch.manual_seed(2)
    problem = convolution_problem(*sizes, torch.float32)
    with poisoned_memory():
        found = all_passes(kernels, *problem)
    check(found, exact_convolution(*problem))


def exact_with_norms(x, weight, grad, affine, added, running):
    """The convolution of the activation, plus `added`, and its moments; then all gradients that pass through."""
    leaves = [one.double().requires_grad_() for one in (x, *affine)]
    mean, variance = (one.double() for one in running)
    active = F.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.0, EPSILON).relu()
    out = F.conv2d(active, weight.double(), padding=weight.shape[2] // 2) + added.double()
    F.batch_norm(out, mean, variance, None, None, True, MOMENTUM, EPSILON)
    moments = torch.stack([out.mean((0, 2, 3)), (out.var((0, 2, 3), correction=0) + EPSILON).rsqrt()])
    grads = torch.autograd.grad(out, [active, *leaves], grad.double())
    _, _, grad_weight = exact_convolution(active, weight, grad)
    return [out.detach(), moments.detach(), mean, variance, *grads, grad_weight]


@pytest.mark.parametrize(("tiles", "merged"), [(1, False), (1, True), (2, False), (3, False)])
@pytest.mark.parametrize(
    "sizes", [(1, 6, 20, 3, 7, 5), (3, 5, 7, 2, 5, 6), (1, 4, 3, 1, 2, 3), (1, 16, 32, 1, 8, 12)]
)
def test_norms_inside(kernels, norm_kernels, monkeypatch, sizes, tiles, merged):
    """A norm with ReLU before, a sum and the next norm's statistics after; backward, what the norm needs."""
    tile = {"BLOCK_P": 16, "BLOCK_C": 16, "BLOCK_O": 16, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(kernels, "make_tile", lambda *sizes: (tiles, tile))
    monkeypatch.setattr(kernels, "make_pointwise_tile", lambda *sizes: (tiles, tile | {"BLOCK_O": 32}))
    if merged:  # two parts at a time, also of the sums
        monkeypatch.setattr(norm_kernels, "MERGED_PARTS", 2)
        monkeypatch.setattr(norm_kernels, "PROGRAMS", 2)
    torch.manual_seed(5)
    x, weight, grad = convolution_problem(*sizes, torch.float32)
    x, added = x + 3, last(torch.randn_like(grad))
    norm = kernels.Norm(
        x.mean((0, 2, 3)),
        (x.var((0, 2, 3), correction=0) + EPSILON).rsqrt(),
        1 + torch.rand(x.shape[1]),
        torch.randn(x.shape[1]),
    )
    running, count = (torch.zeros(weight.shape[0]), torch.ones(weight.shape[0])), torch.tensor(4)
    exact = exact_with_norms(x, weight, grad, norm[2:], added, running)
    with poisoned_memory():
        x = surrounded(x)
        out, parts, rows = kernels.convolve(x, weight, norm=norm, added=added, has_moments=True)
        positions = x[:, 0].numel()
        moments = norm_kernels.merge_moments(parts, positions, rows, *running, count, MOMENTUM, EPSILON)
        affine = (norm.weight, norm.bias, norm.mean, norm.inverse)
        if sizes[0] == 1:
            active, sums, grad_weight = kernels.pointwise_gradients(grad, weight, norm, x)
            none, again, _ = kernels.pointwise_gradients(grad, weight, norm, x, stores=False)
            assert none is None
            assert torch.equal(again, sums)
            more = last(torch.randn_like(x))
            totals = norm_kernels.merge_sums(sums)
            without = kernels.feature_gradient(grad, weight, norm, x, totals)
            with_more = kernels.feature_gradient(grad, weight, norm, x, totals, added=more)
        else:
            active, sums = kernels.input_gradient(grad, weight, norm=norm, features=x)
            inside = norm_kernels.activation(
                x, norm.weight, norm.bias, norm.mean, None, 0.0, inverse=norm.inverse
            )
            grad_weight = kernels.weight_gradient(inside, grad, weight)
        grads = norm_kernels.gradients(x, active, *affine, found=sums)
    assert count == 5
    assert parts.shape[1] == sums.shape[1] == -(-positions // (16 * tiles))
    for one, other in zip([out, moments, *running, active, *grads, grad_weight], exact, strict=True):
        assert worst(one, other) <= 1e-5
    if sizes[0] == 1:
        assert worst(without, exact[5]) <= 1e-5
        assert worst(with_more, exact[5] + more) <= 1e-5


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (2, 3)])
def test_weights_may_have_any_strides_and_their_gradient_has_the_same(kernels, dims):
    torch.manual_seed(3)
    x, weight, grad = convolution_problem(3, 4, 6, 1, 5, 4, torch.float32)
    exact = exact_convolution(x, weight, grad)
    weight = weight.transpose(*dims).contiguous().transpose(*dims)
    found = all_passes(kernels, x, weight, grad)
    assert found[2].stride() == weight.stride()
    check(found, exact)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_reaches_only_its_neighbours(kernels, value):
    torch.manual_seed(4)
    x, weight, grad = convolution_problem(3, 5, 6, 2, 6, 7, torch.float32)
    x[1, 2, 3, 0] = value
    grad[0, 4, 2, 3] = value
    near = torch.zeros(2, 2, 6, 7, dtype=torch.bool)
    near[0, 1, 2:5, :2] = True
    near[1, 0, 1:4, 2:5] = True
    out, grad_x, grad_weight = all_passes(kernels, x, weight, grad)
    assert torch.equal(~out.isfinite(), near[0, :, None].expand(-1, 6, -1, -1))
    assert torch.equal(~grad_x.isfinite(), near[1, :, None].expand(-1, 5, -1, -1))
    expected = torch.ones_like(grad_weight, dtype=torch.bool)
    expected[4] = False
    # The right tap of a pixel at the left edge would be read from outside the image.
    expected[:, 2, :, :2] = False
    assert torch.equal(grad_weight.isfinite(), expected)


SHAPES = [
    (3, 3, 16, 32), (3, 16, 16, 32), (3, 32, 32, 16), (3, 64, 64, 8), (3, 128, 128, 8), (1, 16, 16, 32),
    (1, 16, 64, 32), (1, 64, 32, 16), (1, 128, 256, 8), (1, 256, 64, 8), (3, 7, 5, 9), (1, 7, 5, 9), (3, 256, 256, 4),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "channels", "out_channels", "size"), SHAPES)
def test_rules_cover_all_positions_with_few_parts(kernels, kernel, channels, out_channels, size):
    for batch in (1, 80, 128, 1000):
        positions = batch * size * size
        parts, tile = kernels.make_part_tile(positions, size, kernel, channels, out_channels)
        group, columns, outputs = tile["GROUP"], tile["BLOCK_C"], tile["BLOCK_O"]
        assert (positions if kernel == 1 else size) % group == 0
        assert max(columns, outputs) <= kernels.WIDE
        assert min(columns, outputs, tile["BLOCK_R"]) >= kernels.NARROW
        seen = kernel * (group + kernel - 1) * channels
        blocks = -(-seen // columns) * -(-group * out_channels // outputs)
        assert parts == 1 or (parts - 1) * blocks < kernels.PROGRAMS


@pytest.fixture
def calls(kernels, monkeypatch):
    """The names of the passes that the kernels do, for channels-last images on the CPU."""
    names = interpret_launches(monkeypatch, {convolution: kernels})
    monkeypatch.setattr(convolution, "_is_fast", lambda layer, x: convolution._has_own_pass(layer.weight, x))
    return names


def only(monkeypatch, *names):
    for name in PASSES:
        monkeypatch.setitem(MOST_CHANNELS, name, {1: 256, 3: 256} if name in names else {})


def make_layer(*arguments, **options):
    torch.manual_seed(5)
    return nn.Conv2d(*arguments, bias=False, **options).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("names", [PASSES, *[(name,) for name in PASSES], PASSES[:2], PASSES[1:]])
def test_each_pass_is_done_by_the_kernels_or_by_torch(calls, monkeypatch, names):
    only(monkeypatch, *names)
    layer = make_layer(4, 6, 3, padding=1)
    x, _, grad = convolution_problem(3, 4, 6, 2, 5, 4, torch.float32)
    out = run_convolution(layer, x.requires_grad_())
    # A gradient with one number everywhere, which memory holds only once.
    grad = torch.full((1,), 0.7).expand(grad.shape)
    found = [out, *torch.autograd.grad(out, [x, layer.weight], grad)]
    assert calls == ["convolve" if name == "forward" else name for name in names]
    check(found, exact_convolution(x, layer.weight, grad))


@pytest.mark.parametrize(("x_learns", "weight_learns"), [(False, True), (True, False), (False, False)])
def test_only_the_needed_gradients_are_computed(calls, monkeypatch, x_learns, weight_learns):
    only(monkeypatch, *PASSES)
    layer = make_layer(3, 4, 3, padding=1)
    layer.weight.requires_grad_(weight_learns)
    x = last(torch.randn(1, 3, 4, 4)).requires_grad_(x_learns)
    out = run_convolution(layer, x)
    if x_learns or weight_learns:
        out.sum().backward()
    assert calls == ["convolve", *["input_gradient"] * x_learns, *["weight_gradient"] * weight_learns]
    assert (x.grad is not None, layer.weight.grad is not None) == (x_learns, weight_learns)


def test_a_second_derivative_is_an_error(calls, monkeypatch):
    only(monkeypatch, *PASSES)
    x = last(torch.randn(1, 3, 4, 4)).requires_grad_()
    out = run_convolution(make_layer(3, 4, 3, padding=1), x)
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_strided_1x1_convolution_may_read_thinned_images(calls, monkeypatch):
    only(monkeypatch, *PASSES)
    layer = make_layer(4, 6, 1, stride=2)
    x = last(torch.randn(2, 4, 5, 7))
    found = run_convolution(layer, last(x[:, :, ::2, ::2]), is_thinned=True)
    assert calls == ["convolve"]
    torch.testing.assert_close(found, layer(x))
    assert torch.equal(run_convolution(layer, x), layer(x))
    assert calls == ["convolve"]


def test_the_table_of_channels():
    assert not any(is_own(name, torch.empty(4, 4, 5, 5)) for name in PASSES)
    assert not any(is_own(name, torch.empty(257, 257, 1, 1)) for name in PASSES)
    assert is_own("forward", torch.empty(16, 512, 1, 1))
    assert not is_own("forward", torch.empty(16, 512, 3, 3))
