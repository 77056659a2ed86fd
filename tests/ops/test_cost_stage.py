"""The estimate of a whole stage, against the memory of the stage itself and against what it is said to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nonloc.nn import DiffusiveBlock, DiffusiveStage, Gaussian, Heat, OriginalStage, stages
from nonloc.ops import Affinity, cost, estimate
from nonloc.ops.functional import choose_backend
from nonloc.ops.sparse import SparseAffinity
from problems import EXACT

SHAPE = (2, 16, 16, 16)
STAGES = {
    "diffusive": lambda **k: DiffusiveStage(16, 3, **k),
    "original": lambda **k: OriginalStage(16, 3, **k),
    "diffusive, full": lambda **k: DiffusiveStage(16, 3, weight="full", **k),
    "diffusive, stable": lambda **k: DiffusiveStage(16, 3, weight="stable", **k),
    "diffusive, an affinity each": lambda **k: DiffusiveStage(16, 3, share_affinity=False, **k),
    "original, one affinity": lambda **k: OriginalStage(16, 3, share_affinity=True, **k),
    "original, sub-sampled": lambda **k: OriginalStage(16, 2, subsample=2, **k),
    "original, bias and norm": lambda **k: OriginalStage(16, 2, bias=True, batch_norm=True, **k),
    "diffusive, heat, count": lambda **k: DiffusiveStage(16, 2, affinity="heat", normalize="count", **k),
    "original, concat": lambda **k: OriginalStage(16, 2, affinity="concat", **k),
    "diffusive, dot": lambda **k: DiffusiveStage(16, 2, affinity="dot", **k),
}


def profiled_peak(stage, shape, with_gradient):
    """Peak of the bytes that torch's allocator handed out above the inputs, from its own memory profiler."""
    x = torch.randn(shape, requires_grad=with_gradient)
    with (
        torch.autograd.profiler.profile(profile_memory=True) as profile,
        torch.set_grad_enabled(with_gradient),
    ):
        out = stage(x)
        if with_gradient:
            out.backward(torch.ones_like(out))
        del out
    now = peak = 0
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("name", STAGES)
def test_bytes_are_those_that_torch_allocates(name):
    costs = estimate(STAGES[name](), shape=SHAPE)
    for backend in EXACT:
        found = costs[backend]
        forward, both = (profiled_peak(STAGES[name](backend=backend), SHAPE, g) for g in (False, True))
        assert 0.95 <= found.forward_bytes / forward <= 1.05, backend
        assert 0.95 <= found.backward_bytes / both <= 1.05, backend


