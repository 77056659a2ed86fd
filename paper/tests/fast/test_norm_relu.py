"""The kernels of batch norm and ReLU in the interpreter, against float64."""

import pytest
import torch
from fast_problems import (
    EPSILON,
    MOMENTUM,
    check_norm,
    exact_norm,
    norm_problem,
    poisoned_memory,
    surrounded,
    worst,
)

from interpreted import interpreted

# Of the largest entry. The interpreter cuts bfloat16 off where the device rounds: one bit more.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
FLOAT, BFLOAT, HALF = TOLERANCE
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def kernels():
    with interpreted("nonloc_paper.fast.norm_relu_kernels") as module:
        yield module


@pytest.fixture
def tile(kernels, monkeypatch):
    """Set the tiling (rows, channels, tiles in a part) of all launches."""

    def set_tiling(*sizes):
        tiling = kernels.Tiling(*sizes)
        monkeypatch.setattr(kernels, "make_tiling", lambda *given, **options: tiling)

    return set_tiling


# One part and several, one tile and several in a part, a short last tile, channels that are no power of 2.
CASES = [
    pytest.param((2, 1, 1, 1), (32, 1, 1), HALF),
    pytest.param((1, 5, 7, 1), (4, 8, 1), FLOAT),
    pytest.param((4, 16, 4, 4), (16, 16, 1), BFLOAT, marks=SLOW),
    pytest.param((2, 20, 7, 5), (8, 16, 2), FLOAT),
    pytest.param((4, 3, 5, 5), (8, 4, 4), BFLOAT),
    pytest.param((1, 40, 3, 11), (32, 8, 2), HALF, marks=SLOW),
]


@pytest.mark.parametrize(("shape", "sizes", "dtype"), CASES)
def test_training(kernels, tile, shape, sizes, dtype):
    torch.manual_seed(shape[1])
    tile(*sizes)
    x, affine, running = norm_problem(shape, dtype)
    grad = torch.randn(shape).to(dtype)
    exact = exact_norm(x, grad, affine, running)
    count = torch.tensor(4)
    x, grad = surrounded(x), surrounded(grad)
    with poisoned_memory():
        total, out, mean, inverse = kernels.moments_and_activation(
            x, *affine, *running, count, MOMENTUM, EPSILON
        )
        found = kernels.gradients(x, grad, *affine, mean, inverse)
    assert total is x
    assert out.dtype == found[0].dtype == dtype
    assert int(count) == 5
    check_norm((out, *found, *running), exact, dtype, TOLERANCE)


def test_parts_that_are_read_in_several_chunks(kernels, tile, monkeypatch):
    monkeypatch.setattr(kernels, "_chunks", lambda parts: {"CHUNKS": -(-parts // 4), "BLOCK_P": 4})
    test_training(kernels, tile, (2, 5, 7, 5), (4, 8, 2), FLOAT)


@pytest.mark.parametrize(
    ("stride", "dtype"), [(1, FLOAT), (2, BFLOAT), (2, FLOAT), pytest.param(3, HALF, marks=SLOW)]
)
def test_training_with_a_sum_before_and_a_stride_after(kernels, tile, stride, dtype):
    torch.manual_seed(stride)
    tile(8, 8, 2)
    shape = (2, 6, 7, 4)
    x, affine, running = norm_problem(shape, dtype)
    added, more = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    grad = torch.randn(x[:, :, ::stride, ::stride].shape).to(dtype)
    state = [t.clone() for t in running]
    with poisoned_memory():
        total, out, mean, inverse = kernels.moments_and_activation(
            surrounded(x), *affine, *running, torch.tensor(0), MOMENTUM, EPSILON,
            added=surrounded(added), stride=stride,
        )  # fmt: skip
        found = kernels.gradients(
            surrounded(total), surrounded(grad), *affine, mean, inverse, more=surrounded(more), stride=stride
        )
    assert worst(total, (x.double() + added.double())) <= TOLERANCE[dtype]
    exact = exact_norm(total, grad, affine, state, more=more, stride=stride)
    check_norm((out, *found, *running), exact, dtype, TOLERANCE)


@pytest.mark.parametrize(("stride", "dtype"), [(1, BFLOAT), (2, FLOAT), pytest.param(2, HALF, marks=SLOW)])
def test_evaluation(kernels, tile, stride, dtype):
    torch.manual_seed(1)
    tile(8, 16, 2)
    x, affine, running = norm_problem((2, 20, 7, 5), dtype)
    exact, *_ = exact_norm(x, torch.zeros(()), affine, running, training=False, stride=stride)
    with poisoned_memory():
        out = kernels.activation(surrounded(x), *affine, *running, EPSILON, stride=stride)
    check_norm((out,), (exact,), dtype, TOLERANCE)


def test_a_large_mean_costs_the_variance_no_digits(kernels, tile):
    """Mean 1e4 and deviation 0.1: the mean of the squares in float32 would lose all digits of the variance."""
    torch.manual_seed(2)
    tile(8, 8, 2)
    x, affine, running = norm_problem((3, 5, 10, 10), FLOAT, mean=1e4, deviation=0.1)
    _, _, mean, inverse = kernels.moments_and_activation(
        surrounded(x), *affine, *running, torch.tensor(0), MOMENTUM, EPSILON
    )
    exact = x.double()
    assert worst(mean, exact.mean((0, 2, 3))) <= 4 * 2**-24
    assert worst(inverse, (exact.var((0, 2, 3), unbiased=False) + EPSILON).rsqrt()) < 1e-5


def test_nan_reaches_its_whole_channel_and_no_other(kernels, tile):
    torch.manual_seed(3)
    tile(8, 4, 2)
    x, affine, running = norm_problem((2, 3, 4, 5), FLOAT)
    x[1, 1, 2, 3] = torch.nan
    _, out, _, _ = kernels.moments_and_activation(
        surrounded(x), *affine, *running, torch.tensor(0), MOMENTUM, EPSILON
    )
    assert out[:, 1].isnan().all()
    assert out[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("channels", [1, 3, 16, 20, 64, 256, 1000])
def test_tilings_cover_every_row_and_channel_once(kernels, channels):
    for rows in (2, 100, 8192, 131_072, 1_000_003):
        tiling = kernels.make_tiling(rows, channels)
        parts, columns = tiling.grid(rows, channels)
        assert (parts - 1) * tiling.part_rows < rows <= parts * tiling.part_rows
        assert (columns - 1) * tiling.block_channels < channels <= columns * tiling.block_channels
        assert parts * columns <= 2 * kernels.PROGRAMS
