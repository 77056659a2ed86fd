"""GraphGroup: training steps of several runs as branches of one CUDA graph.

A small network does not fill a device. The steps of several networks fill it better as branches of one graph, which
needs one launch for all of them, than as separate graphs on separate streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nonloc._torch_compat import copy_all, end_allocation_to_pool
from nonloc_paper.training.plan import Batch
from nonloc_paper.training.step import Stream, TrainingStep, follow, new_stream, on_stream

T = TypeVar("T")

# Steps before a capture: libraries choose their algorithms and allocate their workspaces in them.
WARM_UP_STEPS = 3

# Graphs whose capture failed: the allocator may ask them again, so they must not be freed.
_FAILED: list[torch.cuda.CUDAGraph] = []


class CaptureError(RuntimeError):
    """Some work cannot be captured as a CUDA graph; the message says why."""


class Member:
    """The step of one run in a group, with the fixed memory from which the graph reads its input.

    number  the smallest one that is free when the member is added
    stream  of its branch during a capture, and of its work outside the graph
    """

    def __init__(self, step: TrainingStep, number: int, stream: Stream) -> None:
        device = step.task.device
        self.step, self.number, self.stream = step, number, stream
        # A generator needs launches of its own at every replay.
        self.generator = None if step.task.draws_by_seed else torch.Generator(device)
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        # One buffer for each batch size that was captured.
        self.indices: dict[int, Tensor] = {}

    def compute(self, size: int) -> Tensor:
        """Do one step with the batch in the buffer for `size` images; return its loss."""
        return self.step.compute(self.indices[size], self.seed if self.generator is None else self.generator)


@dataclass(frozen=True)
class _Request:
    """A step that the next `GraphGroup.step` does: its batch, and where its loss is written."""

    batch: Batch
    loss: Tensor


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    losses: list[Tensor]
    pool: object


_Branches = tuple[tuple[Member, int], ...]
"""The members in one graph, in the order of their numbers, each with its batch size."""


class GraphGroup:
    """Runs whose training steps are replayed together.

    Each run adds its step to the group and requests a step for each batch; `step` does all requested steps in one
    launch. The members and their batch sizes decide the graph, which is captured when it is first needed. The other
    members do not change the numbers of a member: branches share no memory.

    stream  of all work outside the branches; the current stream whenever a method is called
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stream = new_stream(device)
        # All graphs share their memory, as no two of them run at the same time.
        self._pool = torch.cuda.graph_pool_handle()
        # Streams are reused: torch has a limited number of them, and their memory is already allocated.
        self._streams: list[Stream] = []
        self._members: dict[int, Member] = {}
        self._requests: dict[Member, _Request] = {}
        self._captured: dict[_Branches, _Captured] = {}
        self._on_own_streams: list[Member] = []

    def add(self, step: TrainingStep) -> Member:
        """Add the step of a run, until it is removed."""
        number = next(number for number in range(len(self._members) + 1) if number not in self._members)
        if number == len(self._streams):
            self._streams.append(new_stream(self._device))
        member = self._members[number] = Member(step, number, self._streams[number])
        return member

    def remove(self, member: Member) -> None:
        """Wait for the device, then free the member's number and all graphs that contain it."""
        self._wait_for_own_streams()
        if self.stream is not None:
            self.stream.synchronize()
        self._members.pop(member.number, None)
        self._requests.pop(member, None)
        self._captured = {
            branches: captured
            for branches, captured in self._captured.items()
            if all(other is not member for other, _ in branches)
        }
        if all(captured.pool != self._pool for captured in self._captured.values()):
            # torch frees a pool with its last graph.
            self._pool = torch.cuda.graph_pool_handle()

    def request(self, member: Member, batch: Batch, loss: Tensor) -> None:
        """Let the next `step` train `member` on `batch` and write its loss into `loss` [].

        The first batch of a size is captured alone, and leaves no trace. An error in the step is therefore raised
        here, CaptureError if it cannot be captured, and concerns no other member.
        """
        if len(batch.indices) not in member.indices:
            self._capture_alone(member, batch)
        self._requests[member] = _Request(batch, loss)

    def step(self) -> None:
        """Do all requested steps, without waiting for the device."""
        if not self._requests:
            return
        members = sorted(self._requests, key=lambda member: member.number)
        requests = [self._requests[member] for member in members]
        self._requests.clear()
        branches = tuple(
            (member, len(request.batch.indices)) for member, request in zip(members, requests, strict=True)
        )
        self._wait_for_own_streams()
        captured = self._captured.get(branches)
        if captured is None:
            try:
                captured = self._captured[branches] = self._capture(branches)
            except CaptureError as error:
                # Each member was captured alone before, so the reason is their number.
                raise CaptureError(
                    f"{len(branches)} runs cannot be captured in one CUDA graph ({error}); use a smaller side_by_side"
                ) from error
        for member, request in zip(members, requests, strict=True):
            if member.generator is not None:
                member.generator.manual_seed(request.batch.seed)
        # One launch before the graph, and one after it.
        copy_all(
            [tensor for member, size in branches for tensor in (member.indices[size], member.seed)],
            [
                tensor
                for request in requests
                for tensor in (request.batch.indices, request.batch.seed_on_device)
            ],
        )
        captured.graph.replay()
        copy_all([request.loss for request in requests], captured.losses)

    @contextmanager
    def on_own_stream(self, member: Member) -> Iterator[None]:
        """Inside, work is launched on the member's stream, parallel to others; the next `step` waits for it."""
        follow(member.stream, self.stream)
        self._on_own_streams.append(member)
        with on_stream(member.stream):
            yield

    def _wait_for_own_streams(self) -> None:
        while self._on_own_streams:
            follow(self.stream, self._on_own_streams.pop().stream)

    def _capture_alone(self, member: Member, batch: Batch) -> None:
        size, step = len(batch.indices), member.step
        member.indices[size] = batch.indices.clone()
        try:
            with without_trace(step.model, step.optimizer):
                with self.on_own_stream(member):
                    for _ in range(WARM_UP_STEPS):
                        member.compute(size)
                    # The gradients of the captured step are then allocated in the graph's own memory.
                    step.optimizer.zero_grad(set_to_none=True)
                self._wait_for_own_streams()
            branches = ((member, size),)
            self._captured[branches] = self._capture(branches)
        except BaseException:
            del member.indices[size]
            raise

    def _capture(self, branches: _Branches) -> _Captured:
        def compute() -> list[Tensor]:
            losses = []
            for member, _ in branches:
                follow(member.stream, self.stream)
            for member, size in branches:
                with on_stream(member.stream):
                    losses.append(member.compute(size))
            for member, _ in branches:
                follow(self.stream, member.stream)
            return losses

        generators = [member.generator for member, _ in branches if member.generator is not None]
        try:
            graph, losses = capture_graph(compute, self._pool, generators)
        except CaptureError:
            # The failed capture may have left something in the pool.
            self._pool = torch.cuda.graph_pool_handle()
            raise
        return _Captured(graph, losses, self._pool)


