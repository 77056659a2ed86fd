"""Functions of logits that exist a few rows at a time: values, gradients and their derivatives."""

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck

from nonloc.ops import row_blocks
from nonloc.ops.row_blocks import Exponential, ExponentialBetween, Softmax, by_blocks, log_sums
from problems import generator

ROWS = 5
GIVERS = 4
HAS_WEIGHT = torch.tensor([[True, False, True, True], [False, True, True, False]])
KINDS = [Exponential(), ExponentialBetween(HAS_WEIGHT), Softmax()]


@pytest.fixture(autouse=True)
def _two_rows_at_once(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", 2 * 2 * GIVERS)  # blocks of 2, 2 and 1 rows


def inputs(rows):
    """q, a, k, b, z of two samples."""
    shapes = (2, ROWS, 3), (2, ROWS, 1), (2, GIVERS, 3), (2, GIVERS), (2, GIVERS, 2)
    g = generator(0)
    query, row, *rest = (torch.randn(shape, dtype=torch.float64, generator=g) for shape in shapes)
    if isinstance(rows, ExponentialBetween):
        has_weight = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64).expand(2, -1)
        row = torch.cat([row, has_weight.unsqueeze(-1)], -1)
    return [x.requires_grad_() for x in (query, row, *rest)]


def whole(rows, query, row, key, column, z):
    return rows.plain(query @ key.mT + column.unsqueeze(1), row, z)


@pytest.mark.parametrize("rows", KINDS, ids=lambda rows: type(rows).__name__)
def test_values_and_gradients_are_those_of_all_rows_at_once(rows):
    leaves = inputs(rows)
    results = by_blocks(rows, *leaves), whole(rows, *leaves)
    torch.testing.assert_close(*results)
    v = torch.randn(results[0].shape, dtype=torch.float64, generator=generator(1))
    options = {"allow_unused": True, "materialize_grads": True}
    torch.testing.assert_close(*(grad(result, leaves, v, **options) for result in results))


@pytest.mark.parametrize("one", range(5))
def test_a_gradient_does_not_need_the_others(one):
    leaves = inputs(Exponential())
    expected = grad(whole(Exponential(), *leaves).sum(), leaves[one])
    only = [x if i == one else x.detach() for i, x in enumerate(leaves)]
    torch.testing.assert_close(grad(by_blocks(Exponential(), *only).sum(), leaves[one]), expected)


@pytest.mark.parametrize("rows", KINDS, ids=lambda rows: type(rows).__name__)
def test_second_derivatives(rows):
    leaves = inputs(rows)
    leaves[1] = leaves[1].detach()  # it has whether i has weight beside a
    assert gradgradcheck(lambda *some: by_blocks(rows, *some), leaves)


def test_log_sums():
    query, _, key, column, _ = inputs(Exponential())
    expected = torch.logsumexp(query @ key.mT + column.unsqueeze(1), -1)
    torch.testing.assert_close(log_sums(query, key, column), expected)
    assert gradcheck(log_sums, (query, key, column))
    assert gradgradcheck(log_sums, (query, key, column))


def test_the_sum_of_nothing():
    query, _, key, column, _ = inputs(Exponential())
    nothing = torch.full_like(column, -torch.inf, requires_grad=True)
    sums = log_sums(query, key, nothing)
    assert bool((sums == -torch.inf).all())
    assert not any(bool(g.any()) for g in grad(sums.sum(), (query, key, nothing)))


def test_logits_beyond_the_range_of_exp():
    query = torch.tensor([[[1e4], [-1e4]]], dtype=torch.float64)
    key = torch.tensor([[[1.0], [2.0]]], dtype=torch.float64)
    sums = log_sums(query, key, torch.zeros(1, 2, dtype=torch.float64))
    torch.testing.assert_close(sums, torch.tensor([[2e4, -1e4]], dtype=torch.float64))
