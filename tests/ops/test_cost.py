"""The estimate against measured memory and counted multiply-adds, of `propagate` and of whole stages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.memory import RETURN_FREED
from nonloc.nn import DiffusiveStage, Heat, OriginalStage
from nonloc.ops import Affinity, estimate, propagate
from nonloc.ops.functional import choose_backend
from nonloc.ops.fused.launch import is_interpreted
from nonloc.ops.sparse import SparseAffinity
from problems import EXACT, peak_bytes

SIZES = {"batch": 1, "positions": 64, "channels": 16}
SHAPE = (2, 16, 16, 16)
interpreted = pytest.mark.skipif(not is_interpreted(), reason="no interpreted Triton")


def propagated_peak(
    kind, normalize, backend, *, batch, positions, channels, embed, num_blocks, with_gradient
):
    def rand(*shape):
        return torch.rand(*shape, requires_grad=with_gradient)

    left = rand(batch, positions, 1 if kind == "concat" else embed)
    right = left if normalize in ("symmetric", "sinkhorn") else rand(*left.shape)
    z, weights = rand(batch, positions, channels), rand(num_blocks, channels, channels)

    def work():
        out = propagate(Affinity(left, right, kind, normalize), z, weights, backend=backend)
        if with_gradient:
            out.backward(torch.ones_like(out))

    return peak_bytes(work)


MEASURED = [
    ("gaussian", "row"), ("heat", "none"), ("heat", "symmetric"), ("gaussian", "sinkhorn"),
    ("dot", "row"), ("dot", "sinkhorn"), ("concat", "count"), ("delta", "symmetric"),
]  # fmt: skip


SMALL = {"batch": 2, "positions": 256, "channels": 16, "embed": 8, "num_blocks": 2}
MANY = {"batch": 1, "channels": 8, "embed": 8, "num_blocks": 1}


@pytest.mark.parametrize(
    ("backend", "kind", "normalize", "sizes"),
    [
        *((backend, *cell, SMALL) for backend in EXACT for cell in MEASURED),
        ("factored", "dot", "row", SMALL | {"embed": 128}),
        ("factored", "dot", "none", SMALL | {"embed": 128, "num_blocks": 1}),
        ("factored", "dot", "symmetric", SMALL | {"embed": 128}),
        # The interpreter is slow, and a long profile loses events.
        pytest.param("fused", "heat", "row", SMALL | {"positions": 64}, marks=interpreted),
        pytest.param("stored", "gaussian", "row", SMALL | {"positions": 64}, marks=interpreted),
        ("factored", "gaussian", "row", MANY | {"positions": 4000}),
        ("factored", "concat", "count", MANY | {"positions": 20_000}),
        pytest.param("factored", "heat", "none", MANY | {"positions": 5000}, marks=pytest.mark.slow),
    ],
)
def test_bytes_are_within_a_quarter_of_measured(backend, kind, normalize, sizes):
    costs = estimate(kind, normalize, **sizes)[backend]
    for estimated, with_gradient in ((costs.forward_bytes, False), (costs.backward_bytes, True)):
        measured = propagated_peak(kind, normalize, backend, **sizes, with_gradient=with_gradient)
        assert 0.75 <= estimated / measured <= 1.25


STAGES = {
    "diffusive": lambda **k: DiffusiveStage(16, 3, **k),
    "diffusive, stable": lambda **k: DiffusiveStage(16, 3, weight="stable", **k),
    "diffusive, full, heat, count": lambda **k: DiffusiveStage(
        16, 2, weight="full", affinity="heat", normalize="count", **k
    ),
    "diffusive, an affinity each": lambda **k: DiffusiveStage(16, 3, share_affinity=False, **k),
    "original, sub-sampled": lambda **k: OriginalStage(16, 2, subsample=2, **k),
    "original, bias and norm": lambda **k: OriginalStage(16, 2, bias=True, batch_norm=True, **k),
}


def stage_peak(stage, shape, with_gradient):
    x = torch.randn(shape, requires_grad=with_gradient)

    def work():
        with torch.set_grad_enabled(with_gradient):
            out = stage(x)
        if with_gradient:
            out.backward(torch.ones_like(out))

    return peak_bytes(work)


@pytest.mark.parametrize("name", STAGES)
def test_bytes_of_a_stage_are_within_a_quarter_of_measured(name):
    costs = estimate(STAGES[name](), shape=SHAPE)
    for backend in EXACT:
        forward, both = (stage_peak(STAGES[name](backend=backend), SHAPE, g) for g in (False, True))
        assert 0.8 <= costs[backend].forward_bytes / forward <= 1.25, backend
        assert 0.8 <= costs[backend].backward_bytes / both <= 1.25, backend


WIDE = {"affinity": "dot", "embed": 128, "backend": "factored"}


@pytest.mark.parametrize(
    "stage",
    [
        DiffusiveStage(16, 2, **WIDE),
        DiffusiveStage(16, 3, share_affinity=False, **WIDE),
        OriginalStage(16, 3, share_affinity=True, normalize="count", subsample=2, **WIDE),
    ],
    ids=["one affinity", "an affinity each", "sub-sampled"],
)
def test_features_of_dot_that_are_wider_than_the_states_are_counted(stage):
    costs = estimate(stage, shape=SHAPE)["factored"]
    assert 0.8 <= costs.forward_bytes / stage_peak(stage, SHAPE, False) <= 1.25
    assert 0.8 <= costs.backward_bytes / stage_peak(stage, SHAPE, True) <= 1.25


RESIDENT = """
import json, sys, torch
from benchmarks.memory import measured
from nonloc.nn import DiffusiveStage
backend, shape = json.loads(sys.argv[1])
torch.set_num_threads(1)
stage = DiffusiveStage(64, 4, backend=backend)
def work(x):
    out = stage(x)
    out.backward(torch.ones_like(out))
