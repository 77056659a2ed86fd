"""A stage that cannot grow: W = w V (I + VᵀV)⁻¹ Vᵀ stays within the limit of its kernel, for every V and input."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interpreted import interpreted
from nonloc.nn import stable_weight
from nonloc.nn.affinity import DotProduct, Heat
from nonloc.nn.stable_weight import StableWeightMap, gradient, orthonormal_part, stable_factors
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalStage
from nonloc.ops import Affinity, propagate
from nonloc.processes import certify
from nonloc.processes.jump.process import JumpProcess
from nonloc.processes.stability.own_norm import own_norm
from problems import capture

C = 4
# Keywords, and the limit w of their kernel.
LIMITS = [
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
    """Return π of the kernel's own norm; where some positions weigh 0, it is a stationary law."""
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


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e100])
def test_eigenvalues_lie_between_0_and_the_limit_however_large_v_is(scale):
    for w in made(scale=scale, hidden=C, affinity="heat").weights():
        assert torch.equal(w, w.T)
        values = torch.linalg.eigvalsh(w.detach())
        assert float(values[0]) >= -1e-15
        assert float(values[-1]) < 2


def test_the_bound_survives_columns_that_are_nearly_the_same():
    """An inverse of I + VᵀV would lose this to rounding."""
    stage = made(affinity="heat", hidden=3)
    with torch.no_grad():
        v = stage.maps[0].v.weight
        v[:, 1] = v[:, 0] * (1 + 1e-9)
        v.mul_(1e9)
    assert float(torch.linalg.eigvalsh(stage.weights()[0].detach())[-1]) < 2


@pytest.mark.parametrize(("keywords", "limit"), LIMITS)
def test_the_limit_is_that_of_the_kernel(keywords, limit):
    assert {weight.limit for weight in made(**keywords).maps} == {limit}


@given(st.sampled_from(LIMITS), st.integers(0, 10**6), st.floats(-3, 12), st.floats(-1, 1), st.booleans())
def test_nothing_grows_through_16_sub_blocks(case, seed, log_weight, log_input, masked):
    stage = made(16, 10**log_weight, seed, **case[0])
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


def test_affinity_modules_have_the_limit_of_their_kernel():
    class Narrow(torch.nn.Module):
        def forward(self, x):
            return Affinity(x[..., :1], x[..., 1:2], "concat", "row")

    for affinity, limit in ((Heat(C), 2.0), (lambda c: Heat(c, shared=False), 1.0), (Narrow(), 1.0)):
        assert DiffusiveBlock(C, weight="stable", affinity=affinity).maps[0].limit == limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OriginalStage(C, 2, weight="stable"), 'use that form, or weight="factored"'),
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
        (lambda: made(share_affinity="embedding"), 'use share_affinity=True, or normalize="sinkhorn"'),
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


# orthonormal_part: its Triton kernel in the interpreter and its gradient, against QR in float64.


@pytest.fixture(scope="module")
def kernel():
    with interpreted("nonloc.nn.orthonormal_kernel") as module:
        yield module


def by_qr(v):
    """(Q, P) in float64, with the signs that make R's diagonal positive."""
    rank = v.shape[1]
    q, r = torch.linalg.qr(torch.cat([v.double(), torch.eye(rank, dtype=torch.float64)]))
    q = q * r.diagonal().sign()
    return q[: len(v)], q[len(v) :]


SHAPES = [(16, 8), (7, 5), (1, 1), (2, 6)]


