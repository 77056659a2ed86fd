"""SparseAffinity: Ω by its nonzero entries, for graphs with few neighbours a position and M in the millions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from nonloc._checks import check_choice
from nonloc._torch_compat import can_read_values, is_differentiated_by_func, is_forward_mode, is_transformed
from nonloc.ops.affinity import NORMALIZATIONS, SYMMETRIC, Affinity, check_measure
from nonloc.ops.normalize import Omega, Operator, normalized


@dataclass(frozen=True, eq=False)
class SparseAffinity:
    """A pairwise kernel Ω as a sparse matrix, normalised like an `Affinity`, and taken by the same functions.

    One graph serves every sample: z is [B, M, C] with any B. What is not stored is 0 and gives nothing, NaN included.

    matrix   [M, M]  a torch.sparse_csr tensor with int32 or int64 indices (`matrix.to_sparse_csr()` makes one);
                     `nonloc.processes.neighbors`, `horizon`, `from_scipy` and `from_edge_index` make one
    measure  [M]     quadrature weights μ_j ≥ 0 of the continuum; 1 each when left out

    Gradients for z take memory linear in M. Those for the entries of a matrix that requires them are torch's, dense
    [M, M], with numbers where nothing is stored: learn a large graph's weights by other means.

    >>> from nonloc import SparseAffinity, diffuse
    >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to_sparse_csr()
    >>> diffuse(SparseAffinity(path), torch.tensor([[[1.0], [0.0], [0.0]]])).flatten().tolist()
    [-1.0, 0.5, 0.0]
    """

    matrix: Tensor
    normalize: str = "row"
    _: KW_ONLY
    measure: Tensor | None = None

    def __post_init__(self) -> None:
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        self._check_matrix()
        check_measure(self.measure, self.positions, self.matrix, "matrix")

    def __repr__(self) -> str:
        measured = ", measured" if self.measure is not None else ""
        entries = self.matrix.values().shape[0]
        return f"SparseAffinity({self.normalize}, M = {self.positions}, {entries} entries{measured})"

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseAffinity:
        # What torch does for dense tensors and not for sparse ones.
        if not self.matrix.is_leaf:
            raise ValueError(
                "a matrix that was computed with gradients cannot be copied with its graph; use "
                "dataclasses.replace(affinity, matrix=affinity.matrix.detach())"
            )
        matrix = memo.get(id(self.matrix))
        if matrix is None:
            matrix = self.matrix.detach().clone().requires_grad_(self.matrix.requires_grad)
            memo[id(self.matrix)] = matrix
        return SparseAffinity(matrix, self.normalize, measure=copy.deepcopy(self.measure, memo))

    @property
    def batch(self) -> int:
        """1: the same graph for every sample."""
        return 1

    @property
    def positions(self) -> int:
        """M, the number of positions."""
        return self.matrix.shape[0]

    @property
    def mask(self) -> None:
        """There is none: a position that neither gives nor receives is one without entries."""
        return None

    def as_dense(self) -> Affinity:
        """The same kernel as an `Affinity` with the M × M matrix as its features, Ω_ij = Ω_i · e_j. For small M."""
        dense = self.matrix.to_dense().unsqueeze(0)
        identity = torch.eye(self.positions, dtype=dense.dtype, device=dense.device).unsqueeze(0)
        return Affinity(dense, identity, "dot", self.normalize, measure=self.measure)

    def _check_matrix(self) -> None:
        matrix = self.matrix
        if not isinstance(matrix, Tensor) or matrix.layout != torch.sparse_csr:
            got = str(matrix.layout) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(
                f"matrix must be a torch.sparse_csr tensor [M, M], got {got}; use matrix.to_sparse_csr(), or "
                "nonloc.processes.from_scipy for a scipy matrix"
            )
        if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise ValueError(
                f"matrix must be square, [M, M] with M ≥ 1, got {list(matrix.shape)}; for a matrix of each sample use "
                'Affinity(matrix, torch.eye(M).expand(B, M, M), "dot")'
            )
        if not matrix.dtype.is_floating_point:
            raise ValueError(
                f"matrix must be floating point, got {matrix.dtype}; use matrix.to(torch.float64)"
            )


def prepare(affinity: SparseAffinity, dtype: torch.dtype) -> Operator:
    """The affinity as a way to apply it: one pass over the entries for each product."""
    check_values(affinity)
    return normalized(product(affinity.matrix, dtype), weights(affinity, dtype), affinity)


def weights(affinity: SparseAffinity, dtype: torch.dtype) -> Tensor:
    """What each giver weighs [1, M, 1]."""
    if affinity.measure is not None:
        return affinity.measure.to(dtype).view(1, -1, 1)
    return torch.ones(1, affinity.positions, 1, dtype=dtype, device=affinity.matrix.device)


def product(matrix: Tensor, dtype: torch.dtype) -> Omega:
    """v [B, M, C] -> Ω v [B, M, C] for a sparse matrix [M, M]."""
    return Omega(_times, matrix.to(dtype))


def _times(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    def apply(v: Tensor) -> Tensor:
        batch, positions, channels = v.shape
        columns = v.transpose(0, 1).reshape(positions, batch * channels)
        # A single column has a product of its own, twice as fast as the general one.
        result = (matrix @ columns[:, 0]).unsqueeze(-1) if columns.shape[1] == 1 else matrix @ columns
        return result.view(positions, batch, channels).transpose(0, 1)

    return apply


def transposed(matrix: Tensor) -> Tensor:
    """Ωᵀ [M, M], again with its rows compressed."""
    columns = matrix.col_indices()
    # A stable sort by column keeps the rows of each column in their order; torch's own conversion takes four times
    # as long.
    order = torch.argsort(columns, stable=True)
    starts = torch.zeros_like(matrix.crow_indices())
    starts[1:] = torch.bincount(columns, minlength=matrix.shape[1]).cumsum(0)
    return torch.sparse_csr_tensor(
        starts, rows(matrix)[order], matrix.values()[order], matrix.shape, check_invariants=False
    )


def rows(matrix: Tensor) -> Tensor:
    """The row of each entry [E]."""
    counts = matrix.crow_indices().diff()
    index = torch.arange(matrix.shape[0], dtype=counts.dtype, device=counts.device)
    return torch.repeat_interleave(index, counts, output_size=matrix.values().shape[0])


def is_symmetric(affinity: SparseAffinity) -> bool:
    """Return whether Ω = Ωᵀ by value: both products with one fixed vector agree. No transpose is made."""
    matrix = affinity.matrix.detach().to(torch.promote_types(affinity.matrix.dtype, torch.float32))
    index = torch.arange(1, affinity.positions + 1, dtype=torch.float64, device=matrix.device)
    # Far from 0, so that every entry counts.
    probe = (1 + 0.5 * torch.cos(1.2345678 * index)).to(matrix.dtype)
    here, there = rows(matrix), matrix.col_indices()
    # Without the diagonal, which is symmetric, and next to which an asymmetry may be as small as rounding.
    values = torch.where(here == there, 0, matrix.values())
    zeros = torch.zeros_like(probe)
    forward = zeros.index_add(0, here, values * probe[there])
    backward = zeros.index_add(0, there, values * probe[here])
    sizes = zeros.index_add(0, here, values.abs())
    # A comparison with NaN is false: such a matrix passes, and its NaN reaches the output.
    return not bool(((forward - backward).abs() > 64 * torch.finfo(matrix.dtype).eps * sizes).any())


def has_negative(affinity: SparseAffinity) -> bool:
    """Return whether an entry of Ω is below 0."""
    return bool((affinity.matrix.values() < 0).any())


def check_transforms(backend: str) -> None:
    """ValueError, with the fix, where torch's sparse tensors would fail with an unclear message."""
    if is_differentiated_by_func() or (backend == "factored" and (is_transformed() or is_forward_mode())):
        raise ValueError(
            "torch's sparse tensors support neither torch.func nor forward mode; use affinity.as_dense(), an Affinity, "
            "for small M"
        )


def check_values(affinity: SparseAffinity) -> None:
    if affinity.normalize not in SYMMETRIC or not can_read_values(affinity.matrix):
        return
    if not is_symmetric(affinity):
        raise ValueError(
            f"normalize={affinity.normalize!r} needs a symmetric matrix, and this one is not (by value); use "
            '(matrix + matrix.t()) / 2, symmetrize=True of from_scipy and from_edge_index, or normalize="row"'
        )
    if has_negative(affinity):
        raise ValueError(
            f"normalize={affinity.normalize!r} needs a matrix that is nowhere negative, and this one has negative "
            'entries; use normalize="row"'
        )
