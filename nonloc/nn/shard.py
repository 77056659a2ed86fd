"""shard: nonlocal modules whose positions are shared out over processes."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from nonloc._torch_compat import NormBase
from nonloc.nn.stage import stages

_M = TypeVar("_M", bound=nn.Module)


def shard(model: _M, group: Any = None) -> _M:
    """Let every nonlocal module in `model` join the positions of all processes, in place; return the model.

    From now on the input of each process holds its own positions: rows of [B, M, C], frames of a video, slices of a
    volume. The output holds the same positions, with the values that one process with all of them would compute.
    `nonloc.ops.prepare_sharded` says what gradients are, and which affinities it takes. With DistributedDataParallel,
    which averages gradients, multiply the loss by the number of processes.

    With `subsample`, each process pools its own positions: cut the input between pooled windows, as between frames.

    group  of torch.distributed; None is all processes

    >>> from nonloc.nn import DiffusiveBlock, shard
    >>> store = torch.distributed.HashStore()  # torchrun does this, with more processes
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> block, x = DiffusiveBlock(4, init="torch"), torch.ones(1, 4, 6)
    >>> torch.allclose(shard(block)(x), x)  # a constant does not diffuse
    True
    >>> torch.distributed.destroy_process_group()
    """
    found = [stage for _, stage in stages(model)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no nonlocal module, so there is nothing to shard")
    for stage in found:
        if any(
            isinstance(one, NormBase) and not isinstance(one, nn.SyncBatchNorm) for one in stage.modules()
        ):
            raise ValueError(
                "batch_norm=True takes its statistics over all positions, which are now in several processes; use "
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) first"
            )
        stage.is_sharded, stage.group = True, group
    return model
