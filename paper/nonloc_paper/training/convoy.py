"""Convoy: the runs that are side by side take their steps together, as branches of one CUDA graph.

A small network does not fill a device. Several fill it better as branches of one graph, which needs one launch for all
of them, than as graphs of their own on streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc_paper.training import graphs
from nonloc_paper.training.plan import Batch
from nonloc_paper.training.state import without_trace
from nonloc_paper.training.step import TrainingStep
from nonloc_paper.training.streams import Stream, follow, new_stream, on_stream

# How often a step is done before it is recorded: libraries choose their algorithms and make their workspaces then.
WARM_UP_STEPS = 3


class Rider:
    """A run's step in a convoy, and where it looks for what it is given.

    stream  of its branch while it is recorded, and of what it does on its own
    """

    def __init__(self, step: TrainingStep, seat: int, stream: Stream) -> None:
        device = step.task.device
        self.step, self.seat, self.stream = step, seat, stream
        # A generator would need launches of its own at every departure.
        self.generator = None if step.task.draws_by_seed else torch.Generator(device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        # For each size of a batch that was recorded.
        self.indices: dict[int, Tensor] = {}

    def work(self, size: int) -> Tensor:
        return self.step.work(self.indices[size], self.seed if self.generator is None else self.generator)


@dataclass(frozen=True)
class _Ticket:
    """What a rider wants of the next departure: a step with this batch, its loss put there."""

    batch: Batch
    loss: Tensor


@dataclass(frozen=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    losses: list[Tensor]
    pool: object


_Party = tuple[tuple[Rider, int], ...]
"""Who goes, in the order of their seats, each with the size of the batch."""


class Convoy:
    """Steps that are replayed together.

    Riders board, each with its next batch; the departure does one step of each, in one launch. Which riders there are,
    and with which sizes of batches, decides the graph, which is recorded when it is first needed. What a rider computes
    does not depend on who else rides: branches have no memory in common.

    stream  on which everything happens that is not a branch; the current one whenever a method is called
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = new_stream(device)
        # The graphs have their memory in common, as no two of them run at the same time.
        self._pool = torch.cuda.graph_pool_handle()
        # Streams are used again: torch has a limited number of them, and their memory is at hand.
        self._streams: list[Stream] = []
        self._riders: dict[int, Rider] = {}
        self._aboard: dict[Rider, _Ticket] = {}
        self._recorded: dict[_Party, _Recorded] = {}
        self._apart: list[Rider] = []

    def join(self, step: TrainingStep) -> Rider:
        """A seat for the run whose step this is, until it leaves."""
        seat = next(number for number in range(len(self._riders) + 1) if number not in self._riders)
        if seat == len(self._streams):
            self._streams.append(new_stream(self._device))
        rider = self._riders[seat] = Rider(step, seat, self._streams[seat])
        return rider

    def leave(self, rider: Rider) -> None:
        """Give the seat back, and the memory of the graphs that need it, once the device is done with them."""
        self._reunite()
        if self.stream is not None:
            self.stream.synchronize()
        self._riders.pop(rider.seat, None)
        self._aboard.pop(rider, None)
        self._recorded = {
            party: recorded
            for party, recorded in self._recorded.items()
            if all(other is not rider for other, _ in party)
        }
        if all(recorded.pool != self._pool for recorded in self._recorded.values()):
            # torch gives up a pool with its last graph.
            self._pool = torch.cuda.graph_pool_handle()

    def board(self, rider: Rider, batch: Batch, loss: Tensor) -> None:
        """Have a step done by the next departure, and its loss written into `loss` [].

        A rider that comes with a batch of a new size is recorded alone before: whatever is wrong with its step is
        raised here, CaptureError if it cannot be recorded, and hurts nobody else. This leaves no trace.
        """
        if len(batch.indices) not in rider.indices:
            self._admit(rider, batch)
        self._aboard[rider] = _Ticket(batch, loss)

    def depart(self) -> None:
        """One step of all that are aboard; does not wait for the device."""
        if not self._aboard:
            return
        riders = sorted(self._aboard, key=lambda rider: rider.seat)
        tickets = [self._aboard[rider] for rider in riders]
        self._aboard.clear()
        party = tuple(
            (rider, len(ticket.batch.indices)) for rider, ticket in zip(riders, tickets, strict=True)
        )
        self._reunite()
        recorded = self._recorded.get(party)
        if recorded is None:
            recorded = self._recorded[party] = self._record_together(party)
        for rider, ticket in zip(riders, tickets, strict=True):
            if rider.generator is not None:
                rider.generator.manual_seed(ticket.batch.seed)
        # One launch for all of them, before and after.
        torch._foreach_copy_(
            [tensor for rider, size in party for tensor in (rider.indices[size], rider.seed)],
            [tensor for ticket in tickets for tensor in (ticket.batch.indices, ticket.batch.seed_on_device)],
        )
        recorded.graph.replay()
        torch._foreach_copy_([ticket.loss for ticket in tickets], recorded.losses)

    @contextmanager
    def apart(self, rider: Rider) -> Iterator[None]:
        """Inside, work is launched on the rider's own stream, beside that of others, until the next departure."""
        follow(rider.stream, self.stream)
        self._apart.append(rider)
        with on_stream(rider.stream):
            yield

    def _reunite(self) -> None:
        while self._apart:
            follow(self.stream, self._apart.pop().stream)

    def _admit(self, rider: Rider, batch: Batch) -> None:
        size, step = len(batch.indices), rider.step
        rider.indices[size] = batch.indices.clone()
        try:
            with without_trace(step.model, step.optimizer):
                with self.apart(rider):
                    for _ in range(WARM_UP_STEPS):
                        rider.work(size)
                    # The gradients of the recorded step then are in the graph's own memory.
                    step.optimizer.zero_grad(set_to_none=True)
                self._reunite()
            party = ((rider, size),)
            self._recorded[party] = self._record(party)
        except BaseException:
            del rider.indices[size]
            raise

    def _record_together(self, party: _Party) -> _Recorded:
        try:
            return self._record(party)
        except graphs.CaptureError as error:
            # Each of them was recorded alone, so that it is no fault of theirs.
            raise graphs.CaptureError(
                f"{len(party)} runs cannot be captured in one CUDA graph ({error}); use a smaller side_by_side"
            ) from error

    def _record(self, party: _Party) -> _Recorded:
        def work() -> list[Tensor]:
            losses = []
            for rider, _ in party:
                follow(rider.stream, self.stream)
            for rider, size in party:
                with on_stream(rider.stream):
                    losses.append(rider.work(size))
            for rider, _ in party:
                follow(self.stream, rider.stream)
            return losses

        generators = [rider.generator for rider, _ in party if rider.generator is not None]
        try:
            graph, losses = graphs.record(work, self._pool, generators)
        except graphs.CaptureError:
            # What the failed recording left in it is not to be trusted.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return _Recorded(graph, losses, self._pool)
