"""The generator A of a linear process as a dense matrix on samples as vectors, and graphs that the tests share."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import SparseAffinity
from nonloc.processes import Process


def generator_matrix(process: Process, z: Tensor) -> Tensor:
    """A [B, N, N] with rate(z) = A z for z as vectors [B, N = M · C], one column at a time."""
    identity = torch.eye(z[0].numel(), dtype=z.dtype)
    columns = [process.rate(e.view(1, *z.shape[1:]).expand_as(z)).reshape(z.shape[0], -1) for e in identity]
    return torch.stack(columns, -1)


def vectors(z: Tensor) -> Tensor:
    """[B, M, C] -> [B, N, 1]."""
    return z.reshape(z.shape[0], -1, 1)


def path_graph(size: int, normalize: str = "none") -> SparseAffinity:
    """A path of `size` positions, 1 between neighbours. L has the eigenvalues 2 − 2 cos(πk / size)."""
    matrix = torch.diag(torch.ones(size - 1, dtype=torch.float64), 1)
    return SparseAffinity((matrix + matrix.T).to_sparse_csr(), normalize)
