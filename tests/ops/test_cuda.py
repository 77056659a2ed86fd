"""The operator on a GPU: the CPU's values and gradients, memory linear in M, and a captured graph."""

import pytest
import torch

from nonloc.ops import Affinity, diffuse
from problems import CELLS, EXACT, JOINING, SYMMETRIC, affinity, capture, relative, signal

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def solve(kind, normalize, backend, dtype, device):
    """The value and the gradients in `dtype`, of numbers that are exact in it; on the CPU in float64."""
    exact = affinity(kind, normalize, positions=40)
    inputs = [t.to(dtype) for t in (exact.left, exact.right, signal(exact), signal(exact, seed=5))]
    inputs = [t.double() if device == "cpu" else t.to(device) for t in inputs]
    left, right, z = (t.requires_grad_() for t in inputs[:3])
    right = left if normalize in SYMMETRIC else right
    out = diffuse(Affinity(left, right, kind, normalize, exact.scale), z, backend=backend)
    leaves = [left, z] if normalize in SYMMETRIC else [left, right, z]
    return [out, *torch.autograd.grad(out, leaves, inputs[3], allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize(("kind", "normalize"), CELLS)
def test_values_and_gradients_are_those_of_the_cpu_in_float64(kind, normalize, backend, dtype):
    expected = solve(kind, normalize, "reference", dtype, "cpu")
    actual = solve(kind, normalize, backend, dtype, "cuda")
    assert actual[0].dtype == dtype
    worst = max(relative(a.double().cpu(), e) for a, e in zip(actual, expected, strict=True))
    assert worst <= TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize("backend", EXACT)
def test_a_signal_in_float64_is_not_rounded_to_the_features(kind, backend):
    exact = affinity(kind)
    left, right = (side.half().to("cuda") for side in (exact.left, exact.right))
    z = signal(exact).to("cuda")
    expected, actual = (
        diffuse(Affinity(*sides, kind), z, backend=backend)
        for sides in ((left.double(), right.double()), (left, right))
    )
    assert relative(actual, expected) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", JOINING)
def test_peak_memory_doubles_when_the_positions_do(kind, dtype):
    def peak(positions):
        width = 1 if kind == "concat" else 16
        left, right, z = (
            torch.randn(1, positions, c, device="cuda", dtype=dtype, requires_grad=True)
            for c in (width, width, 16)
        )
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        diffuse(Affinity(left, right, kind), z, backend="factored").sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(1024)
    assert peak(32768) / peak(16384) < 2.1


@pytest.mark.parametrize("backend", EXACT)
@pytest.mark.parametrize("normalize", ["row", "count"])
def test_it_can_be_captured(backend, normalize):
    x, z = torch.randn(2, 64, 8, device="cuda"), torch.randn(2, 64, 8, device="cuda")

    def work():
        return diffuse(Affinity(x, x, "gaussian", normalize), z, backend=backend)

    graph, out = capture(work)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, work())
