"""Forward and backward of a fused stage, and of one product: for torch.autograd, and as operators that a traced program
calls without looking inside.

What backward needs is kept only where a gradient is asked for. Absent results are empty tensors in the operators, whose
number of results is fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nonloc.ops.fused.launch import Adjoint, Before, Launcher, Settings

SMALLEST = 16  # what a tensor core can multiply
SLOTS = 32  # partial sums of the weights' gradients, so that programs seldom add to the same place


def run_stage(
    query: Tensor, key: Tensor, bias: Tensor | None, x: Tensor, w_z: Tensor, w_g: Tensor, s: Settings
) -> Tensor:
    """The state after all sub-blocks [B, M, C], with its first derivative."""
    keeps, has_gradient = _wants(query, key, bias, x, w_z, w_g)
    if torch.compiler.is_compiling():
        return stage_operator(query, key, bias, x, w_z, w_g, *s, keeps, has_gradient)[0]
    return _Stage.apply(query, key, bias, x, w_z, w_g, s, keeps, has_gradient)


def run_product(query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings) -> Tensor:
    """K g [B, M, r] in float32, with its first derivative."""
    _, has_gradient = _wants(query, key, bias, g)
    if torch.compiler.is_compiling():
        return product_operator(query, key, bias, g, *s, has_gradient)[0]
    return _Product.apply(query, key, bias, g, s, has_gradient)


def _wants(query: Tensor, key: Tensor, bias: Tensor | None, *others: Tensor) -> tuple[bool, bool]:
    """Whether any gradient is asked for, and whether that of the affinity is."""
    if not torch.is_grad_enabled():
        return False, False
    of_affinity = any(t is not None and t.requires_grad for t in (query, key, bias))
    return of_affinity or any(t.requires_grad for t in others), of_affinity


def stage_forward(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    s: Settings,
    keeps: bool,
    has_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None, Tensor]:
    """Return the last state, and G, R, LSE and RATIO, K k and the states between, which backward needs."""
    blocks, channels, hidden = w_z.shape
    batch, positions, _ = query.shape
    kernels = Launcher(query, key, bias, hidden, channels, blocks, s)
    rooms = blocks if keeps else min(blocks, 2)
    # The caller gets the last state, which must not share storage with the others.
    last = torch.empty_like(x)
    between = x.new_empty(blocks - 1 if keeps else min(blocks - 1, 1), *x.shape)
    g = x.new_empty(rooms, batch, positions, hidden)
    r = x.new_empty(blocks, batch, positions, hidden) if keeps else None
    lse = torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)
    mean = torch.empty_like(key) if has_gradient else None
    norms = kernels.make_norms()
    kernels.begin(x, w_g[0], g[0], norms)
    state = x
    for n in range(blocks):
        left = blocks - 1 - n
        # Without a gradient two states take turns, the last of them at the end.
        target = last if left == 0 or (not keeps and left % 2 == 0) else between[n if keeps else 0]
        kernels.forward(
            lse, norms, n == 0, mean if n == 0 else None, g[n % rooms], None if r is None else r[n],
            state, w_z[n], None if left == 0 else w_g[n + 1],
            target, None if left == 0 else g[(n + 1) % rooms],
        )  # fmt: skip
        state = target
    return state, g, r, lse, mean, between


def stage_backward(
    d_state: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w_z: Tensor,
    w_g: Tensor,
    g: Tensor,
    r: Tensor,
    lse: Tensor,
    mean: Tensor | None,
    between: Tensor,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, b, where `mean` was kept, and of x, W_Z and W_g."""
    blocks, channels, hidden = w_z.shape
    states = [x, *between]
    kernels = Launcher(query, key, bias, hidden, channels, blocks, s)
    d_state = d_state.contiguous()
    dr = torch.empty_like(g)
    delta = torch.empty_like(lse[0])
    rooms = blocks if s.deterministic else min(blocks, 2)
    dz = [torch.empty_like(d_state) for _ in range(rooms)]
    dg = torch.empty_like(g) if s.deterministic else None
    dw = None if s.deterministic else g.new_zeros(blocks, SLOTS, 2, channels, hidden, dtype=torch.float32)
    kernels.turn(lse, d_state, dr[-1], delta, r[-1], g=g[-1], w_z=w_z[-1])
    after, afters = d_state, [d_state] * blocks
    for n in reversed(range(blocks)):
        afters[n] = after
        step = Adjoint(
            dr[n], r[n], after, w_g[n], dz[n % rooms],
            None if dg is None else dg[n], states[n], None if dw is None else dw[n],
        )  # fmt: skip
        if n > 0:
            kernels.adjoint(lse, step, Before(w_z[n - 1], r[n - 1], g[n - 1], dr[n - 1], delta))
        after = dz[n % rooms]
    dq, dk, db = _first(kernels, lse, mean, delta, dr, g, step)
    if dw is not None:
        sums = dw.sum(1)
        d_wg, d_wz = sums[:, 0].mT, sums[:, 1]
    else:
        assert dg is not None
        d_wg = torch.stack([_outer(dg[n], states[n]) for n in range(blocks)])
        d_wz = torch.stack([_outer(afters[n], r[n]) for n in range(blocks)])
    return dq, dk, db, after, d_wz.to(w_z.dtype), d_wg.to(w_g.dtype)


