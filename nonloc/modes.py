"""evaluating: a model in evaluation mode for a while, and afterwards as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# A second thread would take the mode that the first has set for the model's own, and leave it so.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule has the mode it had."""
    with _ONE_AT_A_TIME:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, training in modes:
                module.training = training
