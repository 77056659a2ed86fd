"""A kernel whose positions are shared out over the processes of torch.distributed.

Each process has some of the positions, any number of them, and computes their rows of K. For that it gathers the right
features of all positions once, and the signal before each product. With "factored", the memory of a process is linear
in the number of all positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad

from nonloc.ops.affinity import Affinity
from nonloc.ops.collectives import all_sum
from nonloc.ops.functional import Prepared, check_kind, prepare
from nonloc.ops.normalize import Operator
from nonloc.ops.sparse import SparseAffinity

NORMALIZATIONS = ("row", "count", "none")


def prepare_sharded(
    affinity: Affinity | SparseAffinity,
    dtype: torch.dtype | None = None,
    *,
    group: Any = None,
    backend: str = "auto",
) -> Prepared:
    """K of all positions, prepared for those of this process; `aggregate`, `diffuse` and `propagate` take it.

    Values and gradients are those of one process that has all positions. A gradient is that of the sum of all
    processes' losses, so every process must take it. A gradient with respect to a weight that all of them have is this
    process's part: sum the parts.

    affinity  of this process's positions: left, right and measure have its rows alone
    dtype     as in `prepare`
    group     of torch.distributed; None is all processes

    >>> from nonloc.ops import Affinity, diffuse, prepare_sharded
    >>> store = torch.distributed.HashStore()  # torchrun does this, with more processes
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> same = torch.zeros(1, 2, 1)
    >>> kernel = prepare_sharded(Affinity(same, same, "heat"))
    >>> diffuse(kernel, torch.tensor([[[0.0], [1.0]]])).flatten().tolist()
    [0.5, -0.5]
    >>> torch.distributed.destroy_process_group()
    """
    affinity = _checked(affinity)
    gather = _gather(affinity.right, group)
    measure = None if affinity.measure is None else gather(affinity.measure.view(1, -1, 1)).flatten()
    rows = replace(affinity, right=gather(affinity.right), measure=measure)
    kernel = prepare(rows, dtype, backend=backend)
    operator = Operator(lambda z: kernel.apply(gather(z)), kernel.sums)
    return Prepared(affinity, operator, kernel.dtype, is_sharded=True)


def _gather(like: Tensor, group: Any) -> Callable[[Tensor], Tensor]:
    """Return x [B, M_here, C] -> x of all processes in the order of their ranks [B, M, C]; `like` is such an x."""
    group = distributed.group.WORLD if group is None else group
    if group is None:
        raise ValueError(
            "sharded positions need processes; call torch.distributed.init_process_group() first"
        )
    rank, count = group.rank(), group.size()
    sizes = torch.zeros(count, 2, dtype=torch.int64, device=like.device)
    sizes[rank] = torch.tensor(like.shape[:2])
    distributed.all_reduce(sizes, group=group)
    batches, positions = sizes.T.tolist()
    if len(set(batches)) > 1:
        raise ValueError(
            f"every process needs the same batch with its own positions, got batches of {batches}"
        )
    before, after = sum(positions[:rank]), sum(positions[rank + 1 :])
    # A sum with zeros is exact, and takes any number of positions from each process.
    return lambda x: all_sum(pad(x, (0, 0, before, after)), group)


def _checked(affinity: Affinity | SparseAffinity) -> Affinity:
    check_kind(affinity)
    if isinstance(affinity, SparseAffinity):
        raise ValueError(
            "sharded positions need an Affinity, not a SparseAffinity, whose graph is in one process"
        )
    if affinity.normalize not in NORMALIZATIONS:
        raise ValueError(
            f"normalize={affinity.normalize!r} scales columns by sums over all rows, which no process has; sharded "
            f"positions take {', '.join(NORMALIZATIONS)}"
        )
    if affinity.kind == "delta":
        raise ValueError('kind="delta" joins no positions, so there is nothing to gather; do not shard them')
    if affinity.mask is not None:
        raise ValueError("sharded positions take no mask; leave the invalid positions out of every process")
    return affinity
