"""A whole stage in a few launches: gaussian and heat kernels with row normalisation, in Triton.

A stage allows more than attention libraries can use:

- K is the same in every sub-block, so its row sums are computed once, in the first one;
- the update z + (K g − g) W_Zᵀ and the next g = z W_gᵀ are in the launch that computes K g;
- backward, a sub-block needs only Kᵀ dR. The gradient of the affinity is one pass for all sub-blocks, because
  Σ_n dR_n G_nᵀ is one product with inner dimension N·r, and δ_i = Σ_n dR_n,i · (K G_n)_i comes from stored numbers.

Rounding in δ would give the rows of the logits' gradient K (dK − δ) a sum, which must be 0. That error is as large as
the keys, and larger than the gradient where rows of K are nearly one number (`docs/performance.md`). The pass over the
rows removes it.

Half precision uses tensor cores with float32 logits, sums and accumulators; between sub-blocks the state has the
input's dtype. float32 is three tf32 products, as exact as float32, unless torch's setting allows tf32. M × M is never
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nonloc._torch_compat import is_forward_mode, is_transformed, without_compiling
from nonloc.ops.affinity import Affinity, valid_positions
from nonloc.ops.arithmetic import LOG_ZERO
from nonloc.ops.fused.launch import Adjoint, Before, Launcher, Settings, Tile, is_interpreted, is_launching
from nonloc.ops.normalize import Operator
from nonloc.ops.sparse import SparseAffinity

SMALLEST = 16  # what a tensor core can multiply
SLOTS = 32  # partial sums of the weights' gradients, so that programs seldom add to the same place
WIDEST_FEATURES = 128  # d of the features and r of the hidden channels
WIDEST_STATE = 512  # C
LARGEST_BATCH = 65_535  # what a launch takes in its second direction

# By measurement on an H200, for d and r up to 32 in half precision: 128 positions and 128 registers let four programs
# share a multiprocessor, and then one wave more or less decides.
NARROW = {
    "begin": Tile(256, 0, 4, 1),
    "first": Tile(128, 64, 4, 3, 128),
    "first_mean": Tile(64, 64, 4, 3),
    "next": Tile(128, 64, 4, 3, 128),
    "turn": Tile(64, 0, 4, 1),
    "adjoint": Tile(128, 64, 4, 3, 128),
    "key": Tile(128, 64, 8, 2, 128),
    "finish": Tile(128, 0, 4, 1),
    "query": Tile(128, 64, 8, 3),
}
# One sub-block has less to hold in the gradient of its affinity.
SINGLE = NARROW | {"key": Tile(128, 64, 4, 3), "query": Tile(64, 64, 4, 3, 128)}
# More than four keep two programs of "query" on a multiprocessor only with one step less in flight.
DEEP = NARROW | {"query": Tile(128, 64, 8, 2, 128)}
# Wider features, and float32, need more shared memory and registers for each position.
WIDE = {
    "begin": Tile(64, 0, 4, 1),
    "first": Tile(64, 64, 4, 2),
    "first_mean": Tile(64, 64, 4, 2),
    "next": Tile(64, 64, 4, 2),
    "turn": Tile(64, 0, 4, 1),
    "adjoint": Tile(64, 64, 4, 2),
    "key": Tile(64, 32, 4, 2),
    "finish": Tile(64, 0, 4, 1),
    "query": Tile(64, 32, 4, 2),
}
EXACT = {name: Tile(32, 0 if tile.step == 0 else 32, 4, 1) for name, tile in WIDE.items()}


def prepare(affinity: Affinity, dtype: torch.dtype) -> Operator:
    """K prepared; products are in the features' dtype with float32 sums."""
    check(affinity)
    sums = valid_positions(affinity).unsqueeze(-1).to(dtype)
    return Operator(lambda z: sums * _product(affinity, z).to(dtype), sums)


