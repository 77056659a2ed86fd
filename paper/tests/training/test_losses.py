"""Losses: read in order and once, up to the first bad one."""

import math

import torch

from nonloc_paper.training.session import Losses

CPU = torch.device("cpu")


class Later:
    """An event that has happened once it is told so."""

    def __init__(self):
        self.has_happened = False

    def query(self):
        return self.has_happened


def keep(losses, *values, first=0):
    for step, value in enumerate(values, start=first):
        losses.place(step).fill_(value)


def test_they_are_read_once_and_in_order():
    losses = Losses(4, CPU)
    keep(losses, 1.0, 2.0)
    losses.send(2)
    assert losses.read() == [1.0, 2.0]
    assert losses.read() == []
    keep(losses, 3.0, first=2)
    losses.send(3)
    assert losses.read() == [3.0]
    assert losses.first_unread == 3


def test_what_was_not_sent_for_is_not_read():
    losses = Losses(4, CPU)
    keep(losses, 1.0, 2.0)
    losses.send(1)
    assert losses.read() == [1.0]


def test_reading_ends_with_the_first_bad_one_and_stays_there():
    losses = Losses(4, CPU)
    keep(losses, 1.0, math.inf, math.nan, 2.0)
    losses.send(4)
    assert losses.read() == [1.0, math.inf]
    assert losses.first_unread == 1
    assert losses.read() == [math.inf]


def test_a_new_epoch_begins_at_its_first_step():
    losses = Losses(2, CPU)
    keep(losses, 1.0, 2.0)
    losses.send(2)
    losses.read()
    losses.begin_epoch()
    assert (losses.read(), losses.first_unread) == ([], 0)
    keep(losses, 5.0)
    losses.send(1)
    assert losses.read() == [5.0]


def test_resumed_ones_are_read_again():
    losses = Losses(3, CPU)
    losses.resume([1.5, 2.5])
    keep(losses, 3.5, first=2)
    losses.send(3)
    assert losses.read() == [1.5, 2.5, 3.5]
    assert losses.at_hand().tolist() == [1.5, 2.5, 3.5]


def test_resumed_ones_are_at_hand_before_anything_is_sent():
    """A run may be resumed after the last step of an epoch, with nothing left to send for."""
    losses = Losses(3, CPU)
    losses._at_hand = torch.zeros(3)
    losses.resume([1.5, 2.5, 3.5])
    assert losses.at_hand().tolist() == losses._on_device.tolist() == [1.5, 2.5, 3.5]


def test_nothing_is_pending_on_the_cpu():
    losses = Losses(3, CPU)
    losses.send(2)
    assert losses.pending() is None


def test_what_is_on_its_way_is_waited_for_one_after_the_other():
    losses = Losses(3, CPU)
    keep(losses, 1.0, 2.0, 3.0)
    events = [Later(), Later(), Later()]
    losses._sent.extend(zip(events, (1, 2, 3), strict=True))
    assert losses.pending(3) is None
    assert losses.pending(2) is events[0]
    assert losses.pending(0) is events[2]
    events[0].has_happened = True
    assert losses.pending(2) is None
    assert losses.read() == [1.0]
    events[1].has_happened = events[2].has_happened = True
    assert losses.pending(0) is None
    assert losses.read() == [2.0, 3.0]
