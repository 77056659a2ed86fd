"""What differs between versions of torch, and every use of private torch.

Most of it asks what surrounds a tensor: tracing, vmap, torch.func, fake tensors.
Some shortcuts do not work in these surroundings. Attention has no forward mode, a batch under vmap has no single number
to read, and torch.func cannot compute a block again for its gradient.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvBase
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["ConvBase", "FakeTensorMode", "NormBase"]

Module = TypeVar("Module", bound=nn.Module)
Given = ParamSpec("Given")
Result = TypeVar("Result")

# The oldest torch whose Triton has run the kernels.
TRITON_SINCE = (2, 11)


@cache
def has_triton() -> bool:
    """Return whether Triton is installed, and torch is new enough to come with one that can run the kernels."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return release >= TRITON_SINCE and find_spec("triton") is not None


@cache
def triton_module(name: str) -> ModuleType | None:
    """The module `name` with Triton kernels, imported at its first use; None where `has_triton` is False."""
    return importlib.import_module(name) if has_triton() else None


def is_transformed() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp, …) is active; False in a traced program."""
    return not torch.compiler.is_compiling() and _functorch.peek_interpreter_stack() is not None


def is_differentiated_by_func() -> bool:
    """Return whether a transform of torch.func other than vmap is active."""
    if not is_transformed():
        return False
    return any(level.key() != _functorch.TransformType.Vmap for level in _functorch.get_interpreter_stack())


def is_forward_mode() -> bool:
    """Return whether forward-mode derivatives are being computed (torch.func.jvp, jacfwd, dual numbers)."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def needs_plain_torch() -> bool:
    """Return whether only torch's own operations work here: while tracing, under torch.func, in forward mode."""
    return torch.compiler.is_compiling() or is_transformed() or is_forward_mode()


def is_recorded() -> bool:
    """Return whether `torch.jit.trace` records operations: it keeps numbers that are read, and how often a loop ran."""
    return not torch.compiler.is_compiling() and torch.jit.is_tracing()


def is_exporting() -> bool:
    """Return whether a program is being exported; with torch 2.6, only by `torch.export.export(…, strict=False)`."""
    if is_recorded():
        return True
    # torch.compiler.is_exporting reads this flag, but torch 2.11 takes it for True in every program that it compiles.
    if hasattr(torch.compiler, "_is_exporting_flag"):
        return torch.compiler._is_exporting_flag
    # No other flag is read: a compiled program would be compiled again whenever one has changed since.
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def is_open_size(size: int) -> bool:
    """Return whether an exported program is to serve any such size: comparing it with a number would fix it."""
    if not is_exporting() or is_recorded():
        return False
    from torch.fx.experimental import symbolic_shapes  # it imports sympy, which takes half a second

    # With strict=True such a size passes for an int; only this function, since torch 2.8, tells it from a number.
    if hasattr(symbolic_shapes, "has_static_value"):
        return not symbolic_shapes.has_static_value(size)
    return isinstance(size, torch.SymInt)


def is_vmapped(x: Tensor) -> bool:
    """Return whether vmap hides a dimension of x, at any depth of transforms; False in a traced program."""
    if torch.compiler.is_compiling():
        return False
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def needs_derivative(x: Tensor) -> bool:
    """Return whether results computed from x are to be differentiated, in either mode."""
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled() and x.requires_grad
    while _functorch.is_functorch_wrapped_tensor(x):
        if not _functorch.is_batchedtensor(x):
            return True  # grad and jvp wrap only what they differentiate
        x = _functorch.get_unwrapped(x)
    if torch.is_grad_enabled() and x.requires_grad:
        return True
    # Sparse tensors have no dual numbers; torch fails when it is asked for them.
    return x.layout == torch.strided and forward_ad.unpack_dual(x).tangent is not None


def is_plain(x: Tensor) -> bool:
    """Return whether x is torch's own tensor: other classes, such as int8 weights, know few operations."""
    return type(x) in (Tensor, nn.Parameter) or isinstance(x, (FakeTensor, FunctionalTensor))