RESIDENT = """
import json, sys, torch
from pathlib import Path
from nonloc import nn
from benchmarks.memory import resident
name, channels, num_blocks, keywords, shape, with_gradient = json.loads(sys.argv[1])
torch.set_num_threads(1)
stage = getattr(nn, name)(channels, num_blocks, **keywords)
def work(x):
    with torch.set_grad_enabled(with_gradient):
        out = stage(x)
    if with_gradient:
        out.backward(torch.ones_like(out))
work(torch.randn(shape))  # libraries and their buffers, not to be counted
stage.zero_grad()
x = torch.randn(shape, requires_grad=with_gradient)
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
work(x)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is read from Linux")
@pytest.mark.parametrize(
    ("name", "keywords", "shape", "with_gradient"),
    [
        ("DiffusiveStage", {"backend": "reference"}, (4, 64, 32, 32), True),
        ("DiffusiveStage", {"backend": "factored"}, (4, 64, 32, 32), True),
        ("OriginalStage", {"backend": "reference", "weight": "full"}, (4, 64, 32, 32), False),
    ],
)
def test_bytes_are_those_of_a_fresh_process(name, keywords, shape, with_gradient):
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # attention has room for each thread
    try:
        stage = {"DiffusiveStage": DiffusiveStage, "OriginalStage": OriginalStage}[name](64, 4, **keywords)
        found = estimate(stage, shape=shape)[keywords["backend"]]
    finally:
        torch.set_num_threads(torch_threads)
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, json.dumps([name, 64, 4, keywords, shape, with_gradient])],
        # Freed arrays go back at once: by glibc, and by mimalloc, which torch has on some processors.
        env={
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": str(2**17),
            "MIMALLOC_PURGE_DELAY": "0",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = found.backward_bytes if with_gradient else found.forward_bytes
    assert 0.85 <= expected / int(done.stdout) <= 1.03


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (lambda: DiffusiveStage(8, 2, affinity="heat", normalize="count"), (1, 8, 50, 50)),
        (lambda: OriginalStage(8, 2, affinity="heat", normalize="none", subsample=2), (1, 8, 66, 66)),
    ],
)
def test_what_is_extrapolated_is_what_would_have_been_traced(monkeypatch, made, shape):
    monkeypatch.setattr(cost, "LARGEST_TRACED", 10_000)
    whole = estimate(made(), shape=shape)["factored"]
    monkeypatch.setattr(cost, "LARGEST_TRACED", 0)
    found = estimate(made(), shape=shape)["factored"]
    assert found != whole
    assert found.forward_bytes == pytest.approx(whole.forward_bytes, rel=0.05)
    assert found.backward_bytes == pytest.approx(whole.backward_bytes, rel=0.05)
    assert found.forward_macs == pytest.approx(whole.forward_macs, rel=0.01)
    assert found.backward_macs == pytest.approx(whole.backward_macs, rel=0.01)


def test_multiply_adds_of_a_stage_with_the_matrix():
    """Embeddings, logits, and for each sub-block W_g, K and W_Z."""
    b, m, c, d, r, n = 2, 64, 16, 8, 4, 3
    found = estimate(DiffusiveStage(c, n, embed=d, hidden=r), shape=(b, c, 8, 8))["reference"]
    products = b * m * (2 * c * d + m * d + n * (c * r + m * r + r * c))
    # The rest are element-wise: the scale on the matrix, the row sums times z.
    assert products <= found.forward_macs <= products + b * m * m + n * b * m * r


def test_nothing_of_the_stage_is_changed():
    stage = OriginalStage(8, 2, batch_norm=True, backend="factored")
    stage.maps[0].w_z.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in stage.state_dict().items()}
    estimate(stage, shape=(2, 8, 4, 4))
    assert stage.backend == "factored"
    assert stage.training
    assert all(torch.equal(value, before[name]) for name, value in stage.state_dict().items())
    assert [p.grad for p in stage.parameters()] == [None] * len(list(stage.parameters()))
    assert not stage.maps[0].w_z.weight.requires_grad


def test_a_stage_without_contents_costs_the_same():
    with torch.device("meta"):
        empty = DiffusiveStage(16, 2)
    assert estimate(empty, shape=SHAPE) == estimate(DiffusiveStage(16, 2), shape=SHAPE)


def test_the_dtype_is_that_of_the_parameters():
    stage = DiffusiveBlock(16)
    wide = estimate(stage.double(), shape=SHAPE)["reference"].backward_bytes
    assert estimate(stage.double(), shape=SHAPE, dtype=torch.float32)["reference"].backward_bytes * 2 == wide
    assert estimate(stage.float(), shape=SHAPE)["reference"].backward_bytes * 2 == wide


def test_a_stage_on_positions():
    """No copies are made to turn [B, C, *spatial] into [B, M, C]; the products are the same."""
    shape = (2, 16, 16, 16)
    first = estimate(DiffusiveStage(16, 2), shape=shape)["factored"]
    for given in ((2, 256, 16), (2, 16, 16, 16)):
        stage = DiffusiveStage(16, 2, layout="positions", backend="factored")
        last = estimate(stage, shape=given)["factored"]
        assert last.forward_macs == first.forward_macs
        assert last.backward_bytes < first.backward_bytes
        assert last.backward_bytes == pytest.approx(profiled_peak(stage, given, True), rel=0.05)


@pytest.mark.parametrize("shape", [(1, 16, 8, 8), (8, 16, 64, 64)])
def test_auto_is_the_backend_that_the_stage_takes(shape):
    stage, x = DiffusiveStage(16, 2), torch.zeros(shape)
    costs = estimate(stage, shape=shape)
    assert costs.auto == costs.auto_on_cuda == choose_backend(stage.affinity(x))


def test_auto_on_a_gpu_is_fused_in_half_precision():
    costs = estimate(DiffusiveStage(16, 2), shape=(8, 16, 64, 64), dtype=torch.bfloat16)
    assert (costs.auto, costs.auto_on_cuda) == ("factored", "fused")
    by_name = {"batch": 1, "positions": 64, "channels": 16}
    costs = estimate("heat", "row", **by_name, dtype=torch.float16)
    assert (costs.auto, costs.auto_on_cuda) == ("reference", "fused")
    assert estimate("dot", **by_name).auto == "factored"


def test_the_names_of_affinity_modules_are_taken():
    sizes = {"batch": 1, "positions": 64, "channels": 16}
    assert estimate("embedded_gaussian", **sizes) == estimate("gaussian", **sizes)


def test_the_stages_of_a_network():
    network = nn.Sequential(nn.Conv2d(3, 16, 3), DiffusiveStage(16, 2))
    with pytest.raises(ValueError, match=r"nonloc.nn.stage_inputs\(network, images\)"):
        estimate(network, shape=(1, 3, 8, 8))
    ((_, stage),) = stages(network)
    assert estimate(stage, shape=(1, 16, 6, 6))["reference"].forward_bytes > 0


@pytest.mark.parametrize("shape", [None, (2, 16, 0), (2, 16, 4.0)])
def test_an_impossible_shape_is_refused(shape):
    with pytest.raises(ValueError, match="shape must be that of an input"):
        estimate(DiffusiveStage(16, 2), shape=shape)


def test_a_shape_with_other_channels_is_refused_in_the_words_of_the_stage():
    with pytest.raises(ValueError, match="has 16 channels"):
        estimate(DiffusiveStage(16, 2), shape=(2, 8, 4, 4))


def test_what_belongs_to_the_other_use_is_refused():
    with pytest.raises(ValueError, match="batch=2 goes with a kernel by name"):
        estimate(DiffusiveStage(16, 2), shape=SHAPE, batch=2)
    with pytest.raises(ValueError, match="goes with a stage"):
        estimate("heat", shape=SHAPE, batch=1, positions=4, channels=4)


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("matrix", torch.eye(16).to_sparse_csr())

    def forward(self, x):
        return SparseAffinity(self.matrix)


class Looks(nn.Module):
    def forward(self, x):
        return Affinity(x, x, "gaussian", scale=float(x.square().mean().rsqrt()))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("affinity", [Graph, Looks])
def test_what_shapes_do_not_tell_is_refused(affinity):
    with pytest.raises(ValueError, match="shapes alone do not tell"):
        estimate(DiffusiveStage(8, 2, affinity=affinity()), shape=(1, 8, 4, 4))


@pytest.mark.parametrize("affinity", [Gaussian, Heat])
def test_an_affinity_module_of_ones_own_is_counted(affinity):
    named = affinity.__name__.lower()
    own, by_name = DiffusiveStage(16, 2, affinity=affinity(16)), DiffusiveStage(16, 2, affinity=named)
    assert estimate(own, shape=SHAPE) == estimate(by_name, shape=SHAPE)


class Measured(nn.Module):
    def forward(self, x):
        return Affinity(x, x, "gaussian", measure=torch.ones(x.shape[1]))


def test_what_the_fused_kernels_do_not_take_is_left_out():
    costs = estimate(DiffusiveStage(16, 2, affinity=Measured()), shape=SHAPE, dtype=torch.bfloat16)
    assert set(costs) == {"reference", "factored"}
    assert costs.auto_on_cuda != "fused"


def test_a_default_device_does_not_matter():
    expected = estimate(DiffusiveStage(16, 2), shape=SHAPE)
    with torch.device("meta"):
        assert estimate(DiffusiveStage(16, 2), shape=SHAPE) == expected
