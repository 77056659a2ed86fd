"""Ranks of torch.distributed: as threads of one process, which tests values and gradients quickly, and as processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed, multiprocessing


def in_threads(count: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """Call work(rank, group) in `count` threads, which are the ranks of a gloo group; return their results."""
    store = distributed.HashStore()

    def join(rank: int) -> Any:
        return work(rank, distributed.ProcessGroupGloo(store, rank, count, timedelta(seconds=30)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(join, range(count)))


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> None:
    """Call work(rank, *arguments) in `count` processes, which are the ranks of a gloo group."""
    with TemporaryDirectory() as folder:
        multiprocessing.spawn(_join, (count, f"file://{folder}/store", work, arguments), nprocs=count)


def _join(rank: int, count: int, store: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    work(rank, *arguments)
    distributed.destroy_process_group()
