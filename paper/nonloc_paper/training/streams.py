"""CUDA streams, or nothing in their place on devices that have none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Stream = torch.cuda.Stream | None


def new_stream(device: torch.device) -> Stream:
    """A stream that begins after what was launched so far; None for a device that has none."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def on_stream(stream: Stream) -> AbstractContextManager[Any]:
    """Inside, work is launched on `stream`."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def follow(stream: Stream, leader: Stream) -> None:
    """What is launched on `stream` from now on comes after what was launched on `leader` until now."""
    if stream is not None and leader is not None:
        stream.wait_stream(leader)
