"""Graphs of points against all pairs, and what happens at their edges."""

import math
import re

import numpy as np
import pytest
import scipy.sparse
import torch

from nonloc.ops import Affinity, aggregate, diffuse, kernel_matrix
from nonloc.processes import (
    Diffusion,
    from_edge_index,
    from_scipy,
    graphs,
    horizon,
    nearest,
    neighbors,
    simulate,
    to_edge_index,
    to_scipy,
)
from problems import generator, relative


def cloud(size=60, d=2, seed=0):
    return torch.rand(size, d, dtype=torch.float64, generator=generator(seed))


def dense(graph):
    return graph.matrix.to_dense()


def by_all_pairs(x, k, scale, include_self):
    """The symmetrised graph of k nearest others from the matrix of all distances."""
    squares = (x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1)
    others = squares.clone().fill_diagonal_(torch.inf)
    near = torch.zeros_like(squares, dtype=torch.bool).scatter_(
        1, others.topk(k, largest=False).indices, True
    )
    near = near | near.T
    if include_self:
        near = near.fill_diagonal_(True)
    return torch.where(near, torch.exp(-scale * squares), 0)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize(("k", "d", "scale"), [(1, 1, 1.0), (5, 2, 30.0), (9, 3, 0.5), (59, 2, 2.0)])
def test_neighbors_are_those_of_all_pairs(k, d, scale, include_self):
    x = cloud(d=d)
    actual = neighbors(x, k, scale=scale, include_self=include_self)
    assert relative(dense(actual), by_all_pairs(x, k, scale, include_self)) <= 1e-14
    assert torch.equal(dense(actual), dense(actual).T)


def test_many_small_queries_give_the_same_graph(monkeypatch):
    x = cloud()
    truth = dense(neighbors(x, 4))
    monkeypatch.setattr(nearest, "POINTS_AT_ONCE", 7)
    assert torch.equal(dense(neighbors(x, 4)), truth)


@pytest.mark.parametrize("d", [2, 20])
def test_a_compiled_program_leaves_the_search_to_python(d):
    """Traced, numpy's median fails for few dimensions, and scikit-learn for many."""
    x = cloud(d=d)
    compiled = torch.compile(lambda x: neighbors(2 * x, 4, scale="auto"), backend="eager")
    assert torch.equal(dense(compiled(x)), dense(neighbors(2 * x, 4, scale="auto")))


def test_points_at_one_place():
    """Seven duplicates and k = 3: each has three others at distance 0, none is its own neighbour by accident."""
    x = torch.cat([torch.zeros(7, 2), torch.rand(5, 2, generator=generator(1)) + 5]).double()
    graph = dense(neighbors(x, 3, kind="constant", include_self=False))
    assert bool((graph.diagonal() == 0).all())
    assert bool((graph.sum(1) >= 3).all())
    assert bool((graph[:7, 7:] == 0).all())
    assert torch.equal(dense(neighbors(x, 3, kind="constant")), graph + torch.eye(12, dtype=torch.float64))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("kernel", ["constant", "linear", lambda r: torch.exp(-r)])
@pytest.mark.parametrize("d", [1, 2])
def test_a_horizon_is_that_of_all_pairs(kernel, include_self, d):
    x, radius = cloud(d=d), 0.3
    distances = (x.unsqueeze(1) - x.unsqueeze(0)).norm(dim=-1)
    values = {"constant": torch.ones_like, "linear": lambda r: 1 - r / radius}.get(kernel, kernel)(distances)
    truth = torch.where(distances <= radius, values, 0)
    if not include_self:
        truth.fill_diagonal_(0)
    assert relative(dense(horizon(x, radius, kernel=kernel, include_self=include_self)), truth) <= 1e-14


def test_an_isolated_position_does_not_move():
    x = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
    z = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, -1, 1)
    alone = horizon(x, 1.0, include_self=False)
    assert kernel_matrix(alone)[0, 2].tolist() == [0, 0, 0]
    assert diffuse(alone, z).flatten().tolist() == [1, -1, 0]
    with_loops = horizon(x, 1.0)
    assert kernel_matrix(with_loops)[0, 2].tolist() == [0, 0, 1]
    assert diffuse(with_loops, z).flatten().tolist() == [0.5, -0.5, 0]


def test_from_scipy_takes_any_format_and_copies():
    matrix = scipy.sparse.random_array((8, 8), density=0.4, rng=np.random.default_rng(0), format="coo")
    graph = from_scipy(matrix, "none")
    truth = torch.from_numpy(matrix.toarray())
    matrix.data[:] = 0
    assert torch.equal(dense(graph), truth)
    assert graph.matrix.col_indices().dtype == torch.int32
    assert torch.equal(
        dense(from_scipy(scipy.sparse.csr_matrix(np.eye(3, dtype=np.int64)))), torch.eye(3).double()
    )


