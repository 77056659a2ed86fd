"""Stages with K stored, in Triton's interpreter: values and gradients of float64. States wider than features."""

import pytest
import torch
from fused_problems import Problem, by, check

from nonloc.ops import Affinity, fused, propagate
from nonloc.ops.fused import stored
from nonloc.ops.fused.launch import is_interpreted

pytestmark = pytest.mark.skipif(
    not is_interpreted(), reason="Triton compiles for the GPU here: test_fused_gpu.py"
)

HALF = torch.float16
STAGES = {
    "usual": {},
    "original, wide features": {"differs": False, "embed": 200, "hidden": 150, "batch": 3},
    "heat, mask, odd": {"kind": "heat", "is_masked": True, "positions": 45, "batch": 2},
    "half, full": {"dtype": HALF, "hidden": None, "channels": 20, "embed": 5, "positions": 33},
    "half, keys far from zero": {"dtype": HALF, "right_shift": 30.0, "size": 0.05},
    "rows that share keys": {"size": 1e6, "copies": 3, "positions": 42, "blocks": 4},
}


@pytest.mark.parametrize("keywords", [pytest.param(keywords, id=name) for name, keywords in STAGES.items()])
@pytest.mark.parametrize("samples", ["all", "one by one"])
def test_a_stage(keywords, samples, monkeypatch):
    if samples == "one by one":
        monkeypatch.setattr(stored, "LARGEST_KERNEL", 1)
    check("stored", Problem(**keywords))


def test_a_program_holds_a_row():
    x = torch.zeros(1, 20_000, 4)
    assert "at most 16,384 positions, not 20,000" in fused.lacks(Affinity(x, x, "gaussian"), backend="stored")


@pytest.mark.parametrize("differs", [True, False])
def test_attention_is_the_same_stage(differs):
    check("attention", Problem(dtype=HALF, embed=40, hidden=24, differs=differs))


@pytest.mark.parametrize("backend", ["fused", "stored", "attention"])
def test_a_state_may_be_wider_than_its_features(backend):
    """As under autocast: the change is rounded, the state is not."""
    problem = Problem(dtype=HALF)
    left, right, z, outer, inner = problem.inputs
    z = z.float()

    def solve(backend, dtype):
        leaves = [x.to(dtype or x.dtype).requires_grad_() for x in (left, right, z, outer, inner)]
        pairs = list(zip(leaves[3], leaves[4], strict=True))
        out = propagate(Affinity(*leaves[:2], "gaussian"), leaves[2], pairs, backend=backend)
        gradients = torch.autograd.grad(out, leaves, problem.cotangent.to(out.dtype))
        return [out.detach() - leaves[2].detach(), *gradients]

    results = solve(backend, None)
    assert results[0].dtype == results[3].dtype == torch.float32
    for actual, expected in zip(results, solve("reference", torch.float64), strict=True):
        assert float((actual.double() - expected).norm() / expected.norm()) < 4 * torch.finfo(HALF).eps


@pytest.mark.parametrize("backend", ["stored", "attention"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_traced_program_carries_it_whole(backend, blocks):
    torch._dynamo.reset()
    problem = Problem(dtype=HALF, batch=2, blocks=blocks)
    compiled = torch.compile(by(backend), backend="aot_eager", fullgraph=True, dynamic=True)
    expected = problem.solve(by(backend))
    for name, actual in problem.solve(compiled).items():
        assert torch.equal(actual, expected[name]), name
