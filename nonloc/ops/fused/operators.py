"""Stages and products with a first derivative: for torch.autograd, and as operators of torch.library, which a traced
program calls without looking inside.

Each has a forward (*tensors, settings, keeps) -> (result, *kept), whose last results are for backward alone, and a
backward (gradient of the result, *tensors, *kept, settings) -> a gradient for each of the tensors, or None. In the
operators, whose number of results is fixed, what is absent is an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nonloc.ops.fused import passes, stored
from nonloc.ops.fused.launch import Settings

Tensors = tuple[Tensor | None, ...]


class Computation:
    """A stage or a product, with its derivative, and its operators nonloc::<name> and nonloc::<name>_backward.

    tensors       the names of its tensors; without the first three, the affinity has no gradient
    kept          the names of what forward keeps
    fake          (*tensors, settings) -> shapes of the result and of what is kept
    needs_result  backward takes the result, too, before what is kept
    """

    def __init__(
        self,
        name: str,
        tensors: str,
        kept: str,
        forward: Callable[..., Tensors],
        backward: Callable[..., Tensors],
        fake: Callable[..., Tensors],
        needs_result: bool = False,
    ) -> None:
        self.forward, self.backward, self.fake = forward, backward, fake
        self.given = len(tensors.split())  # how many tensors
        self.kept = len(kept.split())
        arguments = ", ".join(f"Tensor{'?' if one == 'bias' else ''} {one}" for one in tensors.split())
        saved = ", ".join(f"Tensor {one}" for one in (["result"] if needs_result else []) + kept.split())
        kinds = {"scale": "float", "dtype": "ScalarType?"}
        settings = ", ".join(f"{kinds.get(field, 'bool')} {field}" for field in Settings._fields)
        self.operator = _operator(
            name, f"({arguments}, {settings}, bool keeps)", 1 + self.kept, self._run, self._fake
        )
        self.backward_operator = _operator(
            f"{name}_backward",
            f"(Tensor gradient, {arguments}, {saved}, {settings})",
            self.given,
            self._run_backward,
            self._fake_backward,
        )

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Tensor | None:
                *given, settings, keeps = args
                is_traced = torch.compiler.is_compiling()
                if is_traced:
                    result, *others = self.operator(*given, *settings, keeps)
                else:
                    result, *others = forward(*given, settings, keeps)
                if keeps:
                    ctx.save_for_backward(*given, *([result] if needs_result else []), *others)
                    ctx.settings, ctx.is_traced = settings, is_traced
                return result

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensors:
                if ctx.is_traced:
                    results = self.backward_operator(gradient, *ctx.saved_tensors, *ctx.settings)
                    return *map(_or_none, results), None, None
                check_first_derivative()
                return *backward(gradient, *ctx.saved_tensors, ctx.settings), None, None

        self.function = Function

    def __call__(self, *tensors: Tensor | None, settings: Settings) -> Tensor:
        """The result, with its first derivative."""
        wanted = [torch.is_grad_enabled() and one is not None and one.requires_grad for one in tensors]
        settings = settings._replace(has_gradient=any(wanted[:3]))
        return self.function.apply(*tensors, settings, any(wanted))

    def _run(self, *args: Any) -> tuple[Tensor, ...]:
        given, settings, keeps = args[: self.given], Settings(*args[self.given : -1]), args[-1]
        result, *kept = self.forward(*given, settings, keeps)
        return _separate(_filled(args[0], (result, *(kept if keeps else [None] * self.kept))))

    def _fake(self, *args: Any) -> tuple[Tensor, ...]:
        given, settings, keeps = args[: self.given], Settings(*args[self.given : -1]), args[-1]
        result, *kept = self.fake(*given, settings)
        return _filled(args[0], (result, *(kept if keeps else [None] * self.kept)))

    def _run_backward(self, *args: Any) -> tuple[Tensor, ...]:
        tensors, settings = args[: -len(Settings._fields)], args[-len(Settings._fields) :]
        first, kept = tensors[: -self.kept], [_or_none(one) for one in tensors[-self.kept :]]
        return _separate(_filled(args[1], self.backward(*first, *kept, Settings(*settings))))

    def _fake_backward(self, *args: Any) -> tuple[Tensor, ...]:
        shapes = [None if one is None else one.new_empty(one.shape) for one in args[1 : 1 + self.given]]
        if not Settings(*args[-len(Settings._fields) :]).has_gradient:
            shapes[:3] = [None] * 3
        return _filled(args[1], tuple(shapes))


def _operator(
    name: str, arguments: str, results: int, run: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """nonloc::<name>, with so many results. It has no derivative of its own, which would enter Python at each call."""
    full_name = f"nonloc::{name}"
    torch.library.define(full_name, f"{arguments} -> ({', '.join(['Tensor'] * results)})")
    torch.library.impl(full_name, "CompositeExplicitAutograd")(run)
    torch.library.register_fake(full_name)(fake)
    return getattr(torch.ops.nonloc, name).default


def _filled(like: Tensor, results: Tensors) -> tuple[Tensor, ...]:
    """Absent results as empty tensors."""
    return tuple(like.new_empty(0) if one is None else one.contiguous() for one in results)


def _separate(results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each with a storage of its own, as an operator's results must be."""
    return tuple(one if one.untyped_storage().nbytes() == one.nbytes else one.clone() for one in results)


