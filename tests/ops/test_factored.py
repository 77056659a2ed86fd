"""The linear-memory backend: the reference's values and gradients, and memory that grows with M alone."""

import pytest
import torch
from fused_problems import Problem, by, errors
from hypothesis import given
from hypothesis import strategies as st

from nonloc.ops import KINDS, Affinity, aggregate, diffuse, exponential, propagate, row_blocks
from nonloc.ops.factored import relu_sum
from problems import CELLS, FORMS, SYMMETRIC, decoration, features, generator, peak_bytes, relative, signal


def gradients(backend, kind, normalize, mask=None, measure=None, positions=23):
    left = features(kind, normalize, positions=positions).requires_grad_()
    symmetric = normalize in SYMMETRIC
    right = left if symmetric else features(kind, normalize, positions=positions, seed=8).requires_grad_()
    z = torch.randn(2, positions, 5, dtype=torch.float64, generator=generator(2)).requires_grad_()
    outer = (0.3 * torch.randn(2, 5, 3, dtype=torch.float64, generator=generator(3))).requires_grad_()
    inner = (0.3 * torch.randn(2, 3, 5, dtype=torch.float64, generator=generator(4))).requires_grad_()
    scale = 0.9 if kind in ("gaussian", "heat", "dot") else 1.0
    a = Affinity(left, right, kind, normalize, scale, mask=mask, measure=measure)
    out = propagate(a, z, list(zip(outer, inner, strict=True)), backend=backend)
    leaves = [left, z, outer, inner] if symmetric else [left, right, z, outer, inner]
    cotangent = signal(a, 5, seed=9)
    return [out, *torch.autograd.grad(out, leaves, cotangent, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "normalize"), CELLS)
def test_values_and_gradients_are_those_of_the_reference(kind, normalize, form):
    keywords = decoration(form, 23)
    if normalize != "sinkhorn" and "measure" in keywords:
        keywords["measure"][4] = 0  # which has no Sinkhorn scaling
    truth = gradients("reference", kind, normalize, **keywords)
    actual = gradients("factored", kind, normalize, **keywords)
    assert max(relative(f, t) for f, t in zip(actual, truth, strict=True)) <= 1e-10


@pytest.mark.parametrize(
    ("kind", "normalize"),
    [("gaussian", "row"), ("heat", "count"), ("heat", "symmetric"), ("gaussian", "sinkhorn")],
)
def test_many_small_blocks_give_what_one_gives(kind, normalize, monkeypatch):
    truth = gradients("reference", kind, normalize)
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", 150)  # three rows at a time
    monkeypatch.setattr(exponential, "_attention_serves", lambda query, z, column: False)
    actual = gradients("factored", kind, normalize)
    assert max(relative(f, t) for f, t in zip(actual, truth, strict=True)) <= 1e-10


@pytest.mark.parametrize("normalize", ["row", "count", "none"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "delta"])
def test_sub_sampled_givers(kind, normalize):
    left, right = features(kind, normalize, positions=12), features(kind, normalize, positions=5, seed=4)
    z = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator(1))
    a = Affinity(left, right, kind, normalize)
    truth = aggregate(a, z, backend="reference")
    assert truth.shape == (2, 12, 3)
    assert relative(aggregate(a, z, backend="factored"), truth) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_peak_memory_doubles_when_the_positions_do(kind):
    def work(positions):
        width = 1 if kind == "concat" else 8
        left, right, z = (torch.randn(1, positions, c, requires_grad=True) for c in (width, width, 24))
        return lambda: diffuse(Affinity(left, right, kind), z, backend="factored").sum().backward()

    small, large = peak_bytes(work(2048)), peak_bytes(work(4096))
    assert large / small < 2.1


@pytest.mark.parametrize("normalize", ["count", "symmetric"])
def test_blocks_keep_memory_below_the_matrix(normalize):
    left, z = torch.randn(1, 3000, 8, requires_grad=True), torch.randn(1, 3000, 8, requires_grad=True)
    a = Affinity(left, left, "heat", normalize)
    peak = peak_bytes(lambda: diffuse(a, z, backend="factored").sum().backward())
    # Less than one float32 matrix, of which a plain backward keeps several.
    assert peak < 0.7 * 4 * 3000 * 3000


