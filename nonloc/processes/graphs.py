"""Graphs as SparseAffinity: nearest neighbours or a horizon of up to millions of points, scipy, edges."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nonloc._checks import check_choice, check_flag, check_positive, check_takes_one, check_whole, shown
from nonloc._torch_compat import uncompiled
from nonloc.ops import SparseAffinity
from nonloc.ops.affinity import shape_and_dtype, shape_or_type
from nonloc.processes.nearest import Nearest, check_no_mask, check_scale, check_spread, index_dtype

try:
    import scipy.sparse as scipy_sparse
    import scipy.spatial as scipy_spatial
except ImportError:  # an extra; an error names it when a graph is asked for
    scipy_sparse = scipy_spatial = None

NEIGHBOR_KINDS = ("heat", "constant")
HORIZON_KERNELS = ("constant", "linear")
MOST_ENTRIES = 2**30  # of a graph: 12 to 16 GiB

RadialKernel = Callable[[Tensor], Tensor]  # distances [E] -> values [E]


@uncompiled
def neighbors(
    points: Tensor | np.ndarray,
    k: int,
    *,
    kind: str = "heat",
    scale: float | str = 1.0,
    normalize: str = "row",
    include_self: bool = True,
    measure: Tensor | None = None,
) -> SparseAffinity:
    """The graph that joins i and j when one is among the k nearest of the other.

    points        [M, d], a tensor or an array; the graph has their dtype and device. Of points at the same place, any
                  k count as nearest (and finding them takes time in the square of their number). They get no gradient
    kind          "heat": Ω_ij = exp(−scale |x_i − x_j|²); "constant": 1
    scale         "auto": 1 / r², with r the median distance to the k-th neighbour. A number that makes all weights
                  underflow to 0 is refused, one that does so to most of them warns; both name the scale that fits
    include_self  each position is its own neighbour besides the k others

    >>> from nonloc.ops import row_sums
    >>> from nonloc.processes import neighbors
    >>> line = torch.tensor([[0.0], [1.0], [3.0]])
    >>> row_sums(neighbors(line, k=1, kind="constant", normalize="none", include_self=False)).tolist()
    [[1.0, 2.0, 1.0]]
    """
    points, positions = _checked_points(points)
    size = positions.shape[0]
    k = check_whole("k", k)
    if k >= size:
        fewer = f"use k ≤ {size - 1}, or " if size > 1 else "use "
        raise ValueError(
            f"k = {k} neighbours besides itself need at least {k + 1} points, got {size}; {fewer}"
            'Affinity(x, x, "heat") with x = points[None] for the graph of all pairs'
        )
    check_choice("kind", kind, NEIGHBOR_KINDS)
    check_flag("include_self", include_self)
    check_scale(scale)
    nearest = Nearest(positions, k)
    width = k + 1 if include_self else k
    dtype = _numpy_dtype(points.dtype)
    if kind == "heat":
        values = nearest.heat(nearest.fitting_scale() if scale == "auto" else float(scale), dtype)[:, -width:]
    else:
        values = np.ones((size, width), dtype=dtype)
    return _affinity(nearest.graph(values), points.device, normalize, measure)


@uncompiled
def horizon(
    points: Tensor | np.ndarray,
    radius: float,
    *,
    kernel: str | RadialKernel = "constant",
    normalize: str = "row",
    include_self: bool = True,
    measure: Tensor | None = None,
) -> SparseAffinity:
    """The graph that joins all points at a distance r ≤ radius, the horizon of nonlocal modelling.

    points        [M, d], a tensor or an array; the graph has their dtype and device. They get no gradient
    radius        on a mesh, take one between two distances: of points exactly so far apart rounding joins only some
    kernel        "constant": 1; "linear": 1 − r / radius; or a function of the distances [E] that gives values [E],
                  not all of them 0
    include_self  False: no entry (i, i); a position without another within the radius then has an empty row and
                  does not move

    >>> from nonloc.ops import row_sums
    >>> from nonloc.processes import horizon
    >>> line = torch.arange(4.0)[:, None]
    >>> row_sums(horizon(line, radius=1.0, normalize="none", include_self=False)).tolist()
    [[1.0, 2.0, 2.0, 1.0]]
    """
    points, positions = _checked_points(points)
    size = positions.shape[0]
    check_flag("include_self", include_self)
    check_positive("radius", radius)
    if callable(kernel):
        check_takes_one("kernel", kernel, "the distances", "give a function such as lambda r: torch.exp(-r)")
    elif not isinstance(kernel, str) or kernel not in HORIZON_KERNELS:
        raise ValueError(
            f"kernel={shown(kernel)} is unknown; choose one of {', '.join(HORIZON_KERNELS)}, or give a function of the "
            "distance"
        )
    tree = scipy_spatial.cKDTree(positions)
    # Counting is cheap even where many points share a place, and storing all their pairs is not.
    if size * size > MOST_ENTRIES and (joined := int(tree.count_neighbors(tree, radius))) > MOST_ENTRIES:
        raise ValueError(
            f"radius = {radius:g} joins {joined:,} pairs, and at most {MOST_ENTRIES:,} are stored; use a smaller "
            "radius, or neighbors(points, k)"
        )
    pairs = tree.query_pairs(radius, output_type="ndarray")
    if size > 1 and not len(pairs):
        nearest = float(tree.query(positions, k=2)[0][:, 1].min())
        raise ValueError(
            f"radius = {radius:g} joins no two points, so that nothing would move; the nearest are {nearest:.4g} apart"
        )
    dtype = index_dtype(2 * len(pairs) + size)
    first, second = pairs[:, 0].astype(dtype), pairs[:, 1].astype(dtype)
    distances = np.linalg.norm(positions[first] - positions[second], axis=1)
    values = _radial(kernel, distances, float(radius), points)
    if callable(kernel) and len(values) and not values.any():
        raise ValueError(
            f"kernel gave 0 for all {len(values)} pairs within the radius, so that nothing would move; use one that "
            f"falls off over radius = {radius:g}, such as lambda r: torch.exp(-(r / {radius:g}) ** 2)"
        )
    rows, columns, entries = [first, second], [second, first], [values, values]
    if include_self:
        own = np.arange(size, dtype=dtype)
        at_zero = _radial(kernel, np.zeros(1), float(radius), points)
        rows, columns, entries = [*rows, own], [*columns, own], [*entries, np.repeat(at_zero, size)]
    coordinates = (np.concatenate(rows), np.concatenate(columns))
    matrix = scipy_sparse.coo_array((np.concatenate(entries), coordinates), shape=(size, size))
    return _affinity(matrix.tocsr(), points.device, normalize, measure)


def from_scipy(
    matrix: Any, normalize: str = "row", *, symmetrize: bool = False, measure: Tensor | None = None
) -> SparseAffinity:
    """Any scipy sparse matrix [M, M] of weights ≥ 0 as Ω; copied, with int32 indices where they fit.

    It holds the weights of a graph (its adjacency matrix), not the Laplacian, which is what the processes make of them.

    symmetrize  True: Ω = (A + Aᵀ) / 2. False takes A as it is: "symmetric" and "sinkhorn" then ask for A = Aᵀ

    >>> from scipy.sparse import diags_array
    >>> from nonloc.processes import from_scipy
    >>> path = from_scipy(diags_array([[1.0, 1.0], [1.0, 1.0]], offsets=[-1, 1]))
    >>> path.positions, path.normalize
    (3, 'row')
    """
    return _from_scipy(matrix, torch.device("cpu"), normalize, symmetrize, measure)


def to_scipy(affinity: SparseAffinity) -> Any:
    """Ω as a scipy CSR array [M, M] on the CPU: a copy, without normalisation and measure.

    >>> from nonloc.processes import from_edge_index, to_scipy
    >>> to_scipy(from_edge_index(torch.tensor([[0, 2], [1, 1]]))).toarray().tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    _require_scipy()
    matrix = _checked_sparse(affinity).matrix.detach()
    parts = (matrix.values(), matrix.col_indices(), matrix.crow_indices())
    copies = tuple(part.cpu().numpy().copy() for part in parts)
    return scipy_sparse.csr_array(copies, shape=tuple(matrix.shape))