@pytest.mark.parametrize("size", [1e-3, 1e4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_kernel_has_the_columns_of_qr(kernel, shape, size, is_transposed):
    torch.manual_seed(0)
    v = size * (torch.randn(shape[::-1]).mT if is_transposed else torch.randn(shape))
    for columns, expected in zip(kernel.columns(v), by_qr(v), strict=True):
        assert columns.dtype == torch.float32
        torch.testing.assert_close(columns.double(), expected, rtol=1e-6, atol=1e-7)


def test_a_stack_has_the_columns_of_each(kernel):
    torch.manual_seed(2)
    stack = torch.randn(3, 7, 5)
    each = [kernel.columns(v) for v in stack]
    for columns, expected in zip(kernel.columns(stack), zip(*each, strict=True), strict=True):
        assert torch.equal(columns, torch.stack(expected))


def test_the_columns_stay_orthonormal_where_v_is_nearly_singular(kernel):
    """Four columns that differ in the seventh digit, a million times as large as the identity below them."""
    torch.manual_seed(1)
    v = 1e6 * (torch.randn(16, 1) + 1e-7 * torch.randn(16, 4))
    both = torch.cat(kernel.columns(v)).double()
    torch.testing.assert_close(both.mT @ both, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-6)


def test_what_is_not_a_number_stays_none(kernel):
    v = torch.randn(8, 4)
    v[2, 0] = torch.nan
    assert bool(kernel.columns(v)[0].isnan().all())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_that_of_qr(shape):
    torch.manual_seed(3)
    v = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    q, p = by_qr(v)
    dq = torch.randn_like(q)
    (expected,) = torch.autograd.grad(q, v, dq)
    torch.testing.assert_close(gradient(dq, q.detach(), p.detach()), expected, rtol=1e-10, atol=1e-12)


def test_the_function_has_both(kernel, monkeypatch):
    monkeypatch.setattr(stable_weight, "_triton_kernel", lambda: kernel)
    torch.manual_seed(4)
    v, cotangent = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)
    exact = v.detach().double().requires_grad_()
    columns, expected = stable_weight._Columns.apply(v), by_qr(exact)[0]
    torch.testing.assert_close(columns.double(), expected, rtol=1e-6, atol=1e-7)
    (actual,) = torch.autograd.grad(columns, v, cotangent)
    (expected,) = torch.autograd.grad(expected, exact, cotangent.double())
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 32), (7, 5), (128, 64), (4, 64, 32), (256, 128)])
def test_cuda_value_and_gradient_in_a_captured_graph(shape):
    """The last of them is too large for the kernel, and is not captured."""
    torch.manual_seed(6)
    v = torch.randn(shape, device="cuda", requires_grad=True)
    cotangent = torch.randn(shape, device="cuda")
    cotangent = cotangent @ cotangent.mT

    def both():
        q = orthonormal_part(v)
        product = q @ q.mT  # free of the columns' signs
        return product.detach(), *torch.autograd.grad((product * cotangent).sum(), v)

    exact = v.detach().double().requires_grad_()
    inside = torch.linalg.inv(torch.eye(shape[-1], dtype=torch.float64, device="cuda") + exact.mT @ exact)
    product = exact @ inside @ exact.mT
    expected = [product.detach(), *torch.autograd.grad((product * cotangent.double()).sum(), exact)]
    if shape[0] < 256:
        graph, actual = capture(both)
        graph.replay()
    else:
        actual = both()
    for one, other in zip(actual, expected, strict=True):
        assert float((one.double() - other).norm() / other.norm()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ranks", [(4, 4, 4), (4, 3)])
def test_the_factors_of_many_maps_are_those_of_each(ranks, dtype):
    maps = [StableWeightMap(8, hidden=rank, dtype=dtype) for rank in ranks]
    for number, one in enumerate(maps):
        one.limit = 1.0 + number
    for factors, one in zip(stable_factors(maps), maps, strict=True):
        torch.testing.assert_close(factors, one.factors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("channels", "hidden"), [(1, 1), (2, 1), (8, 4), (16, 32), (64, 32)])
@pytest.mark.parametrize("scale", [0.1, 3.0, 1e4])
def test_no_eigenvalue_is_above_the_limit_in_half_precision(dtype, channels, hidden, scale):
    torch.manual_seed(channels)
    for _ in range(5):
        stage = DiffusiveBlock(channels, weight="stable", hidden=hidden, init="torch", affinity="heat")
        with torch.no_grad():
            stage.maps[0].v.weight.mul_(scale)
        stage.to(dtype).requires_grad_(False)
        outer, inner = stage.maps[0].factors()
        assert outer.dtype == dtype
        for w in (outer.double() @ inner.double(), stage.weights()[0].double()):
            assert float(torch.linalg.eigvalsh(w)[-1]) <= stage.maps[0].limit


def test_half_precision_costs_no_more_than_its_rounding():
    torch.manual_seed(0)
    stage = DiffusiveBlock(16, weight="stable", hidden=8, init="torch", affinity="heat").requires_grad_(False)
    full = stage.weights()[0]
    lost = full - stage.bfloat16().weights()[0].float()
    assert float(torch.linalg.matrix_norm(lost, 2)) <= 4 * 2**-8 * 8**0.5 * stage.maps[0].limit
