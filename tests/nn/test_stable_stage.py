"""A stage that cannot grow: W = w V (I + VᵀV)⁻¹ Vᵀ stays within what its kernel bears, for every V and every input."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nonloc.nn.affinity import DotProduct, Heat
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.ops import Affinity, propagate
from nonloc.processes.jump.process import JumpProcess
from nonloc.processes.stability import certify
from nonloc.processes.stability.own_norm import own_norm

C = 4
# Keywords, and the w that their kernel bears.
BEARABLE = [
    ({}, 1.0),
    ({"affinity": "embedded_gaussian", "shared_embedding": True}, 2.0),
    ({"affinity": "embedded_gaussian", "shared_embedding": True, "normalize": "sinkhorn"}, 2.0),
    ({"affinity": "gaussian"}, 2.0),
    ({"affinity": "heat"}, 2.0),
    ({"affinity": "heat", "normalize": "sinkhorn"}, 2.0),
    ({"affinity": "heat", "normalize": "sinkhorn", "share_affinity": False}, 2.0),
    ({"affinity": "heat", "shared_embedding": False}, 1.0),
    ({"affinity": "concat", "normalize": "row", "shared_embedding": True}, 1.0),
    ({"affinity": "concat", "normalize": "row"}, 1.0),
    ({"affinity": "delta"}, 2.0),
]


def made(num_blocks=3, scale=1.0, seed=0, **keywords):
    torch.manual_seed(seed)
    keywords = {"layout": "positions", "init": "torch"} | keywords
    stage = DiffusiveStage(C, num_blocks, weight="stable", **keywords).double()
    with torch.no_grad():
        for weight in stage.maps:
            weight.v.weight.mul_(scale)
    return stage


def features(seed=0, batch=1, positions=7):
    return torch.randn(
        batch, positions, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def law(affinity):
    """π of the kernel's own norm; a stationary law where some positions are left for ever and weigh nothing."""
    norm = own_norm(affinity)
    return norm.weights if norm.is_own else JumpProcess(affinity).stationary_law()[0]


@pytest.mark.parametrize("hidden", [None, 1, 7])
def test_w_is_the_formula(hidden):
    stage = made(hidden=hidden, affinity="heat")
    for weight, w in zip(stage.maps, stage.weights(), strict=True):
        v = weight.v.weight
        inner = torch.eye(v.shape[1], dtype=v.dtype) + v.T @ v
        torch.testing.assert_close(w, 2.0 * v @ torch.linalg.inv(inner) @ v.T)
        assert weight.rank == (hidden or C // 2)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e8, 1e100])
def test_eigenvalues_lie_between_nothing_and_w_however_large_v_is(scale):
    for w in made(scale=scale, hidden=C, affinity="heat").weights():
        assert torch.equal(w, w.T)
        values = torch.linalg.eigvalsh(w.detach())
        assert float(values[0]) >= -1e-15
        assert float(values[-1]) < 2


def test_the_bound_survives_columns_that_are_nearly_the_same():
    """What an inverse of I + VᵀV would lose to rounding."""
    stage = made(affinity="heat", hidden=3)
    with torch.no_grad():
        v = stage.maps[0].v.weight
        v[:, 1] = v[:, 0] * (1 + 1e-9)
        v.mul_(1e9)
    assert float(torch.linalg.eigvalsh(stage.weights()[0].detach())[-1]) < 2


@pytest.mark.parametrize(("keywords", "limit"), BEARABLE)
def test_w_is_what_the_kernel_bears(keywords, limit):
    assert {weight.limit for weight in made(**keywords).maps} == {limit}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(BEARABLE), st.integers(0, 10**6), st.floats(-3, 12), st.floats(-1, 1), st.booleans())