def test_from_scipy_symmetrised_on_request():
    matrix = scipy.sparse.csr_array(np.array([[0.0, 2.0], [0.0, 1.0]]))
    assert dense(from_scipy(matrix)).tolist() == [[0, 2], [0, 1]]
    assert dense(from_scipy(matrix, "sinkhorn", symmetrize=True)).tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">f8"])
def test_points_may_be_any_array(dtype):
    array = cloud().numpy().astype(dtype)[::-1]
    array.flags.writeable = False
    tensor = torch.tensor(array.tolist(), dtype=torch.float32 if dtype == "<f4" else torch.float64)
    for make in (lambda points: neighbors(points, 4), lambda points: horizon(points, 0.3)):
        assert torch.equal(dense(make(array)), dense(make(tensor)))
        assert make(array).matrix.dtype == tensor.dtype


def test_to_scipy_and_back():
    graph = neighbors(cloud(), 4, normalize="sinkhorn")
    matrix = to_scipy(graph)
    assert np.array_equal(matrix.toarray(), dense(graph).numpy())
    assert torch.equal(dense(from_scipy(matrix)), dense(graph))
    truth = dense(graph)
    matrix.data[:] = 0
    assert torch.equal(dense(graph), truth)


EDGES = torch.tensor([[0, 2, 0], [1, 1, 1]])  # 0 → 1 twice, 2 → 1


def test_an_edge_goes_from_the_one_that_gives_to_the_one_that_takes():
    graph = from_edge_index(EDGES, torch.tensor([1.0, 5.0, 2.0]), num_nodes=4, normalize="none")
    expected = torch.zeros(4, 4)
    expected[1, 0], expected[1, 2] = 3, 5
    assert torch.equal(dense(graph), expected)
    z = torch.tensor([10.0, 20.0, 30.0, 40.0]).view(1, -1, 1)
    assert diffuse(graph, z).flatten().tolist() == [0, 3 * (10 - 20) + 5 * (30 - 20), 0, 0]
    edge_index, edge_weight = to_edge_index(graph)
    assert edge_index.tolist() == [[0, 2], [1, 1]]
    assert edge_index.dtype == torch.int64
    assert edge_weight.tolist() == [3, 5]


def test_edges_and_back():
    graph = neighbors(cloud(), 4)
    assert torch.equal(dense(from_edge_index(*to_edge_index(graph))), dense(graph))
    assert dense(from_edge_index(EDGES, symmetrize=True)).tolist() == [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]]
    assert dense(from_edge_index(EDGES[:, :0], num_nodes=2)).tolist() == [[0, 0], [0, 0]]


X = cloud(5).unsqueeze(0)
NAN = cloud(5)
NAN[3, 1] = torch.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: neighbors(cloud(5), 5), "k = 5 neighbours .* at least 6 points, got 5; use k ≤ 4"),
        (lambda: neighbors(cloud(5), 0), "k must be a whole number ≥ 1, got 0"),
        (lambda: neighbors(NAN, 2), r"1 points with NaN or infinite coordinates \(the first is 3\)"),
        (lambda: neighbors(cloud(5).tolist(), 2), r"an array \[M, d\], got list; use torch.as_tensor"),
        (lambda: neighbors(cloud(5).half(), 2), "float32 or float64, .*; make them float64"),
        (lambda: neighbors(np.array([["a", "b"]]), 2), "points must be float32 or float64, got <U1"),
        (lambda: neighbors(cloud(5)[:, 0], 2), r"got \[5\]; points\[:, None\]"),
        (lambda: neighbors(torch.zeros(0, 2), 1), "points need M ≥ 1"),
        (lambda: neighbors(1e300 * cloud(5), 2), "their distances overflow; scale them down"),
        (lambda: neighbors(cloud(5), 2, kind="cosine"), "kind='cosine' is unknown; choose one of heat"),
        (lambda: neighbors(cloud(5), 2, scale="1"), "scale must be a number > 0, or \"auto\", got '1'"),
        (lambda: neighbors(cloud(1), 1), r"at least 2 points, got 1; use Affinity\(x, x, .*points\[None\]"),
        (lambda: neighbors(cloud(5), 2, normalize="softmax"), "normalize='softmax' is unknown"),
        (lambda: horizon(cloud(5)[None], 0.5), r"got \[1, 5, 2\]; there is no batch here, use points\[0\]"),
        (lambda: horizon(cloud(5), 0.0), "radius must be a finite number > 0, got 0.0"),
        (lambda: neighbors(np.ma.masked_less(cloud(5).numpy(), 0.5), 2), "points has masked entries"),
        (lambda: horizon(cloud(5), 1.0, kernel="cubic"), "kernel='cubic' is unknown; .* or give a function"),
        (lambda: horizon(cloud(5), 1.0, kernel=lambda r: r.sum()), "one value for each of the"),
        (
            lambda: horizon(cloud(5), 1.0, kernel=lambda r: 1 / r),
            "singular at r = 0 needs include_self=False",
        ),
        (lambda: horizon(cloud(5), 9.0, kernel=lambda r: 0 * r), "kernel gave 0 for all .* pairs"),
        (lambda: to_scipy(Affinity(X, X, "heat")), "affinity must be a SparseAffinity, got Affinity"),
        (lambda: to_edge_index(None), "affinity must be a SparseAffinity, got NoneType"),
        (lambda: from_edge_index(EDGES.T), r"edge_index must be a tensor \[2, E\] of int64, got \[3, 2\]"),
        (lambda: from_edge_index(EDGES.double()), r"got \[2, 3\] torch.float64"),
        (lambda: from_edge_index(EDGES, torch.ones(2)), r"edge_weight must be a tensor \[3\].*got \[2\]"),
        (lambda: from_edge_index(EDGES, num_nodes=2), "from 0 to 1, got 0 to 2; 3 .* need num_nodes=3$"),
        (lambda: from_edge_index(EDGES - 1), "edge_index must be from 0 to 1, got -1 to 1$"),
        (lambda: from_edge_index(EDGES[:, :0]), "has no edge to tell the number of .*; give num_nodes"),
        (lambda: from_edge_index(EDGES, -torch.ones(3)), "negative entries"),
        (lambda: from_scipy(np.eye(3)), "must be a scipy sparse matrix, got ndarray"),
        (lambda: from_scipy(scipy.sparse.csr_array((2, 3))), r"must be square, \[M, M\], got \[2, 3\]"),
        (lambda: from_scipy(scipy.sparse.csr_array(1j * np.eye(2))), "must be real"),
        (lambda: from_scipy(scipy.sparse.csr_array(np.nan * np.eye(2))), "not finite"),
        (lambda: from_scipy(scipy.sparse.csr_array(-np.eye(2)), "none"), "≥ 0; .* not the Laplacian"),
    ],
)
def test_wrong_arguments_name_the_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(graphs, "scipy_sparse", None)
    with pytest.raises(ImportError, match=r"nonloc\[graphs\]"):
        neighbors(cloud(5), 2)


