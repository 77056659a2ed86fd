"""What torch does to tensors besides computing with them: gradients, forward-mode derivatives, vmap, torch.func.

Some shortcuts cannot be taken under it: attention has no forward mode, a batch under vmap has no single number to look
at, and torch.func keeps no promise to compute something again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, …) is at work; not asked in a traced program."""
    return not torch.compiler.is_compiling() and _functorch.peek_interpreter_stack() is not None


def is_differentiated_by_func() -> bool:
    """Whether one of these transforms is another than vmap."""
    if not is_transformed():
        return False
    return any(level.key() != _functorch.TransformType.Vmap for level in _functorch.get_interpreter_stack())


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are being taken (torch.func.jvp, jacfwd, dual numbers)."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_by_the_book() -> bool:
    """Whether only what torch itself can follow will do: while tracing, under torch.func, and in forward mode."""
    return torch.compiler.is_compiling() or is_transformed() or is_forward_mode()


def is_left_open(size: int) -> bool:
    """Whether a program is exported that is to serve any such size: comparing it with a number would close it again."""
    return isinstance(size, torch.SymInt) and torch.compiler.is_exporting()


def is_batched(x: Tensor) -> bool:
    """Whether vmap has hidden a dimension of x, however deep in other transforms; not asked in a traced program."""
    if torch.compiler.is_compiling():
        return False
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def needs_derivative(x: Tensor) -> bool:
    """Whether what is computed from x is to be differentiated, in either mode."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled() and x.requires_grad
    while _functorch.is_functorch_wrapped_tensor(x):
        if not _functorch.is_batchedtensor(x):
            return True  # grad and jvp wrap what they differentiate, and nothing else
        x = _functorch.get_unwrapped(x)
    if torch.is_grad_enabled() and x.requires_grad:
        return True
    # Sparse tensors have no dual numbers, and are not to be asked for them.
    return x.layout == torch.strided and forward_ad.unpack_dual(x).tangent is not None