def propagate(
    affinity: Affinity, z: Tensor, pairs: Sequence[tuple[Tensor, Tensor | None]], differences: bool = True
) -> Tensor:
    """A whole stage; masked features are zeros already, masked positions come back as they are."""
    w_z = torch.stack([outer for outer, _ in pairs]).to(z.dtype)
    inners = [inner for _, inner in pairs if inner is not None]
    if inners:
        w_g = torch.stack(inners).to(z.dtype)
    else:
        w_g = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device).expand(len(pairs), -1, -1)
    keep = None if affinity.mask is None else affinity.mask.unsqueeze(-1)
    state = z if keep is None else torch.where(keep, z, 0)
    result = stage(affinity, state, w_z, w_g, differences)
    return result if keep is None else torch.where(keep, result, z)


def takes_stage(affinity: Affinity, z: Tensor, pairs: Sequence[tuple[Tensor, Tensor | None]]) -> bool:
    """Return whether the state and all weights fit into one launch."""
    ranks = {(outer.shape[-1], inner is None) for outer, inner in pairs}
    if lacks(affinity, z) is not None or len(ranks) != 1 or z.shape[-1] > WIDEST_STATE:
        return False
    return next(iter(ranks))[0] <= WIDEST_FEATURES


def check(affinity: Affinity | SparseAffinity, z: Tensor | None = None) -> None:
    """ValueError, with the reason, where the fused kernels do not apply."""
    lacking = lacks(affinity, z)
    if lacking is not None:
        raise ValueError(f'backend="fused" needs {lacking}; use backend="auto"')


def pays(affinity: Affinity, z: Tensor | None = None) -> bool:
    """Return whether "auto" takes this backend: on a GPU, in half precision, and not in a traced program.

    Hand-written kernels would break a traced program in two.
    """
    is_half = affinity.left.dtype in (torch.float16, torch.bfloat16)
    if not is_half or not affinity.left.is_cuda or torch.compiler.is_compiling():
        return False
    return lacks(affinity, z) is None


def lacks(affinity: Affinity | SparseAffinity, z: Tensor | None = None) -> str | None:
    """What the fused kernels need and the arguments do not have, in words; None where they apply."""
    if isinstance(affinity, SparseAffinity):
        return "an Affinity, not a SparseAffinity"
    if is_transformed() or is_forward_mode():
        return "tensors of their own, not those of torch.func (vmap, grad, jvp) or of forward mode"
    if affinity.kind not in ("gaussian", "heat") or affinity.normalize != "row":
        return f'kind "gaussian" or "heat" with normalize="row", not {affinity.kind!r} with {affinity.normalize!r}'
    if affinity.measure is not None:
        return "an affinity without a measure"
    if not affinity.is_square:
        return f"as many givers as receivers, not {affinity.right.shape[1]} and {affinity.positions}"
    if affinity.batch > LARGEST_BATCH:
        return f"a batch of at most {LARGEST_BATCH:,}, not {affinity.batch:,}"
    if affinity.left.shape[-1] > WIDEST_FEATURES:
        return f"features of d ≤ {WIDEST_FEATURES}, not {affinity.left.shape[-1]}"
    tensors = [affinity.left, affinity.right, *([] if z is None else [z])]
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float16, torch.bfloat16}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"features and z in one dtype of float32, float16 and bfloat16, not {names}"
    if is_launching() and not is_available(affinity.left.device):
        return f"a CUDA device of compute capability 8 or more, and Triton, not {affinity.left.device}"
    return None


@cache
def is_available(device: torch.device) -> bool:
    if find_spec("triton") is None:
        return False
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and is_interpreted()