def test_nothing_grows_through_64_sub_blocks(case, seed, log_weight, log_input, masked):
    stage = made(64, 10**log_weight, seed, **case[0])
    x = 10**log_input * features(seed)
    mask = torch.tensor([[True] * 5 + [False] * 2]) if masked else None
    with torch.no_grad():
        affinity = stage.affinity(x, mask)
        weights = law(affinity).unsqueeze(-1)
        signals = [(x, stage(x, mask))]
        if stage.shares_affinity:
            z = features(seed + 1)
            signals.append((z, propagate(affinity, z, [weight.factors() for weight in stage.maps])))
    for before, after in signals:
        sizes = [(weights * z.square()).sum().sqrt() for z in (before, after)]
        assert float(sizes[1]) <= float(sizes[0]) * (1 + 1e-10)


@pytest.mark.parametrize(("keywords", "limit"), BEARABLE[:1] + BEARABLE[4:5])
def test_the_bound_is_needed(keywords, limit):
    """The same stage with three times the weight does grow, so the test above could have failed."""
    stage = made(64, 1e6, hidden=C, **keywords)
    x = features()
    with torch.no_grad():
        weights = law(stage.affinity(x)).unsqueeze(-1)
        grown = propagate(stage.affinity(x), x, [3 * w for w in stage.weights()])
    assert float((weights * grown.square()).sum()) > 10 * float((weights * x.square()).sum())


@pytest.mark.parametrize(("keywords", "limit"), BEARABLE)
def test_one_call_and_step_by_step_agree(keywords, limit):
    stage, x = made(**keywords), features()
    torch.testing.assert_close(stage.states(x)[-1], stage(x))


def test_kernel_works_on_the_factors_and_not_on_w(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "nonloc.nn.nonlocal_module.propagate", lambda affinity, z, weights, **_: seen.extend(weights) or z
    )
    stage = made(hidden=2)
    stage(features())
    for (outer, inner), w in zip(seen, stage.weights(), strict=True):
        assert (list(outer.shape), list(inner.shape)) == ([C, 2], [2, C])
        torch.testing.assert_close(outer @ inner, w)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_gradient_is_that_of_w(scale):
    stage = made(1, scale, hidden=3, affinity="heat")
    weight = stage.maps[0]

    def matrix(v):
        return torch.func.functional_call(weight, {"v.weight": v}, (), tie_weights=False)

    weight.forward = weight.matrix
    assert torch.autograd.gradcheck(matrix, weight.v.weight.detach().clone().requires_grad_())


def test_it_learns():
    """To smooth as another stable stage does: the loss falls to a hundredth."""
    teacher, student = made(2, 2.0, seed=1, affinity="heat"), made(2, 0.3, seed=2, affinity="heat")
    student.embeddings.load_state_dict(teacher.embeddings.state_dict())
    x = features(batch=16)
    with torch.no_grad():
        target = teacher(x)
    optimizer = torch.optim.Adam(student.maps.parameters(), lr=0.03)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (student(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.01 * losses[0]


def test_state_dict_and_copies():
    x = features()
    stage, other = made(seed=0), made(seed=1)
    assert not torch.equal(stage(x), other(x))
    other.load_state_dict(stage.state_dict())
    assert torch.equal(stage(x), other(x))
    assert torch.equal(copy.deepcopy(stage)(x), stage(x))


@pytest.mark.parametrize("init", ["normal", "kaiming", "torch", "fan_in"])
def test_init_draws_v(init):
    torch.manual_seed(0)
    stage = DiffusiveStage(64, 1, weight="stable", init=init, init_std=0.02)
    deviation = float(stage.maps[0].v.weight.detach().std())
    expected = {"normal": 0.02, "kaiming": (2 / 64) ** 0.5, "torch": (3 * 32) ** -0.5, "fan_in": 32**-0.5}
    assert deviation == pytest.approx(expected[init], rel=0.08)


def test_compiles_as_one_graph():
    stage, x = made(affinity="heat"), features(batch=2)
    torch._dynamo.reset()
    compiled = torch.compile(stage, fullgraph=True, backend="aot_eager")
    grads = []
    for module in (stage, compiled):
        stage.zero_grad()
        module(x).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in stage.parameters()])
    torch.testing.assert_close(compiled(x), stage(x))
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.slow
def test_compiles_with_the_default_compiler():
    stage, x = made().float(), features(batch=2).float()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(stage, fullgraph=True)(x), stage(x), rtol=1e-4, atol=1e-5)


