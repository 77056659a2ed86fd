"""Rows of a kernel without the others: equal to those of the whole matrix."""

import pytest
import torch
from chains import chain

from nonloc.ops import Affinity, kernel_matrix
from nonloc.processes.jump.paths import kernel_rows, row_normalized
from problems import affinity, features, generator, relative

ROWS = torch.tensor([4, 0, 3])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalize", ["row", "sinkhorn"])
@pytest.mark.parametrize("kind", ["gaussian", "heat", "dot", "concat"])
def test_rows_are_those_of_the_matrix(kind, normalize, weighted):
    mask = measure = None
    if weighted:
        mask = torch.tensor([[True] * 6, [True, False, True, True, True, True]])
        measure = torch.rand(6, generator=generator(2), dtype=torch.float64) + 0.1
    x = features(kind, "sinkhorn")
    whole = Affinity(x, x, kind, normalize, 1.0, mask=mask, measure=measure)
    found = kernel_rows(row_normalized(whole.sample(1)), ROWS)
    assert relative(found, kernel_matrix(whole)[1, ROWS]) < 1e-13


def test_two_embeddings():
    whole = affinity("gaussian", "row")
    assert relative(kernel_rows(row_normalized(whole.sample(0)), ROWS), kernel_matrix(whole)[0, ROWS]) < 1e-14


def test_a_scaling_far_outside_the_range_of_numbers():
    x = torch.linspace(0, 60, 6, dtype=torch.float64).view(1, 6, 1)
    whole = Affinity(x, x, "gaussian", "sinkhorn")
    found = kernel_rows(row_normalized(whole), ROWS)
    assert relative(found, kernel_matrix(whole)[0, ROWS]) < 1e-10


def test_a_sparse_sinkhorn_kernel_becomes_a_row_kernel():
    omega = torch.rand(5, 5, generator=generator(), dtype=torch.float64)
    whole = chain(omega + omega.T, "sinkhorn")
    assert relative(kernel_matrix(row_normalized(whole)), kernel_matrix(whole)) < 1e-13
