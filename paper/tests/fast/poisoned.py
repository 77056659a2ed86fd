"""Memory in which what was never written, and what lies beside a tensor, is NaN."""

from contextlib import contextmanager

import torch


@contextmanager
def poisoned_memory():
    """What is allocated here is NaN until it is written."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)


def surrounded(values):
    """The same numbers, channels-last, with NaN before and after them in memory."""
    batch, channels, height, width = values.shape
    room = torch.full((values.numel() + 4096,), torch.nan, dtype=values.dtype)
    inside = room[2048 : 2048 + values.numel()].view(batch, height, width, channels)
    return inside.permute(0, 3, 1, 2).copy_(values)