def _or_none(x: Tensor) -> Tensor | None:
    return None if x.numel() == 0 else x


def check_first_derivative() -> None:
    # `once_differentiable` would silently drop this term from a second derivative that has others.
    if torch.is_grad_enabled():
        raise ValueError(
            'backends "fused", "stored" and "attention" have no second derivative, which create_graph=True asks for; '
            'use backend="reference"'
        )


def _fake_fused(
    query: Tensor, key: Tensor, bias: Any, x: Tensor, w_z: Tensor, w_g: Any, s: Settings
) -> Tensors:
    blocks, _, hidden = w_z.shape
    g, r = (query.new_empty(blocks, *query.shape[:2], hidden) for _ in range(2))
    lse = query.new_empty(2, *query.shape[:2], dtype=torch.float32)
    mean = torch.empty_like(key) if s.has_gradient else None
    return torch.empty_like(x), g, r, lse, mean, x.new_empty(blocks - 1, *x.shape)


def _fake_embedded(x: Tensor, theta: Tensor, phi: Any, w_z: Tensor, w_g: Any, s: Settings) -> Tensors:
    query, key = (x.new_empty(*x.shape[:2], theta.shape[0], dtype=s.dtype) for _ in range(2))
    return *_fake_fused(query, key, None, x, w_z, w_g, s), query, key


def _fake_product(query: Tensor, key: Tensor, bias: Any, g: Tensor, s: Settings) -> Tensors:
    lse = query.new_empty(2, *query.shape[:2], dtype=torch.float32)
    return torch.empty_like(g, dtype=torch.float32), lse, torch.empty_like(key) if s.has_gradient else None


def _fake_stored(
    query: Tensor, key: Any, bias: Any, x: Tensor, w_z: Tensor, w_g: Any, s: Settings
) -> Tensors:
    blocks, _, hidden = w_z.shape
    g, r = (query.new_empty(*query.shape[:2], blocks, hidden) for _ in range(2))
    return torch.empty_like(x), _fake_kernel(query), g, r, x.new_empty(blocks - 1, *x.shape)


def _fake_stored_product(query: Tensor, key: Any, bias: Any, g: Tensor, s: Settings) -> Tensors:
    return torch.empty_like(g, dtype=torch.float32), _fake_kernel(query)


def _fake_kernel(query: Tensor) -> Tensor | None:
    kernel = stored.new_kernel(query)
    return kernel if kernel.shape[0] == query.shape[0] else None


fused_stage = Computation(
    "fused_stage", "query key bias x w_z w_g", "g r lse mean between",
    passes.stage_forward, passes.stage_backward, _fake_fused,
)  # fmt: skip
embedded_stage = Computation(
    "embedded_stage", "x theta phi w_z w_g", "g r lse mean between query key",
    passes.embedded_forward, passes.embedded_backward, _fake_embedded,
)  # fmt: skip
stored_stage = Computation(
    "stored_stage", "query key bias x w_z w_g", "kernel g r between",
    stored.stage_forward, stored.stage_backward, _fake_stored,
)  # fmt: skip
fused_product = Computation(
    "fused_product", "query key bias g", "lse mean",
    passes.product_forward, passes.product_backward, _fake_product, needs_result=True,
)  # fmt: skip
stored_product = Computation(
    "stored_product", "query key bias g", "kernel",
    stored.product_forward, stored.product_backward, _fake_stored_product,
)  # fmt: skip