@pytest.mark.parametrize("include_self", [True, False])
def test_a_scale_that_underflows_is_refused_with_the_one_that_fits(include_self):
    points = 1000 * cloud(50)
    with pytest.raises(ValueError, match="underflow to 0.*nothing would move") as error:
        neighbors(points, 3, scale=1e308, include_self=include_self)
    farthest = torch.cdist(points, points).sort(1).values[:, 3]
    named = float(re.search(r'"auto", which is (\S+) here', str(error.value)).group(1))
    # Of an even number of points there are two medians.
    assert named == pytest.approx(1 / farthest.square().median().item(), rel=0.2)


def test_a_scale_that_underflows_for_most_neighbours_warns():
    points = torch.tensor([0.0, 0.1, 100, 200, 300, 400], dtype=torch.float64).view(-1, 1)
    with pytest.warns(UserWarning, match='scale = 1 the weights of 67 % .* scale="auto", which is 0.0001'):
        graph = neighbors(points, 1)
    assert graph.matrix.to_dense()[0, 1] == pytest.approx(math.exp(-0.01))


@pytest.mark.parametrize("normalize", ["row", "none"])
def test_duplicates_within_a_horizon_are_neighbours_at_no_distance(normalize):
    """Three points at each of two places: two complete graphs, which forget everything but their means."""
    points = torch.tensor([[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 3, dtype=torch.float64)
    z = torch.tensor([1.0, 2, 6, 0, 0, 3], dtype=torch.float64).view(1, -1, 1)
    process = Diffusion(horizon(points, 0.5, normalize=normalize))
    run = simulate(process, z, num_steps=1, step_size=200.0, stepper="exact")
    assert run.final.flatten().tolist() == pytest.approx([3.0] * 3 + [1.0] * 3, abs=1e-10)


@pytest.mark.parametrize("symmetrize", [False, True])
def test_the_weights_of_edges_get_their_gradient(symmetrize):
    """The edge 0 → 1 is there twice, and 2 → 0 has the weight 0; a dense matrix says what is right."""
    edges = torch.tensor([[0, 1, 2, 0, 2], [1, 2, 0, 1, 2]])
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)[None]
    graph = from_edge_index(edges, weights, normalize="none", symmetrize=symmetrize)
    dense = torch.zeros(3, 3, dtype=torch.float64).index_put((edges[1], edges[0]), weights, accumulate=True)
    dense = (dense + dense.T) / 2 if symmetrize else dense
    sums = [aggregate(graph, z).pow(3).sum(), (dense @ z).pow(3).sum()]
    actual, expected = (torch.autograd.grad(one, weights)[0] for one in sums)
    torch.testing.assert_close(actual, expected)


def test_a_radius_that_joins_nothing_is_refused():
    with pytest.raises(ValueError, match="joins no two points.*nearest are 0.25 apart"):
        horizon(torch.tensor([[0.0], [0.25], [1.0]]), 0.1)
