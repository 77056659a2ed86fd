"""Losses of an epoch: read in order and once, up to the first that is not finite."""

import math

import torch

from nonloc_paper.training.session import Losses

CPU = torch.device("cpu")


class Later:
    """An event that has happened once a test says so."""

    has_happened = False

    def query(self):
        return self.has_happened


def losses_of(*values):
    losses = Losses(4, CPU)
    for step, value in enumerate(values):
        losses.at(step).fill_(value)
    return losses


def test_sent_losses_are_read_once_and_in_order():
    losses = losses_of(1.0, 2.0, 3.0)
    losses.send(2)
    assert list(losses.pending()) == [], "on the CPU they are there at once"
    assert losses.read() == [1.0, 2.0]
    assert losses.read() == []
    losses.send(3)
    assert losses.read() == [3.0]
    assert losses.finite == 3


def test_reading_ends_with_the_first_bad_one_and_stays_there():
    losses = losses_of(1.0, math.inf, math.nan, 2.0)
    losses.send(4)
    assert losses.read() == [1.0, math.inf]
    assert losses.finite == 1
    assert losses.read() == [math.inf]


def test_a_new_epoch_begins_at_its_first_step():
    losses = losses_of(1.0, 2.0)
    losses.send(2)
    losses.read()
    losses.begin_epoch()
    assert (losses.read(), losses.finite) == ([], 0)


def test_resumed_losses_are_read_again_and_are_on_host_and_device_at_once():
    """A run may be resumed after the last step of an epoch, with nothing left to send."""
    losses = Losses(3, CPU)
    losses.on_host = torch.zeros(3)
    losses.resume([1.5, 2.5, 3.5])
    assert losses.on_host.tolist() == losses._on_device.tolist() == [1.5, 2.5, 3.5]
    losses.send(3)
    assert losses.read() == [1.5, 2.5, 3.5]


def test_transfers_are_waited_for_one_after_the_other():
    losses = losses_of(1.0, 2.0, 3.0)
    events = [Later(), Later(), Later()]
    losses._sent.extend(zip(events, (1, 2, 3), strict=True))
    assert list(losses.pending(3)) == []
    assert next(losses.pending(2)) is events[0]
    waiting = losses.pending(0)
    assert next(waiting) is events[2]
    events[0].has_happened = True
    assert list(losses.pending(2)) == []
    assert losses.read() == [1.0]
    events[1].has_happened = events[2].has_happened = True
    assert list(waiting) == []
    assert losses.read() == [2.0, 3.0]
