"""Running a model once, to look at it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Run the model on a tensor, on a tuple or list of arguments, or on a dict of keyword arguments.

    Not as compiled: a program that was compiled before hooks were registered runs without them.
    """
    with _eagerly():
        if isinstance(inputs, Mapping):
            return model(**inputs)
        if isinstance(inputs, (tuple, list)):
            return model(*inputs)
        return model(inputs)


def _eagerly() -> AbstractContextManager[Any]:
    # Where nothing was compiled the compiler is not there, and takes seconds to import; inside what it compiles its
    # stance cannot be changed.
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