def from_edge_index(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    num_nodes: int | None = None,
    *,
    normalize: str = "row",
    symmetrize: bool = False,
    measure: Tensor | None = None,
) -> SparseAffinity:
    """The graph of a list of edges, as PyTorch Geometric has it; edges that are there twice add up.

    edge_index   [2, E] whole numbers: an edge from j = edge_index[0] to i = edge_index[1] is Ω_ij, what i takes from j
    edge_weight  [E] ≥ 0; 1 each when left out. It gets a gradient where it asks for one
    num_nodes    M; the largest index + 1 when left out
    symmetrize   True: Ω = (A + Aᵀ) / 2

    >>> from nonloc import kernel_matrix
    >>> from nonloc.processes import from_edge_index
    >>> edges = torch.tensor([[0, 2], [1, 1]])  # position 1 takes from 0 and from 2
    >>> kernel_matrix(from_edge_index(edges)).tolist()
    [[[0.0, 0.0, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]]
    """
    _require_scipy()
    is_list = isinstance(edge_index, Tensor) and edge_index.dim() == 2 and len(edge_index) == 2
    if not is_list or edge_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"edge_index must be a tensor [2, E] of int64, got {shape_and_dtype(edge_index)}; torch.as_tensor makes one"
        )
    count = edge_index.shape[1]
    if edge_weight is None:
        edge_weight = torch.ones(count)
    if not isinstance(edge_weight, Tensor) or list(edge_weight.shape) != [count]:
        raise ValueError(
            f"edge_weight must be a tensor [{count}], one number an edge, got {shape_and_dtype(edge_weight)}"
        )
    if not count and num_nodes is None:
        raise ValueError("edge_index has no edge to tell the number of positions; give num_nodes")
    givers, takers = edge_index.cpu().numpy()
    largest = int(edge_index.max()) if count else -1
    size = check_whole("num_nodes", max(1, largest + 1) if num_nodes is None else num_nodes)
    if largest >= size or (count and int(edge_index.min()) < 0):
        fix = f"; {largest + 1} positions need num_nodes={largest + 1}" if largest >= size else ""
        raise ValueError(
            f"edge_index must be from 0 to {size - 1}, got {int(edge_index.min())} to {largest}{fix}"
        )
    values = edge_weight.detach().cpu().numpy()
    matrix = scipy_sparse.coo_array((values, (takers, givers)), shape=(size, size))
    affinity = _from_scipy(matrix, edge_index.device, normalize, symmetrize, measure)
    if not edge_weight.requires_grad:
        return affinity
    matrix.data = np.ones(count)  # with zeros, entries might be left out
    pattern = _from_scipy(matrix, edge_index.device, normalize, symmetrize, measure).matrix
    entries = _summed(pattern, edge_index.long(), edge_weight.to(affinity.matrix.dtype), symmetrize)
    graph = _csr(pattern.crow_indices(), pattern.col_indices(), entries, pattern.shape)
    return SparseAffinity(graph, normalize, measure=measure)