def test_exports():
    stage, x = made(), features(batch=2)
    torch.testing.assert_close(torch.export.export(stage, (x,)).module()(x), stage(x))


def test_autocast_half_precision_and_meta_device():
    stage, x = made().float(), features().float()
    expected = stage(x)
    with torch.autocast("cpu", torch.bfloat16):
        result = stage(x)
    assert result.dtype == torch.float32
    # A bfloat16 has 8 bits: a few roundings of 2⁻⁹ of numbers of size 1.
    assert (result - expected).abs().max() < 0.03
    assert copy.deepcopy(stage).to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    with torch.device("meta"):
        assert DiffusiveStage(C, 2, weight="stable")(torch.empty(2, C, 3, 5)).shape == (2, C, 3, 5)


def test_affinity_modules_and_blocks():
    assert DiffusiveBlock(C, weight="stable", affinity=Heat(C)).maps[0].limit == 2.0
    assert DiffusiveBlock(C, weight="stable", affinity=lambda c: Heat(c, shared=False)).maps[0].limit == 1.0

    class Narrow(torch.nn.Module):
        def forward(self, x):
            return Affinity(x[..., :1], x[..., 1:2], "concat", "row")

    assert DiffusiveBlock(C, weight="stable", affinity=Narrow()).maps[0].limit == 1.0


def test_repr_names_the_rank_and_the_limit():
    text = repr(DiffusiveStage(8, 2, weight="stable"))
    assert "weight=stable, hidden=4" in text
    assert "limit=1" in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OriginalStage(C, 2, weight="stable"), 'use DiffusiveStage, or weight="factored"'),
        (lambda: OriginalBlock(C, weight="stable"), "belongs to the diffusive form"),
        (lambda: made(batch_norm=True), 'batch_norm=True would break the bound of weight="stable"'),
        (lambda: made(bias=True), 'bias=True would break the bound of weight="stable"'),
        (lambda: made(init="zero"), 'use init="normal" with a small init_std'),
        (lambda: made(affinity="dot"), 'use affinity="embedded_gaussian" or "heat"'),
        (lambda: made(affinity="dot", normalize="row"), "a dot product may be negative"),
        (lambda: made(affinity=DotProduct(C, normalize="sinkhorn", shared=True)), "may be negative"),
        (lambda: made(affinity="concat"), "normalize='count' has degrees without a bound"),
        (lambda: made(normalize="none"), 'use normalize="row" or "sinkhorn"'),
        (lambda: made(affinity="heat", normalize="symmetric"), "normalize='symmetric' has degrees"),
        (lambda: made(share_affinity=False), 'use share_affinity=True, or normalize="sinkhorn"'),
        (lambda: made(hidden=0), "hidden must be a whole number ≥ 1"),
    ],
)
def test_what_would_break_the_bound_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("size", [1.0, 10.0, 30.0])
def test_the_kernel_moves_with_the_input_and_that_has_no_bound(size):
    """Two positions, x = (0, 1), with logits s x_i x_j: the first shares its row evenly, and
    ∂z_1/∂x_1 = 1 − w/2 + w s/4, while no signal grows through the kernel as it is."""
    stage = DiffusiveStage(
        1, 1, weight="stable", affinity="embedded_gaussian", embed=1, layout="positions"
    ).double()
    with torch.no_grad():
        for linear in (stage.embeddings[0].theta, stage.embeddings[0].phi):
            linear.weight.fill_(size**0.5)
        stage.maps[0].v.weight.fill_(1.0)
    w = stage.weights()[0].item()
    x = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    slope = torch.autograd.functional.jacobian(stage, x)[0, 0, 0, 0, 0, 0].item()
    assert slope == pytest.approx(1 - w / 2 + w * size / 4, rel=1e-12)
    assert certify(stage, x).verdict == "stable"
