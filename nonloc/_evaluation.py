"""evaluating: run a model in evaluation mode, and restore its modes afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Without a lock, a second thread would save and restore the mode that the first has set.
_LOCK = threading.RLock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule has the mode it had."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}")
    with _LOCK:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training