def _summed(pattern: Tensor, edge_index: Tensor, weights: Tensor, symmetrize: bool) -> Tensor:
    """The entries of the pattern, a CSR matrix, as sums of the weights of edges; they carry the weights' gradient."""
    givers, takers = edge_index
    if symmetrize:
        givers, takers = torch.cat([givers, takers]), torch.cat([takers, givers])
        weights = torch.cat([weights, weights]) / 2
    rows, columns = pattern.to_sparse_coo().indices().long()
    size = pattern.shape[0]
    places = torch.searchsorted(rows * size + columns, takers * size + givers)
    return weights.new_zeros(len(rows)).index_add(0, places.to(weights.device), weights)


def to_edge_index(affinity: SparseAffinity) -> tuple[Tensor, Tensor]:
    """Ω as PyTorch Geometric's edge_index [2, E] (int64) and edge_weight [E], without normalisation and measure.

    The edge of Ω_ij goes from j to i.

    >>> from nonloc.processes import from_edge_index, to_edge_index
    >>> edges, weights = to_edge_index(from_edge_index(torch.tensor([[0, 2], [1, 1]])))
    >>> edges.tolist(), weights.tolist()
    ([[0, 2], [1, 1]], [1.0, 1.0])
    """
    matrix = _checked_sparse(affinity).matrix
    takers, givers = matrix.to_sparse_coo().indices()
    return torch.stack([givers, takers]), matrix.values()


def _checked_sparse(affinity: SparseAffinity) -> SparseAffinity:
    if not isinstance(affinity, SparseAffinity):
        raise ValueError(f"affinity must be a SparseAffinity, got {type(affinity).__name__}")
    return affinity


def _from_scipy(
    matrix: Any, device: torch.device, normalize: str, symmetrize: bool, measure: Tensor | None
) -> SparseAffinity:
    _require_scipy()
    if not scipy_sparse.issparse(matrix):
        raise ValueError(
            f"matrix must be a scipy sparse matrix, got {type(matrix).__name__}; scipy.sparse.csr_array(matrix) "
            "makes one from an array"
        )
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square, [M, M], got {list(matrix.shape)}")
    if np.issubdtype(matrix.dtype, np.complexfloating):
        raise ValueError("matrix must be real, got complex values; use matrix.real")
    wide = matrix.dtype if matrix.dtype in (np.float32, np.float64) else np.float64
    copied = scipy_sparse.csr_array(matrix, dtype=wide, copy=True)
    copied.sum_duplicates()
    check_flag("symmetrize", symmetrize)
    if symmetrize:
        copied = (copied + copied.T.tocsr()) / 2
    if not np.isfinite(copied.data).all():
        raise ValueError("matrix has values that are not finite; replace them first")
    if (copied.data < 0).any():
        raise ValueError(
            "matrix has negative entries, and the weights of a graph must be ≥ 0; give the weights (the adjacency "
            "matrix), not the Laplacian. Where signs are meant, SparseAffinity takes them in a torch.sparse_csr matrix"
        )
    return _affinity(copied, device, normalize, measure)


