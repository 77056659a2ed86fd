"""Stages on a graph: an affinity module that returns a SparseAffinity, against the same kernel as a matrix."""

import copy

import pytest
import torch
from torch import nn

from nonloc.nn.stage import DiffusiveStage, OriginalStage
from nonloc.ops import SparseAffinity, kernel_matrix
from nonloc.processes.graphs import horizon

C, HEIGHT, WIDTH = 4, 3, 5
M = HEIGHT * WIDTH
STAGES = [OriginalStage, DiffusiveStage]


class Window(nn.Module):
    """Each pixel and those around it, with one learned value for every pair."""

    def __init__(self):
        super().__init__()
        rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        grid = torch.stack([rows, columns], -1).view(-1, 2).double()
        pattern = horizon(grid, 1.5).matrix
        self.register_buffer("starts", pattern.crow_indices())
        self.register_buffer("columns", pattern.col_indices())
        self.logits = nn.Parameter(torch.linspace(-1, 1, pattern.values().shape[0]))

    def forward(self, x):
        matrix = torch.sparse_csr_tensor(
            self.starts, self.columns, self.logits.exp(), (M, M), check_invariants=True
        )
        return SparseAffinity(matrix)


class Fixed(nn.Module):
    """A graph that is an attribute, as one would first write it."""

    def __init__(self):
        super().__init__()
        self.graph = SparseAffinity(Window()(None).matrix.detach())

    def forward(self, x):
        return self.graph


@pytest.fixture
def x():
    return torch.randn(2, C, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind, **keywords):
    torch.manual_seed(0)
    return kind(C, 2, **{"affinity": Window(), "init": "torch"} | keywords).double()


def by_hand(stage, x):
    """Matrices only."""
    kernel = torch.zeros(M, M, dtype=x.dtype)
    window = stage.embeddings[0]
    pattern = torch.sparse_csr_tensor(
        window.starts, window.columns, torch.ones_like(window.logits), (M, M), check_invariants=True
    )
    kernel[pattern.to_dense() > 0] = window.logits.exp()
    kernel = kernel / kernel.sum(-1, keepdim=True)
    if stage.uses_differences:
        kernel = kernel - torch.eye(M, dtype=x.dtype)
    z = x.flatten(2).mT
    for w in stage.weights():
        z = z + kernel @ z @ w.T
    return z.mT.reshape(x.shape)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("share", [True, False])
def test_values_and_gradients_are_those_of_matrices(kind, share, x):
    stage = made(kind, share_affinity=share)
    expected, actual = by_hand(stage, x), stage(x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(stage.states(x)[-1], expected)
    if share:
        gradients = [
            torch.autograd.grad(z.square().sum(), list(stage.parameters())) for z in (actual, expected)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", STAGES)
def test_graph_in_an_attribute_is_copied_with_the_stage(kind, x):
    stage = kind(C, 2, affinity=Fixed(), share_affinity=False).double()
    torch.testing.assert_close(copy.deepcopy(stage)(x), stage(x))


def test_mask_says_what_to_do_instead(x):
    mask = torch.ones(2, HEIGHT, WIDTH, dtype=torch.bool)
    stage = made(DiffusiveStage)
    for ask in (stage, stage.affinity, stage.affinities, stage.states):
        with pytest.raises(ValueError, match="leave those without entries in the graph and drop mask"):
            ask(x, mask=mask)


class OneSize(Window):
    def forward(self, x):
        return super().forward(x.view(-1, M, C))


class TakesKeys(Window):
    def forward(self, x, keys=None):
        return super().forward(x)


class Matrix(Window):
    def forward(self, x):
        return kernel_matrix(super().forward(x))


@pytest.mark.parametrize(
    ("kind", "affinity", "keywords", "message"),
    [
        (DiffusiveStage, Window, {"weight": "stable"}, "returns a SparseAffinity; use affinity="),
        (DiffusiveStage, OneSize, {"weight": "stable"}, r"two positions, x \[1, 2, 4\], and it failed"),
        (OriginalStage, TakesKeys, {"subsample": 2}, "drop subsample"),
        (DiffusiveStage, Matrix, {}, r"got Tensor; return, for example, Affinity\("),
    ],
)
def test_a_use_without_a_meaning_is_refused(kind, affinity, keywords, message, x):
    with pytest.raises(ValueError, match=message):
        made(kind, affinity=affinity(), **keywords)(x)
