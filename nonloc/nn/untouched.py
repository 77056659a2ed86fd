"""is_untouched: whether calling a module is its class's forward and nothing more."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

_M = TypeVar("_M", bound=nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_untouched(module: nn.Module | None, kind: type[_M], *, parametrized: bool = False) -> TypeGuard[_M]:
    """Whether nobody has put something else in its place, changed how it is called, or watches what goes in and out.

    Who computes with a module's weights instead of calling it asks this first: hooks, pruning, the older weight and
    spectral norms, LoRA and Grad-CAM all live in the call. Hooks on all modules at once do not count: they are those of
    profilers, which are to see what runs without them.

    parametrized  True also where `torch.nn.utils.parametrize` was used: such weights are right wherever they are read
    """
    if module is None:
        return False
    own = type(module)
    if parametrized and is_parametrized(module):
        own = own.__bases__[0]  # the class that parametrize derived this one from
    if own is not kind or any(getattr(module, name) for name in _HOOKS):
        return False
    if torch.compiler.is_compiling():
        return True  # what follows is not for tracing, which sees to it by itself
    return "forward" not in module.__dict__ and module._compiled_call_impl is None
