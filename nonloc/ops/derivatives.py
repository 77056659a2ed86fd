"""Derivatives of any order where what computes a value cannot be differentiated as often, or not at all.

A gradient is written as a function of all that it depends on, only when a gradient of it is asked for: torch says so by
the mode in which it calls backward. First derivatives cost what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nonloc.ops.arithmetic import full_precision

Gradients = tuple[Tensor | None, ...]


class Equation(Protocol):
    """G(x, θ) = 0 for x, with θ some tensors.

    solve    θ -> x, to rounding; no gradient is wanted of it
    residue  (x, θ) -> G(x, θ), differentiable
    adjoint  (v, x, θ) -> w with (∂G/∂x)ᵀ w = v at the solution x, differentiable in all of them
    """

    @property
    def solve(self) -> Callable[..., Tensor]: ...
    @property
    def residue(self) -> Callable[..., Tensor]: ...
    @property
    def adjoint(self) -> Callable[..., Tensor]: ...


def solution(equation: Equation, *theta: Tensor) -> Tensor:
    """x(θ) with its derivatives of every order: ∂x/∂θ = −(∂G/∂x)⁻¹ ∂G/∂θ, at x(θ) again."""
    return _Solution.apply(equation, *theta)


def differentiable_as(
    function: Callable[..., Tensor], once: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """once(*inputs), which equals function(*inputs) and can be differentiated once: by itself that time, by `function`
    where a gradient is to be differentiated again."""
    return _Again.apply(once(*_Once.apply(*inputs)), function, *inputs)


class _Solution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, equation: Equation, *theta: Tensor) -> Tensor:
        x = equation.solve(*theta)
        ctx.equation = equation
        ctx.save_for_backward(x, *theta)
        return x

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Gradients:
        x, *theta = ctx.saved_tensors
        with full_precision(v):
            w = ctx.equation.adjoint(v, x, *theta)
        # x stands beside θ, not for a function of it: what it contributes is the other factor.
        found = _partial_gradients(ctx.equation.residue, (x, *theta), (False, *ctx.needs_input_grad[1:]), -w)
        return None, *found[1:]


class _Once(torch.autograd.Function):
    """The inputs themselves; of their gradients, only those that nobody will differentiate."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        return tuple(None for _ in gradients) if torch.is_grad_enabled() else gradients


class _Again(torch.autograd.Function):
    """The value itself; the gradients of `function`, if they will be differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Gradients:
        inputs = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return v, None, *(None for _ in inputs)
        # Zeros and not None, which cuDNN's attention would not take; what becomes of them ends in `_Once`.
        return (
            torch.zeros_like(v),
            None,
            *_partial_gradients(ctx.function, inputs, ctx.needs_input_grad[2:], v),
        )


def _partial_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], v: Tensor
) -> Gradients:
    """The gradient of Σ v · function(*inputs) in each input that needs one, as if no input depended on another.

    Differentiable in v and in all inputs where gradients are enabled.
    """
    again = torch.is_grad_enabled()
    # Backward may be called where autocast is on, which is not to reach the work of the forward pass done here.
    with torch.enable_grad(), full_precision(v):
        # New names for the inputs: paths from one to another through what came before do not lead through these.
        names = [
            _renamed(x) if again else x.detach().requires_grad_(needs)
            for x, needs in zip(inputs, needed, strict=True)
        ]
        value = function(*names)
        wanted = [name for name, needs in zip(names, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(value, wanted, v, create_graph=again, allow_unused=True))
    return tuple(next(found) if needs else None for needs in needed)


def _renamed(x: Tensor) -> Tensor:
    return x.view_as(x) if x.layout == torch.strided else x.clone()