def is_fake(x: Tensor) -> bool:
    """Return whether x has a shape and no contents, as in FakeTensorMode."""
    return isinstance(x, FakeTensor)


def can_read_values(x: Tensor) -> bool:
    """Return whether the numbers may be read: not while tracing or capturing, under vmap, or without storage."""
    if torch.compiler.is_compiling() or is_recorded() or x.is_meta or is_fake(x) or is_vmapped(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def run_eagerly() -> AbstractContextManager[Any]:
    """Run compiled modules uncompiled: a program compiled before hooks were registered runs without them."""
    # The compiler takes seconds to import, and inside a traced program its stance cannot be changed.
    if "torch._dynamo" not in sys.modules or torch.compiler.is_compiling():
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def uncompiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Keep torch.compile out of a function of numpy or scipy, which it would trace into, and fail."""

    @wraps(function)
    def called(*args: Given.args, **keywords: Given.kwargs) -> Result:
        # The compiler takes seconds to import; where it is not, nothing is compiled.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **keywords)
        return torch.compiler.disable(function)(*args, **keywords)

    return called


def is_untouched(
    module: nn.Module | None, kind: type[Module], *, parametrized: bool = False
) -> TypeGuard[Module]:
    """Return whether calling the module runs the forward of the class `kind` and nothing more.

    Code that computes with a module's weights instead of calling it asks this first. Hooks, pruning, the older weight
    and spectral norms, LoRA and Grad-CAM all change the call. Hooks on all modules at once do not count: profilers use
    them, and should see what runs without them.

    parametrized  accept `torch.nn.utils.parametrize` too: such weights are right wherever they are read
    """
    if module is None:
        return False
    own = type(module)
    if own is not kind and not (parametrized and own.__bases__[0] is kind and is_parametrized(module)):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if module._backward_hooks or module._backward_pre_hooks:
        return False
    # Tracing follows a replaced forward by itself, and cannot read these attributes.
    is_replaced = not torch.compiler.is_compiling() and (
        "forward" in module.__dict__ or module._compiled_call_impl is not None
    )
    return not is_replaced


def attention_order(kernels: tuple[SDPBackend, ...]) -> AbstractContextManager[None]:
    """Have attention take the first of these kernels that applies."""
    # Torch's own way does the same in more calls, and is the one that the compiler knows.
    if torch.compiler.is_compiling():
        return sdpa_kernel(list(kernels), set_priority=True)
    return _AttentionOrder(kernels)


class _AttentionOrder(AbstractContextManager[None]):
    # As a generator, which finds the numbers at each call, it takes 4 % of the host's time of one sub-block.
    def __init__(self, kernels: tuple[SDPBackend, ...]) -> None:
        self.numbers = _numbers(kernels)

    def __enter__(self) -> None:
        self.before = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(self.numbers)

    def __exit__(self, *_: object) -> None:
        torch._C._set_sdp_priority_order(self.before)


@cache
def _numbers(kernels: tuple[SDPBackend, ...]) -> list[int]:
    """Torch's numbers of all kernels, these first."""
    first = [one.value for one in kernels]
    return [*first, *(one for one in torch._C._get_sdp_priority_order() if one not in first)]


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target in place; on CUDA with one launch for all of them."""
    torch._foreach_copy_(targets, sources)


def end_allocation_to_pool(device: torch.device, pool: Any) -> None:
    """Tell the CUDA allocator that no memory goes to the graphs' `pool` any more, after a capture that failed."""
    torch._C._cuda_endAllocateToPool(device.index, pool)


def exact_convolutions() -> tuple[Any, str, str | bool]:
    """Return (settings, name, value): setting it has CUDA compute convolutions of float32 in float32, not in TF32."""
    # torch replaces this module by another object when it is imported, which its annotations do not say.
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return cudnn.conv, "fp32_precision", "ieee"
    return cudnn, "allow_tf32", False  # before torch 2.9


def cpu_has_bfloat16() -> bool:
    """Return whether oneDNN computes in bfloat16 on this CPU; without it a step takes a hundred times as long."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
