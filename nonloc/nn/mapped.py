"""mapped: a linear map of an input, or in plain words why their dtypes do not go together."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mapped(linear: nn.Linear, x: Tensor) -> Tensor:
    """linear(x); a ValueError that names the ways out where torch refuses the dtype of x."""
    if torch.compiler.is_compiling():
        return linear(x)  # tracing has words of its own, and need not follow exceptions
    # Not checked beforehand: only torch knows what autocast, hooks and other kinds of weights make possible.
    try:
        return linear(x)
    except RuntimeError as error:
        has, got = linear.weight.dtype, x.dtype
        if has == got or "dtype" not in str(error):
            raise
        # Autocast leaves float64 alone.
        autocast = "" if torch.float64 in (has, got) else ", or run both under torch.autocast"
        raise ValueError(
            f"the module has weights in {has} and its input is {got}; use module.to({got}) or x.to({has}){autocast}"
        ) from error