work(torch.randn(shape))  # libraries and their buffers, not to be counted
stage.zero_grad()
x = torch.randn(shape, requires_grad=True)
print(measured(lambda: work(x))[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is read from Linux")
@pytest.mark.parametrize("backend", ["reference", "factored"])
def test_bytes_are_those_of_a_fresh_process(backend):
    shape = (4, 64, 32, 32)
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, json.dumps([backend, shape])],
        env=os.environ | RETURN_FREED | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    estimated = estimate(DiffusiveStage(64, 4), shape=shape)[backend].backward_bytes
    assert 0.8 <= estimated / int(done.stdout) <= 1.2


def test_reference_is_quadratic_and_factored_linear():
    def at(m, backend):
        return estimate("gaussian", batch=1, positions=m, channels=16)[backend].backward_bytes

    assert at(80_000, "reference") / at(40_000, "reference") == pytest.approx(4, rel=0.01)
    assert at(80_000, "factored") / at(40_000, "factored") == pytest.approx(2, rel=0.1)


def test_multiply_adds_of_the_reference_are_those_of_its_products():
    b, m, c, d, n = 2, 64, 16, 8, 3
    actual = estimate("dot", "none", batch=b, positions=m, channels=c, embed=d, num_blocks=n)["reference"]
    products = b * m * m * d + n * (b * m * m * c + b * m * c * c)
    # The rest are element-wise: the scale and the mask of weights on the matrix, the row sums times z.
    assert products <= actual.forward_macs <= products + 2 * b * m * m + n * b * m * c


@pytest.mark.parametrize("name", STAGES)
def test_multiply_adds_of_a_stage_are_those_that_torch_counts(name):
    stage = STAGES[name](backend="reference")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        stage(torch.randn(SHAPE))
    assert 2 * estimate(stage, shape=SHAPE)["reference"].forward_macs == counter.get_total_flops()


@interpreted
def test_multiply_adds_of_the_fused_kernels_are_those_of_their_products(monkeypatch):
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
    z, weights = (torch.randn(*shape, requires_grad=True) for shape in ((1, 64, 128), (3, 128, 128)))
    with torch.no_grad():
        propagate(Affinity(left, right, "heat"), z, weights, backend="fused")
    forward = sum(counted)
    counted.clear()
    propagate(Affinity(left, right, "heat"), z, weights, backend="fused").sum().backward()
    actual = estimate("heat", batch=1, positions=64, channels=128, embed=16, num_blocks=3)["fused"]
    # Beside the products there are element-wise ones: heat's |r|², and its gradient.
    assert 0 <= actual.forward_macs - forward <= 20 * 64 * 16
    assert 0 <= actual.backward_macs - (sum(counted) - forward) <= 20 * 64 * 16


@pytest.mark.parametrize(
    ("kind", "normalize", "keywords", "expected"),
    [
        ("gaussian", "row", {}, {"fused", "stored"}),
        ("heat", "row", {"dtype": torch.bfloat16}, {"fused", "stored"}),
        ("gaussian", "row", {"dtype": torch.bfloat16, "embed": 200}, {"stored", "attention"}),
        ("gaussian", "row", {"dtype": torch.float64}, set()),
        ("heat", "count", {}, set()),
    ],
)
def test_backends_of_a_gpu_are_listed_where_they_serve(kind, normalize, keywords, expected):
    assert set(estimate(kind, normalize, **SIZES, **keywords)) == {"reference", "factored"} | expected


@pytest.mark.parametrize("shape", [(1, 16, 8, 8), (8, 16, 64, 64)])
def test_auto_is_the_backend_that_the_stage_takes(shape):
    stage = DiffusiveStage(16, 2)
    costs = estimate(stage, shape=shape)
    assert costs.auto == costs.auto_on_cuda == choose_backend(stage.affinity(torch.zeros(shape)))
    half = estimate(stage, shape=shape, dtype=torch.bfloat16)
    assert (half.auto, half.auto_on_cuda) == (costs.auto, "fused")


def test_on_cuda_auto_goes_by_the_sub_blocks_of_one_operation():
    stages = [DiffusiveStage(256, 4, share_affinity=share) for share in (True, False)]
    costs = [estimate(stage, shape=(8, 256, 16, 16), dtype=torch.bfloat16) for stage in stages]
    assert [one.auto_on_cuda for one in costs] == ["stored", "attention"]


def test_the_stage_is_not_changed_and_may_be_empty():
    def frozen_stage():
        stage = OriginalStage(8, 2, batch_norm=True, backend="factored")
        stage.maps[0].w_z.weight.requires_grad_(False)
        return stage

    stage = frozen_stage()
    before = {name: value.clone() for name, value in stage.state_dict().items()}
    costs = estimate(stage, shape=(2, 8, 4, 4))
    assert (stage.backend, stage.training) == ("factored", True)
    assert not stage.maps[0].w_z.weight.requires_grad
    torch.testing.assert_close(stage.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None for p in stage.parameters())
    with torch.device("meta"):
        assert estimate(frozen_stage(), shape=(2, 8, 4, 4)) == costs


def test_the_dtype_is_that_of_the_parameters():
    stage = DiffusiveStage(16, 1)
    wide = estimate(stage.double(), shape=SHAPE)["reference"].backward_bytes
    assert estimate(stage.double(), shape=SHAPE, dtype=torch.float32)["reference"].backward_bytes * 2 == wide
    assert estimate(stage.float(), shape=SHAPE)["reference"].backward_bytes * 2 == wide


def test_a_stage_on_positions_makes_no_copies():
    first = estimate(DiffusiveStage(16, 2), shape=SHAPE)["factored"]
    last = estimate(DiffusiveStage(16, 2, layout="positions"), shape=(2, 256, 16))["factored"]
    assert last.forward_macs == first.forward_macs
    assert last.backward_bytes < first.backward_bytes


class Graph(nn.Module):
    def forward(self, x):
        return SparseAffinity(torch.eye(16).to_sparse_csr())


class Looks(nn.Module):
    def forward(self, x):
        return Affinity(x, x, "gaussian", scale=float(x.square().mean().rsqrt()))


class Measured(nn.Module):
    def forward(self, x):
        return Affinity(x, x, "gaussian", measure=torch.ones(x.shape[1]))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("affinity", [Graph, Looks])
def test_what_needs_numbers_is_refused(affinity):
    with pytest.raises(ValueError, match="shapes alone do not tell"):
        estimate(DiffusiveStage(8, 2, affinity=affinity()), shape=(1, 8, 4, 4))


def test_an_affinity_module_of_the_user_is_counted():
    own, by_name = DiffusiveStage(16, 2, affinity=Heat(16)), DiffusiveStage(16, 2, affinity="heat")
    assert estimate(own, shape=SHAPE) == estimate(by_name, shape=SHAPE)
    costs = estimate(DiffusiveStage(16, 2, affinity=Measured()), shape=SHAPE, dtype=torch.bfloat16)
    assert set(costs) == {"reference", "factored"}
    assert costs.auto_on_cuda != "fused"
    assert estimate("embedded_gaussian", **SIZES) == estimate("gaussian", **SIZES)


@pytest.mark.parametrize(
    ("args", "keywords", "message"),
    [
        (("gaussian",), {**SIZES, "batch": 0}, "batch must be a whole number"),
        (("gaussian",), {**SIZES, "positions": 2.5}, "positions must be a whole number"),
        (("heat",), {**SIZES, "shape": SHAPE}, "shape=.* goes with a stage"),
        ((DiffusiveStage(16, 2),), {"shape": SHAPE, "batch": 2}, "batch=2 goes with a kernel by name"),
        ((DiffusiveStage(16, 2),), {"shape": None}, "shape must be"),
        ((DiffusiveStage(16, 2),), {"shape": (2, 16, 4.0)}, "shape must be"),
        ((DiffusiveStage(16, 2),), {"shape": (2, 8, 4, 4)}, "has 16 channels"),
        ((nn.Conv2d(3, 16, 3),), {"shape": (1, 3, 8, 8)}, r"nonloc.nn.stage_inputs\(network, images\)"),
    ],
)  # fmt: skip
def test_wrong_arguments_name_the_fix(args, keywords, message):
    with pytest.raises(ValueError, match=message):
        estimate(*args, **keywords)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize(("batch", "positions"), [(16, 1024), (1, 20_000)])
def test_cuda_bytes_of_the_fused_backend(kind, batch, positions):
    sizes = {"batch": batch, "positions": positions, "channels": 64, "embed": 32, "num_blocks": 4}
    costs = estimate(kind, **sizes, dtype=torch.bfloat16)["fused"]
    shapes = ((batch, positions, 32),) * 2 + ((batch, positions, 64), (4, 64, 64))
    for with_gradient, expected in ((False, costs.forward_bytes), (True, costs.backward_bytes)):
        left, right, z, weights = (
            (0.1 * torch.randn(*shape, device="cuda", dtype=torch.bfloat16)).requires_grad_(with_gradient)
            for shape in shapes
        )
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = propagate(Affinity(left, right, kind), z, weights, backend="fused")
        if with_gradient:
            out.backward(torch.ones_like(out))
        assert 0.75 <= expected / (torch.cuda.max_memory_allocated() - before) <= 1.25
