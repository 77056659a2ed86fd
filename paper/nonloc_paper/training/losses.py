"""Losses: an epoch's, on the device where they arise and, as far as they have arrived, at hand."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

Event = torch.cuda.Event


class Losses:
    """One number for each step of an epoch. All of them: their mean is then the same however often the run was
    resumed, and the first bad one can be named although the device is not asked after every step.

    On CUDA they are sent for, and read once they have arrived; elsewhere they are there at once.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self._on_device = torch.zeros(steps, device=device)
        self._is_remote = device.type == "cuda"
        self._at_hand = torch.zeros(steps, pin_memory=True) if self._is_remote else self._on_device
        self._sent: deque[tuple[Event, int]] = deque()
        self._arrived = 0
        self._read = 0

    def place(self, step: int) -> Tensor:
        """A tensor [] on the device, where the loss of a step is to be kept."""
        return self._on_device[step]

    def begin_epoch(self) -> None:
        self._sent.clear()
        self._arrived = self._read = 0

    def resume(self, losses: list[float]) -> None:
        """Those of the first steps of an epoch that was begun before, to be checked again."""
        for place in (self._on_device, self._at_hand):
            place[: len(losses)] = torch.tensor(losses)

    def send(self, steps: int) -> None:
        """Let the losses of the first `steps` steps come; does not wait for the device."""
        if not self._is_remote:
            self._arrived = steps
            return
        self._at_hand.copy_(self._on_device, non_blocking=True)
        event = Event(blocking=True)
        event.record()
        self._sent.append((event, steps))

    def pending(self, most: int = 0) -> Event | None:
        """The event to wait for until no more than `most` sendings are on their way; None if it is so."""
        while self._sent and self._sent[0][0].query():
            self._arrived = self._sent.popleft()[1]
        return None if len(self._sent) <= most else self._sent[len(self._sent) - most - 1][0]

    def read(self) -> list[float]:
        """Those that arrived since the last reading, up to the first that is not finite; waits for nothing."""
        losses = self._at_hand[self._read : self._arrived].tolist()
        good = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
        self._read += good
        return losses[: good + 1]

    @property
    def first_unread(self) -> int:
        """The step of the epoch after those whose losses were read and found finite."""
        return self._read

    def at_hand(self) -> Tensor:
        """float32 [steps] on the CPU; all that was kept, once nothing is pending."""
        return self._at_hand