def test_strided_and_wide_signals_do_not_fall_back_to_the_matrix():
    """A transposed layout and C ≠ d are what sends the CPU's attention back to M² memory."""
    image = torch.randn(1, 40, 64, 64, requires_grad=True)
    x = image.flatten(2).transpose(1, 2)
    a = Affinity(x[..., :8], x[..., 8:16], "gaussian")
    peak = peak_bytes(lambda: diffuse(a, x, backend="factored").sum().backward())
    assert peak < 0.5 * 4 * 4096 * 4096


def attentions(monkeypatch, problem):
    """How often attention was called, and how far value and gradients are from float64."""
    calls = []
    attention = exponential._attention
    monkeypatch.setattr(exponential, "_attention", lambda *inputs: calls.append(1) or attention(*inputs))
    actual = errors(problem.solve(by("factored")), problem.truth(), problem.left_cancels)
    return len(calls), actual


@pytest.mark.parametrize("size", [1e5, 1e8])
def test_rows_sum_to_one_where_logits_are_enormous(monkeypatch, size):
    """Attention's backward makes K from a rounded log-sum-exp, and misses by everything at 1e7."""
    calls, actual = attentions(monkeypatch, Problem(size=size, copies=3, positions=42, blocks=4))
    assert calls == 0
    assert max(actual.values()) < 1e-6


@pytest.mark.parametrize("kind", ["gaussian", "heat"])
@pytest.mark.parametrize("is_masked", [True, False])
def test_attention_serves_ordinary_logits(monkeypatch, kind, is_masked):
    calls, actual = attentions(monkeypatch, Problem(kind, is_masked=is_masked, size=20.0))
    assert calls > 0
    assert max(actual.values()) < 1e-4


def test_padding_far_from_the_other_features_does_not_keep_attention_away(monkeypatch):
    calls, actual = attentions(monkeypatch, Problem("heat", is_masked=True, shift=1000.0))
    assert calls > 0
    assert max(actual.values()) < 1e-4


def test_a_column_alone_can_be_too_large():
    """Heat's −|r|² is a column, and far features give it as much as a product."""
    column = torch.tensor([[1e6, exponential.LOG_ZERO]])
    short = torch.zeros(1, 2, 3)
    assert exponential._logits_are_too_large(short, short, column)
    assert not exponential._logits_are_too_large(short, short, column.clamp(max=1.0))


def direct(left, right, v):
    return torch.relu(left + right.mT) @ v


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_suffix_sums_are_the_direct_sum(seed, rows, columns, ties):
    g = torch.Generator().manual_seed(seed)
    left = torch.randn(2, rows, 1, generator=g, dtype=torch.float64)
    right = torch.randn(2, columns, 1, generator=g, dtype=torch.float64)
    if ties:  # equal and exactly opposite numbers: the boundary of the ReLU
        left, right = left.round(), right.round()
    v = torch.randn(2, columns, 3, generator=g, dtype=torch.float64)
    left.requires_grad_(), right.requires_grad_(), v.requires_grad_()
    sums = relu_sum(left, right)(v), direct(left, right, v)
    cotangent = torch.randn(sums[0].shape, generator=g, dtype=torch.float64)
    gradients = (torch.autograd.grad(one, (left, right, v), cotangent) for one in sums)
    for actual, truth in (sums, *zip(*gradients, strict=True)):
        assert relative(actual, truth) <= 1e-14


def test_a_row_that_is_barely_active_keeps_its_digits():
    right = torch.linspace(-3, 3, 1001, dtype=torch.float64).view(1, -1, 1)
    left = -right[:, -1:] + 1e-12  # only the largest r is active, by 1e-12
    v = torch.ones(1, 1001, 1, dtype=torch.float64)
    actual, truth = relu_sum(left, right)(v), direct(left, right, v)
    assert float(truth) > 0
    assert float((actual - truth).abs() / truth) <= 1e-12
