"""The M log M sum against the M² one, where it is easy and where it cancels."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nonloc.ops.factored import relu_sum
from problems import relative


def direct(left, right, v):
    return torch.relu(left + right.mT) @ v


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_it_is_the_direct_sum(seed, rows, columns, ties):
    g = torch.Generator().manual_seed(seed)
    left = torch.randn(2, rows, 1, generator=g, dtype=torch.float64)
    right = torch.randn(2, columns, 1, generator=g, dtype=torch.float64)
    if ties:  # equal and exactly opposite numbers: the boundary of the ReLU
        left, right = left.round(), right.round()
    v = torch.randn(2, columns, 3, generator=g, dtype=torch.float64)
    left.requires_grad_(), right.requires_grad_(), v.requires_grad_()
    found, truth = relu_sum(left, right)(v), direct(left, right, v)
    assert relative(found, truth) <= 1e-14
    cotangent = torch.randn(truth.shape, generator=g, dtype=torch.float64)
    pairs = zip(
        torch.autograd.grad(found, (left, right, v), cotangent),
        torch.autograd.grad(truth, (left, right, v), cotangent),
        strict=True,
    )
    assert all(relative(f, t) <= 1e-14 for f, t in pairs)


def test_a_row_that_is_barely_active_keeps_its_digits():
    right = torch.linspace(-3, 3, 1001, dtype=torch.float64).view(1, -1, 1)
    left = -right[:, -1:] + 1e-12  # only the largest r is active, by 1e-12
    v = torch.ones(1, 1001, 1, dtype=torch.float64)
    found, truth = relu_sum(left, right)(v), direct(left, right, v)
    assert float(truth) > 0
    assert float((found - truth).abs() / truth) <= 1e-12
