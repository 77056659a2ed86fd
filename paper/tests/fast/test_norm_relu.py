"""NormReLU's kernels in the interpreter, against batch normalisation and ReLU in float64; the module on the CPU."""

from contextlib import nullcontext

import pytest
import torch
from norm_problems import EPSILON, MOMENTUM, check, expected, problem, twins, worst
from poisoned import poisoned_memory, surrounded
from torch import nn

from interpreted import interpreted
from nonloc_paper.fast import norm_relu
from nonloc_paper.fast.norm_relu import NormReLU, activated
from nonloc_paper.networks.build import build

# Of the largest entry. The interpreter cuts bfloat16 off where the device rounds: one bit more.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(scope="module")
def launch():
    """The launches with interpreted kernels."""
    with interpreted("nonloc_paper.fast.norm_relu_launch") as module:
        yield module


# One part and several, one tile and several in a part, a short last tile, channels beside a power of 2.
CASES = [
    ((2, 1, 1, 1), (32, 1, 1)),
    ((1, 5, 7, 1), (4, 8, 1)),
    ((4, 16, 4, 4), (16, 16, 1)),
    ((2, 20, 7, 5), (8, 16, 2)),
    ((4, 3, 5, 5), (8, 4, 4)),
    ((1, 40, 3, 11), (32, 8, 2)),
]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_training(launch, shape, sizes, dtype):
    torch.manual_seed(shape[1])
    x, affine, running = problem(shape, dtype)
    grad = torch.randn(shape).to(dtype)
    wanted = expected(x, grad, affine, running)
    count = torch.tensor(4)
    tiling = launch.Tiling(*sizes, warps=4)
    x, grad = surrounded(x), surrounded(grad)
    with poisoned_memory():
        total, out, mean, inverse = launch.moments_and_activation(
            x, *affine, *running, count, MOMENTUM, EPSILON, tiling=tiling
        )
        found = launch.gradients(x, grad, *affine, mean, inverse, through_statistics=True, tiling=tiling)
    assert total is x
    assert out.dtype == found[0].dtype == dtype
    assert int(count) == 5
    check((out, *found, *running), wanted, dtype, TOLERANCE)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_training_with_a_sum_before_and_pixels_stepped_over(launch, dtype, stride):
    torch.manual_seed(stride)
    shape = (2, 6, 7, 4)
    x, affine, running = problem(shape, dtype)
    added, more = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    grad = torch.randn(x[:, :, ::stride, ::stride].shape).to(dtype)
    tiling = launch.Tiling(8, 8, 2, warps=4)
    state = [t.clone() for t in running]
    with poisoned_memory():
        total, out, mean, inverse = launch.moments_and_activation(
            surrounded(x), *affine, *running, None, MOMENTUM, EPSILON,
            added=surrounded(added), stride=stride, tiling=tiling,
        )  # fmt: skip
        found = launch.gradients(
            surrounded(total), surrounded(grad), *affine, mean, inverse,
            through_statistics=True, more=surrounded(more), stride=stride, tiling=tiling,
        )  # fmt: skip
    assert worst(total, (x.double() + added.double())) <= TOLERANCE[dtype]
    wanted = expected(total, grad, affine, state, more=more, stride=stride)
    check((out, *found, *running), wanted, dtype, TOLERANCE)


def test_a_network_may_count_its_batches_itself(launch):
    """Without a counter of its own the module does everything else."""
    torch.manual_seed(7)
    x, affine, running = problem((2, 3, 5, 2), torch.float32)
    wanted = expected(x, torch.zeros_like(x), affine, running)
    _, out, _, _ = launch.moments_and_activation(
        surrounded(x), *affine, *running, None, MOMENTUM, EPSILON, tiling=launch.Tiling(8, 4, 2, warps=4)
    )
    for one, other in zip((out, *running), (wanted[0], *wanted[4:]), strict=True):
        assert worst(one, other) <= TOLERANCE[torch.float32]