def capture_graph(
    work: Callable[[], T], pool: Any, generators: Sequence[torch.Generator] = ()
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture `work` on the current stream, not the default one; return (the graph, the result of `work`).

    `work` is called once and computes nothing. The memory it reads and writes must stay where it is. Its allocations
    are in `pool`, and its result is there after each replay. It may fork to other streams and join them again. Graphs
    that share a pool must not be replayed at the same time where they use the same stream. The seeds and offsets of
    `generators` are read at every replay.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    try:
        for generator in generators:
            graph.register_generator_state(generator)
        # Other threads, such as the writer of checkpoints, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            result = work()
    except Exception as error:
        _end_failed_capture(graph, pool, stream.device)
        # The end of a broken capture raises an error of its own, which does not say why: take the first.
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        lines = str(first).strip().splitlines() or [""]
        raise CaptureError(f"{type(first).__name__}: {lines[0]}") from error
    return graph, result


def _end_failed_capture(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Bring the allocator and the generators out of a failed capture."""
    _FAILED.append(graph)
    with suppress(Exception):
        end_allocation_to_pool(device, pool)
    # torch leaves its own generator in capture mode; a successful capture ends that.
    with suppress(Exception):
        number = torch.zeros(1, device=device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            number.add_(1)


@contextmanager
def without_trace(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, `model` may be trained; afterwards its numbers and the optimizer's are, in place, as before.

    Optimizer state that is made inside stays, as zeros: for momentum without dampening and for Adam that is the same
    as none.
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    states = {
        parameter: {key: value.clone() for key, value in values.items() if isinstance(value, Tensor)}
        for parameter, values in optimizer.state.items()
    }
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)
            for parameter, values in optimizer.state.items():
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        known = states.get(parameter, {})
                        value.copy_(known[key]) if key in known else value.zero_()