def product_forward(
    query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings, has_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return K g, and LSE and RATIO and K k, which backward needs."""
    kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, 1, s)
    result = torch.empty_like(g, dtype=torch.float32)
    lse = torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)
    mean = torch.empty_like(key) if has_gradient else None
    norms = kernels.make_norms()
    if norms is not None:
        kernels.begin(None, None, None, norms)
    kernels.forward(lse, norms, True, mean, g, result)
    return result, lse, mean


def product_backward(
    d_result: Tensor,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    g: Tensor,
    result: Tensor,
    lse: Tensor,
    mean: Tensor | None,
    s: Settings,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Return the gradients of q, k, b, where `mean` was kept, and of g."""
    kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, 1, s)
    delta = torch.empty_like(lse[0])
    dr, dg = torch.empty_like(g), torch.empty_like(g)
    kernels.turn(lse, d_result.contiguous(), dr, delta, result)
    return *_first(kernels, lse, mean, delta, dr[None], g[None], Adjoint(dr, dg=dg)), dg


def _first(
    kernels: Launcher, lse: Tensor, mean: Tensor | None, delta: Tensor, dr: Tensor, g: Tensor, step: Adjoint
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first sub-block backward, with the affinity's gradient dq, dk, db where it is needed."""
    if mean is not None:
        return kernels.affinity_gradient(lse, mean, delta, dr, g, step)
    kernels.adjoint(lse, step)
    return None, None, None


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Σ over samples and positions of a bᵀ, in float32."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.einsum("bmi,bmj->ij", a.float(), b.float())


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, settings, keeps, _ = args
        state, *kept = stage_forward(*args)
        if keeps:
            ctx.save_for_backward(*tensors, *kept)
            ctx.settings = settings
        return state

    @staticmethod
    def backward(ctx: Any, d_state: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        return *stage_backward(*(d_state, *ctx.saved_tensors, ctx.settings)), None, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, settings, _ = args
        result, *kept = product_forward(*args)
        ctx.save_for_backward(*tensors, result, *kept)
        ctx.settings = settings
        return result

    @staticmethod
    def backward(ctx: Any, d_result: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        return *product_backward(*(d_result, *ctx.saved_tensors, ctx.settings)), None, None


def _check_first_derivative() -> None:
    # `once_differentiable` would silently drop this term from a second derivative that has others.
    if torch.is_grad_enabled():
        raise ValueError(
            'backend="fused" has no second derivative, which create_graph=True asks for; use backend="reference"'
        )


_SETTINGS = "float scale, bool differs, bool deterministic"
_AFFINITY = "Tensor query, Tensor key, Tensor? bias"


def _filled(like: Tensor, results: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Absent results as empty tensors; the others without shared storage, as an operator's results must be."""
    return tuple(like.new_empty(0) if one is None else one.contiguous() for one in results)


def _or_none(x: Tensor) -> Tensor | None:
    return None if x.numel() == 0 else x


@torch.library.custom_op(
    "nonloc::fused_stage",
    mutates_args=(),
    schema=f"({_AFFINITY}, Tensor x, Tensor w_z, Tensor w_g, {_SETTINGS}, bool keeps, bool has_gradient)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def stage_operator(*args: Any) -> tuple[Tensor, ...]:
    """`stage_forward`, with nothing kept where nothing is asked for."""
    state, *kept = stage_forward(*(*args[:6], Settings(*args[6:9]), *args[9:]))
    keeps = args[9]
    return _filled(state, (state, *(kept if keeps else [None] * len(kept))))


@stage_operator.register_fake
def _(query: Tensor, key: Tensor, bias: Tensor | None, x: Tensor, w_z: Tensor, *rest: Any) -> Any:
    keeps, has_gradient = rest[-2:]
    blocks, _, hidden = w_z.shape
    batch, positions, _ = query.shape
    state = torch.empty_like(x)
    if not keeps:
        return state, *(x.new_empty(0) for _ in range(5))
    g, r = (x.new_empty(blocks, batch, positions, hidden) for _ in range(2))
    lse = query.new_empty(2, batch, positions, dtype=torch.float32)
    mean = torch.empty_like(key) if has_gradient else x.new_empty(0)
    return state, g, r, lse, mean, x.new_empty(blocks - 1, *x.shape)


@torch.library.custom_op(
    "nonloc::fused_stage_backward",
    mutates_args=(),
    schema=f"(Tensor d_state, {_AFFINITY}, Tensor x, Tensor w_z, Tensor w_g, Tensor g, Tensor r, Tensor lse, "
    f"Tensor mean, Tensor between, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _stage_backward_operator(*args: Any) -> tuple[Tensor, ...]:
    *tensors, mean, between = args[:12]
    results = stage_backward(*(*tensors, _or_none(mean), between, Settings(*args[12:])))
    return _filled(args[0], results)


@_stage_backward_operator.register_fake
def _(d_state: Tensor, query: Tensor, key: Tensor, bias: Tensor | None, x: Tensor, w_z: Tensor, w_g: Tensor,
      g: Tensor, r: Tensor, lse: Tensor, mean: Tensor, *rest: Any) -> Any:  # fmt: skip
    of_affinity = _fake_gradients(query, key, bias, lse, mean)
    weights = (w.new_empty(w.shape) for w in (w_z, w_g))
    return *of_affinity, torch.empty_like(d_state, memory_format=torch.contiguous_format), *weights


@torch.library.custom_op(
    "nonloc::fused_product",
    mutates_args=(),
    schema=f"({_AFFINITY}, Tensor g, {_SETTINGS}, bool has_gradient) -> (Tensor, Tensor, Tensor)",
)
def product_operator(*args: Any) -> tuple[Tensor, ...]:
    """`product_forward`."""
    return _filled(args[0], product_forward(*(*args[:4], Settings(*args[4:7]), args[7])))


@product_operator.register_fake
def _(query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, *rest: Any) -> Any:
    lse = query.new_empty(2, *query.shape[:2], dtype=torch.float32)
    return (
        torch.empty_like(g, dtype=torch.float32),
        lse,
        torch.empty_like(key) if rest[-1] else query.new_empty(0),
    )


@torch.library.custom_op(
    "nonloc::fused_product_backward",
    mutates_args=(),
    schema=f"(Tensor d_result, {_AFFINITY}, Tensor g, Tensor result, Tensor lse, Tensor mean, {_SETTINGS})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def _product_backward_operator(*args: Any) -> tuple[Tensor, ...]:
    results = product_backward(*(*args[:7], _or_none(args[7]), Settings(*args[8:])))
    return _filled(args[1], results)


@_product_backward_operator.register_fake
def _(d_result: Tensor, query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, result: Tensor, lse: Tensor,
      mean: Tensor, *rest: Any) -> Any:  # fmt: skip
    return *_fake_gradients(query, key, bias, lse, mean), torch.empty_like(g)


def _fake_gradients(
    query: Tensor, key: Tensor, bias: Tensor | None, lse: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and db as shapes; empty where they are not needed."""
    if mean.numel() == 0:
        none = (query.new_empty(0) for _ in range(3))
        return next(none), next(none), next(none)
    return (
        torch.empty_like(query),
        torch.empty_like(key),
        query.new_empty(0) if bias is None else torch.empty_like(lse[0]),
    )


def _keep(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    tensors = [one for one in inputs if one is None or isinstance(one, Tensor)]
    ctx.save_for_backward(*tensors, *output)
    ctx.settings, ctx.given = inputs[len(tensors) : len(tensors) + 3], len(inputs)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """One for each argument of the operator, None where there is none."""
    found = [_or_none(one) for one in gradients]
    return *found, *[None] * (ctx.given - len(found))


def _stage_gradients(ctx: Any, d_state: Tensor, *_: Any) -> Any:
    query, key, bias, x, w_z, w_g, _, *kept = ctx.saved_tensors
    return _gradients(
        ctx,
        _stage_backward_operator(d_state, query, key, bias, x, w_z, w_g, *kept, *ctx.settings),
    )


def _product_gradients(ctx: Any, d_result: Tensor, *_: Any) -> Any:
    return _gradients(ctx, _product_backward_operator(d_result, *ctx.saved_tensors, *ctx.settings))


stage_operator.register_autograd(_stage_gradients, setup_context=_keep)
product_operator.register_autograd(_product_gradients, setup_context=_keep)
