"""Ranks: the processes that train one run together, each with its part of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from nonloc_paper.training.stopping import Stopping

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes of a run; by default this one alone.

    rank   the number of this process; the first alone, 0, touches the run folder
    count  how many there are
    hosts  a group on the CPU, for what the processes tell each other without waiting for a device
    """

    rank: int = 0
    count: int = 1
    hosts: Any = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def part(self, size: int) -> slice:
        """Return which of `size` images are this process's; the parts differ by one image at most."""
        return slice(size * self.rank // self.count, size * (self.rank + 1) // self.count)

    def add_up(self, x: Tensor) -> Tensor:
        """Make x the sum over all processes, in place, without waiting for the device; return it."""
        if self.count > 1:
            distributed.all_reduce(x)
        return x

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what `make` returns in the first process, to all of them; an error there is raised in all."""
        if self.count == 1:
            return make()
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = make()
            except Exception as error:
                answer[1] = error
        # A pickle between processes of one run; none is read from a file.
        distributed.broadcast_object_list(answer, src=0, group=self.hosts)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def is_any(self, flag: bool) -> bool:
        """Return whether `flag` is True in one process or more."""
        return self._most(int(flag))[0] > 0

    def agree(self, stopping: Stopping) -> bool:
        """Return whether to stop: all processes do, once there is a reason in one of them."""
        if self.count == 1:
            return bool(stopping.reason)
        number, is_spent = self._most(int(stopping.signal or 0), int(stopping.is_spent))
        stopping.learn(number, bool(is_spent))
        return number > 0 or is_spent > 0

    def _most(self, *numbers: int) -> list[int]:
        if self.count == 1:
            return list(numbers)
        most = torch.tensor(numbers)
        distributed.all_reduce(most, distributed.ReduceOp.MAX, group=self.hosts)
        return most.tolist()


ALONE = Ranks()


@contextmanager
def joined_ranks(recipe_sha256: str) -> Iterator[Ranks]:
    """Inside, the processes of torch's default group train together; without a group, this one alone."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        yield ALONE
        return
    hosts = distributed.new_group(backend="gloo")
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), hosts)
    try:
        if ranks.is_any(ranks.from_first(lambda: recipe_sha256) != recipe_sha256):
            raise ValueError(
                "the processes of one torch.distributed group train one run, but were given different recipes; give "
                "all the same, or do not initialise a group"
            )
        yield ranks
    finally:
        distributed.destroy_process_group(hosts)


def device_of_rank(ranks: Ranks, device: torch.device | str | None) -> torch.device | str | None:
    """Return this process's own CUDA device, where `device` leaves its number open."""
    if ranks.count == 1 or not torch.cuda.is_available() or str(device or "cuda") != "cuda":
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', ranks.rank)) % torch.cuda.device_count()}"


@contextmanager
def group_of_torchrun() -> Iterator[bool]:
    """Inside, the processes that torchrun started are torch's default group; yield whether this is the first one."""
    if not distributed.is_available() or not distributed.is_torchelastic_launched():
        yield True
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()
