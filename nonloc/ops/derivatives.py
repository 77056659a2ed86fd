"""Derivatives of any order for values whose computation cannot be differentiated so often.

A gradient becomes a function of all its inputs only when it is to be differentiated again: torch then calls backward
with gradients enabled. First derivatives cost no more than before.
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

    solve    θ -> x, to rounding, without a gradient
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
    """once(*inputs) with its own first derivative, and the higher derivatives of `function`, which has equal values."""
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
        # x counts as an input of its own: its dependence on θ is in the factor w.
        found = partial_gradients(ctx.equation.residue, (x, *theta), (False, *ctx.needs_input_grad[1:]), -w)
        return None, *found[1:]


class _Once(torch.autograd.Function):
    """The identity; it passes on only gradients that will not be differentiated again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        return tuple(None for _ in gradients) if torch.is_grad_enabled() else gradients


class _Again(torch.autograd.Function):
    """The value; its gradients are those of `function` if they will be differentiated again."""

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
        found = partial_gradients(ctx.function, inputs, ctx.needs_input_grad[2:], v)
        # Zeros, because cuDNN's attention does not take None; `_Once` drops what follows from them.
        return torch.zeros_like(v), None, *found


def partial_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], needed: Sequence[bool], v: Tensor
) -> Gradients:
    """The gradient of Σ v · function(*inputs) in each input that needs one, as if no input depended on another.

    Differentiable in v and in all inputs where gradients are enabled.
    """
    again = torch.is_grad_enabled()
    # Backward may run under autocast, which must not change the forward pass that is repeated here.
    with torch.enable_grad(), full_precision(v):
        # Views of the inputs: an input that depends on another one is then no path for gradients.
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