def _checked_points(points: Tensor | np.ndarray) -> tuple[Tensor, np.ndarray]:
    """The points [M, d] as a tensor, and in float64 on the CPU."""
    _require_scipy()
    check_no_mask("points", points)
    if isinstance(points, np.ndarray):
        # torch takes neither negative strides, as of points[::-1], nor the other byte order, nor objects and text.
        dtype = points.dtype.newbyteorder("=")
        _check_dtype(dtype, dtype in (np.float32, np.float64))
        points = torch.tensor(np.ascontiguousarray(points, dtype))
    if not isinstance(points, Tensor) or points.dim() != 2:
        fixes = {1: "points[:, None] are points on a line", 3: "there is no batch here, use points[0]"}
        fix = fixes.get(points.dim() if isinstance(points, Tensor) else 2, "use torch.as_tensor(points)")
        raise ValueError(f"points must be a tensor or an array [M, d], got {shape_or_type(points)}; {fix}")
    _check_dtype(points.dtype, points.dtype in (torch.float32, torch.float64))
    if points.is_meta or points.layout != torch.strided:
        raise ValueError(f"points must be numbers in a dense tensor, got {points.layout} on {points.device}")
    if points.shape[0] == 0 or points.shape[1] == 0:
        raise ValueError(f"points need M ≥ 1 and d ≥ 1, got {list(points.shape)}")
    array = np.ascontiguousarray(points.detach().cpu().numpy(), dtype=np.float64)
    bad = ~np.isfinite(array).all(1)
    if bad.any():
        raise ValueError(
            f"points has {int(bad.sum())} points with NaN or infinite coordinates (the first is {int(bad.argmax())}); "
            "leave them out"
        )
    check_spread(array)
    return points, array


def _check_dtype(dtype: torch.dtype | np.dtype[Any], is_known: bool) -> None:
    if not is_known:
        raise ValueError(f"points must be float32 or float64, got {dtype}; make them float64")


def _radial(kernel: str | RadialKernel, distances: np.ndarray, radius: float, points: Tensor) -> np.ndarray:
    """ρ(r) [E] in the points' dtype."""
    if callable(kernel):
        values = kernel(torch.from_numpy(distances))
        if not isinstance(values, Tensor) or list(values.shape) != [len(distances)]:
            raise ValueError(
                f"kernel must give one value for each of the {len(distances)} distances, a tensor "
                f"[{len(distances)}], got {shape_or_type(values)}"
            )
        if not bool(torch.isfinite(values).all()):
            raise ValueError(
                "kernel gave values that are not finite; a kernel that is singular at r = 0 needs include_self=False "
                "and points that differ"
            )
        return values.detach().cpu().to(points.dtype).numpy()
    if kernel == "constant":
        return np.ones(len(distances), dtype=_numpy_dtype(points.dtype))
    return (1 - distances / radius).clip(min=0).astype(_numpy_dtype(points.dtype))


def _affinity(matrix: Any, device: torch.device, normalize: str, measure: Tensor | None) -> SparseAffinity:
    """A scipy CSR array as a torch one, without a copy on the CPU."""
    dtype = index_dtype(matrix.nnz)
    starts = torch.from_numpy(matrix.indptr.astype(dtype, copy=False))
    columns = torch.from_numpy(matrix.indices.astype(dtype, copy=False))
    graph = _csr(starts, columns, torch.from_numpy(matrix.data), matrix.shape)
    return SparseAffinity(graph.to(device), normalize, measure=measure)


def _csr(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with without_sparse_warnings():
        return torch.sparse_csr_tensor(starts, columns, values, shape, check_invariants=False)


@contextmanager
def without_sparse_warnings() -> Iterator[None]:
    """Inside, torch does not say that CSR is beta, and that what was switched off by hand is off."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        yield


def _numpy_dtype(dtype: torch.dtype) -> type[np.floating]:
    return np.float32 if dtype == torch.float32 else np.float64


def _require_scipy() -> None:
    if scipy_sparse is None:
        raise ImportError("graphs need scipy, which is not installed; pip install 'nonloc[graphs]'")