def test_parts_that_are_read_in_several_chunks(launch, monkeypatch):
    monkeypatch.setattr(launch, "_chunks", lambda parts: {"CHUNKS": -(-parts // 4), "BLOCK_P": 4})
    test_training(launch, (2, 5, 7, 5), (4, 8, 2), torch.float32)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_evaluation(launch, dtype, stride):
    torch.manual_seed(1)
    x, affine, running = problem((2, 20, 7, 5), dtype)
    grad = torch.randn(x[:, :, ::stride, ::stride].shape).to(dtype)
    wanted = expected(x, grad, affine, running, training=False, stride=stride)
    tiling = launch.Tiling(8, 16, 2, warps=4)
    x, grad = surrounded(x), surrounded(grad)
    with poisoned_memory():
        out = launch.activation(x, *affine, *running, EPSILON, stride=stride, tiling=tiling)
        inverse = (running[1] + EPSILON).rsqrt()
        found = launch.gradients(
            x, grad, *affine, running[0], inverse, through_statistics=False, stride=stride, tiling=tiling
        )
    check((out, *found), wanted, dtype, TOLERANCE)


def test_a_large_mean_costs_the_variance_no_digits(launch):
    """Mean 1e4 and deviation 0.1: the mean of the squares in float32 would leave none of the variance's digits."""
    torch.manual_seed(2)
    x, affine, running = problem((3, 5, 10, 10), torch.float32, mean=1e4, deviation=0.1)
    tiling = launch.Tiling(8, 8, 2, warps=4)
    _, _, mean, inverse = launch.moments_and_activation(
        surrounded(x), *affine, *running, torch.tensor(0), MOMENTUM, EPSILON, tiling=tiling
    )
    exact = x.double()
    assert worst(mean, exact.mean((0, 2, 3))) <= 4 * 2**-24
    assert worst(inverse, (exact.var((0, 2, 3), unbiased=False) + EPSILON).rsqrt()) < 1e-5


def test_nan_reaches_the_whole_channel_and_no_other(launch):
    torch.manual_seed(3)
    x, affine, running = problem((2, 3, 4, 5), torch.float32)
    x[1, 1, 2, 3] = torch.nan
    _, out, _, _ = launch.moments_and_activation(
        surrounded(x),
        *affine,
        *running,
        torch.tensor(0),
        MOMENTUM,
        EPSILON,
        tiling=launch.Tiling(8, 4, 2, warps=4),
    )
    assert out[:, 1].isnan().all()
    assert out[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 64, 256, 1000])
@pytest.mark.parametrize("rows", [2, 100, 8192, 131_072, 1_000_003])
def test_tilings_cover_every_row_and_channel_once(launch, rows, channels):
    tiling = launch.make_tiling(rows, channels)
    parts, columns = tiling.grid(rows, channels)
    covered = tiling.tiles_per_part * tiling.block_rows
    assert (parts - 1) * covered < rows <= parts * covered
    assert (columns - 1) * tiling.block_channels < channels <= columns * tiling.block_channels
    assert parts * columns <= 2 * launch.PROGRAMS


@pytest.mark.parametrize("training", [True, False])
def test_on_the_cpu_it_is_batch_norm_and_relu_to_the_bit(training):
    module, plain = twins(6)
    x = torch.randn(3, 6, 5, 4, requires_grad=True)
    out, wanted = module.train(training)(x), plain.train(training)(x).relu()
    assert torch.equal(out, wanted)
    grad = torch.randn_like(x)
    assert torch.equal(*(torch.autograd.grad(y, x, grad)[0] for y in (out, wanted)))
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("has_sum", [False, True])
def test_sum_and_activation_without_kernels_is_what_it_says(has_sum, stride):
    module, plain = twins(6)
    x = torch.randn(3, 6, 5, 4)
    added = torch.randn(3, 6, 5, 4) if has_sum else None
    total, out = module.sum_and_activation(x, added, stride)
    wanted = x + added if has_sum else x
    assert torch.equal(total, wanted)
    assert torch.equal(out, plain(wanted).relu()[:, :, ::stride, ::stride])


def one_batch(network, x, y):
    loss = torch.nn.functional.cross_entropy(network(x), y)
    return [loss.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("spec", ["preresnet11/baseline", "preresnet8-basic/diffusive-1@2"])
@pytest.mark.parametrize("training", [True, False])
def test_a_network_on_the_kernels_has_the_gradients_of_one_without(launch, monkeypatch, spec, training):
    """Sums left to the next norm, pixels stepped over, and the stage between blocks: all within the whole."""
    torch.manual_seed(9)
    network = build(spec, init="torch").train(training).to(memory_format=torch.channels_last)
    exact = build(spec, init="torch").train(training).double()
    for name, value in network.state_dict().items():
        if name.endswith(("norm.bias", "running_mean")) or (".norms." in name and name.endswith("bias")):
            value.copy_(0.3 * torch.randn_like(value))
    exact.load_state_dict(network.state_dict())
    x, y = torch.randn(2, 3, 10, 10), torch.tensor([3, 7])
    wanted = one_batch(exact, x.double(), y)
    calls = []

    def fuses(self, x):
        calls.append(x.is_contiguous(memory_format=torch.channels_last))
        return calls[-1]

    monkeypatch.setattr(NormReLU, "fuses", fuses)
    monkeypatch.setattr(norm_relu, "_launches", lambda: launch)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    found = one_batch(network, x.contiguous(memory_format=torch.channels_last), y)
    assert calls
    assert all(calls)
    for (name, _), one, other in zip(network.named_parameters(), found[1:], wanted[1:], strict=True):
        assert float((one - other).abs().max()) <= 1e-4 * float(other.abs().max()) + 1e-9, name
    for name, value in exact.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name].double(), value.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", ["preresnet11/baseline", "restorer8/baseline"])
def test_a_converted_network_keeps_its_relus(network):
    torch.manual_seed(0)
    model = build(network).train()
    x = torch.randn(4, 3, 16, 16)
    model(x)
    expected = model.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert not any(isinstance(module, NormReLU) for module in converted.modules())
    torch.testing.assert_close(converted.eval()(x), expected)


def test_what_is_no_norm_in_the_place_of_one_is_left_as_it_is():
    x = torch.tensor([[-1.0, 1.0]])
    torch.testing.assert_close(activated(nn.Identity(), x), x)