def _product(affinity: Affinity, z: Tensor) -> Tensor:
    """K z [B, M, C] in float32, for any C."""
    query, key, bias = _logits(affinity)
    width = min(z.shape[-1], WIDEST_FEATURES)
    settings = _settings(affinity, width, 1, False)
    run = _run_untraced if torch.compiler.is_compiling() else _run
    pieces = [
        run(Product, query, key, bias, _widened(piece.to(query.dtype)), settings)[..., : piece.shape[-1]]
        for piece in z.split(width, -1)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def stage(affinity: Affinity, z: Tensor, w_z: Tensor, w_g: Tensor, differences: bool = True) -> Tensor:
    """z ← z + (K − 1) z W_gᵀ W_Zᵀ for each W_Z of [N, C, r] and W_g of [N, r, C] in turn, all in z's dtype.

    differences  False: K in the place of K − 1
    """
    query, key, bias = _logits(affinity)
    settings = _settings(affinity, w_z.shape[-1], len(w_z), differences)
    w_z, w_g = _widened(w_z, rows=True), _widened(w_g, rows=True)
    run = _run_untraced if torch.compiler.is_compiling() else _run
    return run(Stage, query, key, bias, _widened(z), w_z, w_g, settings)[..., : z.shape[-1]]


def _run(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    return function.apply(*args)


# For traced programs only: torch.compile calls it without looking inside.
_run_untraced = without_compiling(_run)


def _logits(affinity: Affinity) -> tuple[Tensor, Tensor, Tensor | None]:
    """q, k and b with Ω_ij ∝ exp(scale · q_i·k_j + b_j): a row's own factor cancels in its sum."""
    left, right, bias = affinity.left, affinity.right, None
    if affinity.kind == "heat":
        left, right = _centred(affinity)
        bias = -affinity.scale * right.float().square().sum(-1)
    if affinity.mask is not None:
        bias = torch.where(affinity.mask, 0.0 if bias is None else bias, LOG_ZERO)
    return _widened(left), _widened(right), bias


def _centred(affinity: Affinity) -> tuple[Tensor, Tensor]:
    """Features around zero, so that |l − r|² is not the difference of large numbers; it does not see a shift.

    In half precision only where the shift rounds nothing, which is where it is needed: numbers within a factor of two
    of each other have an exact difference.
    """
    left, right = affinity.left, affinity.right
    with torch.no_grad():
        valid = valid_positions(affinity).unsqueeze(-1)
        total = torch.where(valid, right, 0).sum(1, keepdim=True, dtype=torch.float32)
        centre = (total / valid.sum(1, keepdim=True).clamp(min=1)).to(right.dtype)
        if right.dtype != torch.float32:
            low, high = centre.abs() / 2, centre.abs() * 2
            is_exact = torch.ones_like(centre, dtype=torch.bool)
            for x in (left, right):
                size = x * centre.sign()
                within = ((size >= low) & (size <= high)) | ~valid
                is_exact &= within.all(1, keepdim=True)
            centre = torch.where(is_exact, centre, 0)
    return left - centre, right - centre


def _settings(affinity: Affinity, hidden: int, blocks: int, differs: bool) -> Settings:
    scale = affinity.scale * (2 if affinity.kind == "heat" else 1)
    tiles = WIDE
    if max(affinity.left.shape[-1], hidden) <= 32:
        tiles = SINGLE if blocks == 1 else NARROW if blocks <= 4 else DEEP
    if affinity.left.dtype == torch.float32 or is_interpreted():
        tiles = EXACT
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    return Settings(scale, differs, tiles, is_deterministic, torch.is_grad_enabled())


def _widened(x: Tensor, rows: bool = False) -> Tensor:
    """Zeros on the right, and below if `rows`, up to a power of two."""
    extra = [0, padded_width(x.shape[-1]) - x.shape[-1]]
    if rows:
        extra += [0, padded_width(x.shape[-2]) - x.shape[-2]]
    return (pad(x, extra) if any(extra) else x).contiguous()


def padded_width(width: int) -> int:
    return max(SMALLEST, 1 << (width - 1).bit_length())


class Stage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        x: Tensor,
        w_z: Tensor,
        w_g: Tensor,
        s: Settings,
    ) -> Tensor:
        blocks, channels, hidden = w_z.shape
        batch, positions, _ = query.shape
        keeps = s.records and any(ctx.needs_input_grad)
        kernels = Launcher(query, key, bias, hidden, channels, s)
        rooms = blocks if keeps else min(blocks, 2)
        # Separate tensors: the caller gets the last one, which must not share storage with the others.
        states = [torch.empty_like(x) for _ in range(rooms)]
        g = x.new_empty(rooms, batch, positions, hidden)
        r = x.new_empty(blocks, batch, positions, hidden) if keeps else None
        lse = _empty_sums(query)
        mean = _empty_mean(ctx, key, s)
        norms = kernels.make_norms()
        kernels.begin(x, w_g[0], g[0], norms)
        state = x
        for n in range(blocks):
            is_last = n + 1 == blocks
            kernels.forward(
                lse, norms, n == 0, mean if n == 0 else None, g[n % rooms], None if r is None else r[n],
                state, w_z[n], None if is_last else w_g[n + 1],
                states[n % rooms], None if is_last else g[(n + 1) % rooms],
            )  # fmt: skip
            state = states[n % rooms]
        if keeps:
            ctx.save_for_backward(query, key, bias, w_z, w_g, g, r, lse, mean, x, *states[:-1])
            ctx.settings = s
        return state

    @staticmethod
    def backward(ctx: Any, d_state: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        query, key, bias, w_z, w_g, g, r, lse, mean, *states = ctx.saved_tensors
        blocks, channels, hidden = w_z.shape
        s: Settings = ctx.settings
        kernels = Launcher(query, key, bias, hidden, channels, s)
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
        return dq, dk, db, after, d_wz.to(w_z.dtype), d_wg.to(w_g.dtype), None


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, bias: Tensor | None, g: Tensor, s: Settings) -> Tensor:
        kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, s)
        result = torch.empty_like(g, dtype=torch.float32)
        lse = _empty_sums(query)
        mean = _empty_mean(ctx, key, s)
        norms = kernels.make_norms()
        if norms is not None:
            kernels.begin(None, None, None, norms)
        kernels.forward(lse, norms, True, mean, g, result)
        ctx.save_for_backward(query, key, bias, g, result, lse, mean)
        ctx.settings = s
        return result

    @staticmethod
    def backward(ctx: Any, d_result: Tensor) -> tuple[Tensor | None, ...]:
        _check_first_derivative()
        query, key, bias, g, result, lse, mean = ctx.saved_tensors
        kernels = Launcher(query, key, bias, g.shape[-1], SMALLEST, ctx.settings)
        delta = torch.empty_like(lse[0])
        dr, dg = torch.empty_like(g), torch.empty_like(g)
        kernels.turn(lse, d_result.contiguous(), dr, delta, result)
        dq, dk, db = _first(kernels, lse, mean, delta, dr[None], g[None], Adjoint(dr, dg=dg))
        return dq, dk, db, dg, None


