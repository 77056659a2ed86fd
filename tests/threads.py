"""Ranks of torch.distributed as threads of one process: values and gradients are tested without starting processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from torch import distributed


def in_threads(count: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """Call work(rank, group) in `count` threads, which are the ranks of a gloo group; return their results."""
    store = distributed.HashStore()

    def join(rank: int) -> Any:
        return work(rank, distributed.ProcessGroupGloo(store, rank, count, timedelta(seconds=30)))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(join, range(count)))
