"""The estimate of `propagate` against measured memory, within a quarter, and against counted multiply-adds."""

from functools import cache

import pytest
import torch

from nonloc.ops import Affinity, estimate, propagate
from nonloc.ops.fused.launch import is_interpreted
from problems import CELLS, EXACT

interpreted = pytest.mark.skipif(not is_interpreted(), reason="Triton compiles for the GPU here")


def measured_peak(kind, normalize, backend, batch, positions, channels, embed, num_blocks, with_gradient):
    """Peak of the bytes that torch's allocator handed out above the inputs, from its own memory profiler."""
    width = 1 if kind == "concat" else embed

    def rand(*shape):
        return torch.rand(*shape, requires_grad=with_gradient)

    left = rand(batch, positions, width)
    right = left if normalize in ("symmetric", "sinkhorn") else rand(batch, positions, width)
    z, weights = rand(batch, positions, channels), rand(num_blocks, channels, channels)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        out = propagate(Affinity(left, right, kind, normalize), z, weights, backend=backend)
        if with_gradient:
            out.backward(torch.ones_like(out))
        del out
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@cache
def estimated(kind, normalize, batch, positions, channels, embed, num_blocks):
    sizes = {"batch": batch, "positions": positions, "channels": channels}
    return estimate(kind, normalize, embed=embed, num_blocks=num_blocks, **sizes)


BACKENDS_OF_CELLS = [(backend, *cell) for backend in EXACT for cell in CELLS]
FUSED = [pytest.param("fused", kind, "row", marks=interpreted) for kind in ("gaussian", "heat")]


@pytest.mark.parametrize(("backend", "kind", "normalize"), [*BACKENDS_OF_CELLS, *FUSED])
def test_bytes_are_within_a_quarter_of_measured(backend, kind, normalize):
    # The interpreter is slow, and a long profile loses events.
    shape = (2, 64 if backend == "fused" else 256, 16, 8, 2)
    cost = estimated(kind, normalize, *shape)[backend]
    forward = measured_peak(kind, normalize, backend, *shape, with_gradient=False)
    both = measured_peak(kind, normalize, backend, *shape, with_gradient=True)
    assert 0.75 <= cost.forward_bytes / forward <= 1.25
    assert 0.75 <= cost.backward_bytes / both <= 1.25


@pytest.mark.parametrize(
    ("kind", "normalize", "positions", "channels"),
    [
        ("gaussian", "row", 7000, 16),
        ("dot", "row", 30_000, 8),
        ("concat", "count", 30_000, 8),
        ("heat", "none", 5000, 8),
    ],
)
def test_extrapolated_bytes_are_within_a_quarter_of_measured(kind, normalize, positions, channels):
    cost = estimate(kind, normalize, batch=1, positions=positions, channels=channels, embed=8)["factored"]
    both = measured_peak(kind, normalize, "factored", 1, positions, channels, 8, 1, with_gradient=True)
    assert 0.75 <= cost.backward_bytes / both <= 1.25


def test_reference_is_quadratic_and_factored_linear():
    def at(m, backend):
        return estimate("gaussian", batch=1, positions=m, channels=16)[backend].backward_bytes

    assert at(80_000, "reference") / at(40_000, "reference") == pytest.approx(4, rel=0.01)
    assert at(80_000, "factored") / at(40_000, "factored") == pytest.approx(2, rel=0.1)


def test_multiply_adds_of_the_reference_are_those_of_its_products():
    b, m, c, d, n = 2, 32, 8, 4, 3
    cost = estimate("dot", "none", batch=b, positions=m, channels=c, embed=d, num_blocks=n)["reference"]
    products = b * m * m * d + n * (b * m * m * c + b * m * c * c)
    # The rest are element-wise: the scale and the mask of weights on the matrix, the row sums times z.
    assert products <= cost.forward_macs <= products + 2 * b * m * m + n * b * m * c


def test_an_original_claim_of_cost():
    """C = 64, M = 1024, d = 32: the affinity alone is 33.6 M multiply-adds an image, 4 MiB in float32."""
    cost = estimate("gaussian", batch=1, positions=1024, channels=64, embed=32)["reference"]
    assert cost.forward_macs > 1024 * 1024 * (32 + 64)
    assert cost.forward_bytes >= 4 * 1024 * 1024


@pytest.mark.parametrize("bad", [{"batch": 0}, {"positions": 2.5}, {"num_blocks": -1}])
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be a whole number"):
        estimate("gaussian", **{"batch": 1, "positions": 4, "channels": 4, **bad})


@pytest.mark.parametrize(
    ("kind", "normalize", "keywords", "expected"),
    [
        ("gaussian", "row", {}, True),
        ("heat", "row", {"dtype": torch.bfloat16}, True),
        ("gaussian", "row", {"dtype": torch.float64}, False),
        ("gaussian", "row", {"embed": 200}, False),
        ("heat", "count", {}, False),
        ("dot", "row", {}, False),
    ],
)
def test_the_fused_backend_is_there_where_it_serves(kind, normalize, keywords, expected):
    cost = estimate(kind, normalize, batch=1, positions=64, channels=8, **keywords)
    assert ("fused" in cost) == expected
    assert {"reference", "factored"} <= set(cost)


@interpreted
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_multiply_adds_of_the_fused_kernels_are_those_of_their_products(monkeypatch, kind, blocks):
    """Counted where the interpreter multiplies. The logits are small: the bound of a row needs no second look."""
    from triton.runtime.interpreter import InterpreterBuilder

    counted = []
    dot = InterpreterBuilder.create_dot

    def counting(self, a, b, *args):
        (rows, inner), columns = a.data.shape, b.data.shape[1]
        counted.append(rows * inner * columns)
        return dot(self, a, b, *args)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", counting)
    left, right = (0.1 * torch.randn(1, 64, 16, requires_grad=True) for _ in range(2))
    z, weights = (torch.randn(*shape, requires_grad=True) for shape in ((1, 64, 128), (blocks, 128, 128)))
    with torch.no_grad():
        propagate(Affinity(left, right, kind), z, weights, backend="fused")
    forward = sum(counted)
    counted.clear()
    propagate(Affinity(left, right, kind), z, weights, backend="fused").sum().backward()
    cost = estimate(kind, batch=1, positions=64, channels=128, embed=16, num_blocks=blocks)["fused"]
    # Beside the products there are element-wise ones: heat's |r|², and its gradient.
    few = 20 * 64 * 16 if kind == "heat" else 64
    assert 0 <= cost.forward_macs - forward <= few
    assert 0 <= cost.backward_macs - (sum(counted) - forward) <= few


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize(("batch", "positions"), [(16, 1024), (1, 20_000)])
def test_cuda_bytes_of_the_fused_backend(kind, batch, positions):
    cost = estimate(
        kind, batch=batch, positions=positions, channels=64, embed=32, num_blocks=4, dtype=torch.bfloat16
    )["fused"]
    for with_gradient, expected in ((False, cost.forward_bytes), (True, cost.backward_bytes)):
        left, right, z = (
            torch.randn(batch, positions, c, device="cuda", dtype=torch.bfloat16).requires_grad_(
                with_gradient
            )
            for c in (32, 32, 64)
        )
        weights = torch.randn(4, 64, 64, device="cuda", dtype=torch.bfloat16).mul_(0.1)
        weights.requires_grad_(with_gradient)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = propagate(Affinity(left, right, kind), z, weights, backend="fused")
        if with_gradient:
            out.backward(torch.ones_like(out))
        peak = torch.cuda.max_memory_allocated() - before
        assert 0.75 <= expected / peak <= 1.25