def _empty_sums(query: Tensor) -> Tensor:
    """An empty tensor for LSE and RATIO [2, B, M]."""
    return torch.empty(2, *query.shape[:2], device=query.device, dtype=torch.float32)


def _empty_mean(ctx: Any, key: Tensor, s: Settings) -> Tensor | None:
    """An empty tensor for K k, which the affinity's gradient needs; None where that gradient is not needed."""
    return torch.empty_like(key) if s.records and any(ctx.needs_input_grad[:3]) else None


def _first(
    kernels: Launcher, lse: Tensor, mean: Tensor | None, delta: Tensor, dr: Tensor, g: Tensor, step: Adjoint
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first sub-block backward, with the affinity's gradient dq, dk, db where it is needed."""
    if mean is not None:
        return kernels.affinity_gradient(lse, mean, delta, dr, g, step)
    kernels.adjoint(lse, step)
    return None, None, None


def _check_first_derivative() -> None:
    # `once_differentiable` would silently drop this term from a second derivative that has others.
    if torch.is_grad_enabled():
        raise ValueError(
            'backend="fused" has no second derivative, which create_graph=True asks for; use backend="reference"'
        )


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """Σ over samples and positions of a bᵀ, in float32."""
    with torch.autocast(a.device.type, enabled=False):
        return torch.einsum("bmi,bmj->ij", a.float(), b.float())
