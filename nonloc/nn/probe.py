"""Running a model once, to look at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nonloc._torch_compat import run_eagerly

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Run the model on a tensor, on a tuple or list of arguments, or on a dict of keyword arguments.

    Not as compiled: a program that was compiled before hooks were registered runs without them.
    """
    with run_eagerly():
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, (tuple, list)):
            return model(*inputs)
        return model(inputs)
