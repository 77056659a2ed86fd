"""The exponential kernels, gaussian and heat, in memory linear in M.

Everything is one logit matrix S_ij = q_i·k_j + b_j that is never stored. Heat's −scale |l − r|² is 2 scale l·r plus a
column term and a row term; the logarithm of a position's weight is a column term, too. Column terms b are appended to k
as one more coordinate. The CPU's attention silently takes M² memory for a bias argument, for values of another width
than q, and for a stride above 1 in the last dimension: all three are avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from nonloc._torch_compat import is_exporting, is_fake, is_forward_mode, is_transformed
from nonloc.ops.affinity import Affinity, centred, position_weights, valid_positions, without_masked
from nonloc.ops.arithmetic import LOG_ZERO, inverse_or_zero, zero_or_nan
from nonloc.ops.derivatives import differentiable_as
from nonloc.ops.normalize import Operator
from nonloc.ops.row_blocks import Exponential, ExponentialBetween, Softmax, by_blocks, log_sums, logit_blocks
from nonloc.ops.sinkhorn import LogApply, Matvec, Scaling, solve_scaling

if TYPE_CHECKING:
    from nonloc.ops.sparse import SparseAffinity

WIDEST_ATTENTION = 256
# Attention's backward makes K from a rounded log-sum-exp; rows of K may then miss 1 by this much.
LARGEST_MISS = 2**-10


def prepare(affinity: Affinity, dtype: torch.dtype) -> Operator:
    """K through attention for "row", where attention is exact and has linear memory; by blocks of rows elsewhere."""
    weights = position_weights(affinity, dtype)
    if affinity.normalize == "row":
        query, key, _, column = logit_factors(affinity, dtype)
        sums = _receivers(affinity, weights).to(dtype)
        # Attention takes a row of NaN for a row without givers and answers 0.
        sums = sums + zero_or_nan(query, -1) + zero_or_nan(key, -1).sum(1, keepdim=True)
        is_weighted = affinity.mask is not None or affinity.measure is not None
        if is_weighted or affinity.kind == "heat":
            logged = column + log_weights(weights) if is_weighted else column
            return Operator(lambda z: sums * _softmax(query, key, logged, z), sums)
        if _half_serves(affinity, dtype):
            query, key = affinity.scale * affinity.left, affinity.right
        return Operator(lambda z: sums * _softmax(query, key, None, z.to(query.dtype)), sums)
    if affinity.normalize in ("none", "count"):
        share = 1.0 if affinity.normalize == "none" else inverse_or_zero(weights.sum(-1)).view(-1, 1, 1)
        factor = share if affinity.mask is None else share * affinity.mask.unsqueeze(-1)
        givers = weights.unsqueeze(-1)
        kernel = apply_by_blocks(*logit_factors(affinity, dtype))
    else:
        factor = _receivers(affinity, weights)
        # Where no giver has weight, LOG_ZERO is on both sides of the quotient and would cancel.
        givers = (weights != 0).unsqueeze(-1).to(dtype)
        kernel = apply_by_blocks(*log_sides(affinity, dtype))
    return Operator(
        lambda z: factor * kernel(givers * z), factor * kernel(givers.expand(affinity.batch, -1, -1))
    )


def _receivers(affinity: Affinity, weights: Tensor) -> Tensor:
    """[B, M, 1] bool: valid positions, where some giver has weight."""
    return (valid_positions(affinity) & (weights.sum(-1, keepdim=True) != 0)).unsqueeze(-1)


def logit_factors(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q [B, M, d], k [B, M', d], row a [B, M], column b [B, M'] with log Ω_ij = q_i·k_j + a_i + b_j."""
    if affinity.kind == "gaussian":
        left, right = affinity.left.to(dtype), affinity.right.to(dtype)
        return affinity.scale * left, right, torch.zeros_like(left[..., 0]), torch.zeros_like(right[..., 0])
    left, right = centred(affinity, dtype)
    row = -affinity.scale * left.square().sum(-1)
    column = -affinity.scale * right.square().sum(-1)
    return 2 * affinity.scale * left, right, row, column


def log_sides(affinity: Affinity, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, a [B, M], b [B, M'] with K_ij = exp(q_i·k_j + a_i + b_j): normalize.py's table in logarithms.

    Rows without a giver of weight, and masked rows, are left to the caller: their logarithms mean nothing.
    """
    weights = position_weights(affinity, dtype)
    query, key, row, column = logit_factors(affinity, dtype)
    logged = column + log_weights(weights)
    if affinity.normalize == "none":
        return query, key, row, logged
    if affinity.normalize == "count":
        return query, key, row + inverse_or_zero(weights.sum(-1, keepdim=True)).log(), logged
    if affinity.normalize == "row":
        return query, key, -log_sums(query, key, logged), logged
    if affinity.normalize == "symmetric":
        half = -0.5 * (row + log_sums(query, key, logged))
    else:
        valid, steps = valid_positions(affinity), affinity.sinkhorn_steps
        half = sinkhorn_scaling(query, key, row, logged, column, weights, valid, steps)
    return query, key, row + half, logged + half


def adjoint(affinity: Affinity, dtype: torch.dtype) -> Matvec:
    """p -> Kᵀ p, with K_ij = exp(q_i·k_j + a_i + b_j) read by columns."""
    weights = position_weights(affinity, dtype)
    query, key, a, b = log_sides(affinity, dtype)
    receives = _receivers(affinity, weights)
    gives = (weights != 0).unsqueeze(-1)
    apply = apply_by_blocks(key, query, b, torch.where(receives.squeeze(-1), a, LOG_ZERO))
    return lambda p: gives * apply(receives * p)


def log_weights(weights: Tensor) -> Tensor:
    """log of weights ≥ 0, and LOG_ZERO where the weight is 0."""
    positive = weights > 0
    return torch.where(positive, torch.where(positive, weights, 1).log(), LOG_ZERO)


def _softmax(query: Tensor, key: Tensor, column: Tensor | None, z: Tensor) -> Tensor:
    """Σ_j softmax_j(q_i·k_j + b_j) z_j [B, M, C]."""
    inputs = (query, key, z) if column is None else (query, key, z, column)
    if not _attention_serves(query, z, column) or _logits_are_too_large(query, key, column):
        return _softmax_by_blocks(*inputs)
    # A program has no second derivative, and the code for one cannot be traced.
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_exporting():
        return _attention(*inputs)
    return differentiable_as(_softmax_by_blocks, _attention, *inputs)


def _softmax_by_blocks(query: Tensor, key: Tensor, z: Tensor, column: Tensor | None = None) -> Tensor:
    # Half precision only comes here where attention would have served, with logits and sums in float32.
    dtype = torch.promote_types(query.dtype, torch.float32)
    column = torch.zeros_like(key[..., 0]) if column is None else column
    row = torch.zeros_like(query[..., :1])
    wide = (t.to(dtype) for t in (query, row, key, column, z))
    return by_blocks(Softmax(), *wide).to(z.dtype)


def _attention(query: Tensor, key: Tensor, z: Tensor, column: Tensor | None = None) -> Tensor:
    if column is not None:
        query = torch.cat([query, torch.ones_like(query[..., :1])], -1)
        key = torch.cat([key, column.expand(key.shape[:2]).unsqueeze(-1)], -1)
    width = max(query.shape[-1], z.shape[-1])
    if query.is_cuda:
        width += -width % 8
    out = scaled_dot_product_attention(
        _widened(query, width), _widened(key, width), _widened(z, width), scale=1.0
    )
    return out.squeeze(1)[..., : z.shape[-1]]


def _half_serves(affinity: Affinity, dtype: torch.dtype) -> bool:
    """On the GPU, attention takes half precision as it is: its logits and sums are float32 inside. Its gradients round
    as `fused.kernels.query_kernel` says, which matters where rows of K are nearly one number. A signal in float64 is
    computed in float64."""
    left, right = affinity.left, affinity.right
    is_half = left.dtype == right.dtype and left.dtype in (torch.float16, torch.bfloat16)
    return is_half and left.is_cuda and dtype == torch.float32


def _attention_serves(query: Tensor, z: Tensor, column: Tensor | None) -> bool:
    if is_transformed() or is_forward_mode():
        return False
    if query.is_cuda:
        width = query.shape[-1] + (column is not None)
        return query.dtype != torch.float64 and max(width, z.shape[-1]) <= WIDEST_ATTENTION
    return query.shape[0] > 0


def _logits_are_too_large(query: Tensor, key: Tensor, column: Tensor | None) -> bool:
    """Return whether rows of K could miss 1 in attention's backward by more than LARGEST_MISS, by Cauchy–Schwarz.

    Always False on a GPU, where reading the answer would block, and for tensors without contents.
    """
    has_numbers = query.device.type == "cpu" and not is_fake(query)
    if not has_numbers or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    with torch.no_grad():
        largest = _longest(query) * _longest(key)
        if column is not None:
            largest = largest + torch.where(column > LOG_ZERO / 2, column.abs(), 0).max()
        return bool(largest * torch.finfo(query.dtype).eps > LARGEST_MISS)


def _longest(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1).max()


def _widened(x: Tensor, width: int) -> Tensor:
    """[B, M, c] -> [B, 1, M, width], zeros on the right, contiguous."""
    return (x if x.shape[-1] == width else pad(x, (0, width - x.shape[-1]))).unsqueeze(1).contiguous()


def apply_by_blocks(query: Tensor, key: Tensor, row: Tensor, column: Tensor) -> Callable[[Tensor], Tensor]:
    """z -> Σ_j exp(q_i·k_j + a_i + b_j) z_j."""
    return lambda z: by_blocks(Exponential(), query, row.unsqueeze(-1), key, column, z)


def sinkhorn_scaling(
    query: Tensor,
    key: Tensor,
    row: Tensor,
    logged: Tensor,
    column: Tensor,
    weights: Tensor,
    valid: Tensor,
    steps: int | None = None,
) -> Tensor:
    """x = log u of the Sinkhorn normalisation [B, M], with its derivatives."""

    def log_apply(
        query: Tensor, key: Tensor, row: Tensor, logged: Tensor, column: Tensor, weights: Tensor
    ) -> LogApply:
        return lambda x: row + log_sums(query, key, logged + x)

    def between(
        x: Tensor, query: Tensor, key: Tensor, row: Tensor, logged: Tensor, column: Tensor, weights: Tensor
    ) -> Matvec:
        has_weight = (weights != 0).expand(valid.shape)
        rows = torch.stack([row + x, has_weight.to(x.dtype)], -1)
        block = ExponentialBetween(has_weight)

        def apply(v: Tensor) -> Tensor:
            return by_blocks(block, query, rows, key, column + x, (valid * v).unsqueeze(-1)).squeeze(-1)

        return lambda v: valid * apply(v)

    def mass(*theta: Tensor) -> Tensor:
        return theta[-1] * valid

    scaling = Scaling(log_apply, between, mass, valid, query.dtype, largest=row.detach(), steps=steps)
    return solve_scaling(scaling, query, key, row, logged, column, weights)


@torch.no_grad()
def logit_spread(affinity: Affinity) -> Tensor:
    """max_j − min_j of log Ω_ij for each row [B, M], without gradients, in float32, or float64 for such features.

    Watch it when training diverges. At 0 a row of the kernel is a plain mean; at hundreds it picks single positions.
    Most diverged runs of the trainability map had such rows 50 steps before; most others had not (paper/pages/map.md).
    Logits divided by √d (`scaled=True`) and smaller initial maps make it smaller.

    For kernels with logits, "gaussian" and "heat". Masked givers and givers of weight 0 do not count; a masked row has
    0. Memory is linear in M.

    >>> from nonloc import Affinity, logit_spread
    >>> x = torch.tensor([[[0.0], [1.0], [2.0]]])
    >>> logit_spread(Affinity(x, x, "heat")).tolist()
    [[4.0, 1.0, 4.0]]
    """
    if not isinstance(affinity, Affinity) or not affinity.has_logits:
        got = repr(affinity.kind) if isinstance(affinity, Affinity) else type(affinity).__name__
        raise ValueError(
            f'logit_spread takes an Affinity of kind "gaussian" or "heat", got {got}; the affinities '
            "of a stage are stage.affinities(x), and nonloc.logit_spreads(model, x) serves all stages of a model"
        )
    affinity = without_masked(affinity)
    dtype = torch.promote_types(affinity.left.dtype, torch.float32)
    gives = position_weights(affinity, dtype).unsqueeze(1) > 0
    # What log Ω has for a row alone is no difference within it.
    query, key, _, column = logit_factors(affinity, dtype)
    if affinity.kind == "gaussian":
        # Nor is what all keys have in common, which would only cost digits.
        _, key = centred(affinity, dtype)
    spreads = query.new_zeros(query.shape[:2])
    for some, logits in logit_blocks(query, key, column):
        lowest = torch.where(gives, logits, torch.inf).amin(-1)
        spreads[:, some] = logits.masked_fill_(~gives, -torch.inf).amax(-1) - lowest
    has_any = valid_positions(affinity) & gives.any(-1)
    return torch.where(has_any, spreads, 0)


def kernel_logit_spreads(affinities: Iterable[Affinity | SparseAffinity]) -> list[float]:
    """The largest spread of each kernel that has logits; an affinity that sub-blocks share counts once.

    >>> from nonloc.ops import Affinity, kernel_logit_spreads
    >>> near, far = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[0.0], [2.0]]])
    >>> kernel_logit_spreads([Affinity(near, near, "heat"), Affinity(far, far, "heat")])
    [1.0, 4.0]
    """
    kernels = {id(one): one for one in affinities}.values()
    return [
        float(logit_spread(one).amax()) if one.batch else 0.0
        for one in kernels
        if isinstance(one, Affinity) and one.has_logits
    ]


def largest_logit_spread(affinities: Iterable[Affinity | SparseAffinity]) -> float | None:
    """The largest spread of all kernels; None where none has logits, NaN where one has NaN.

    >>> from nonloc.ops import Affinity, largest_logit_spread
    >>> near, far = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[0.0], [2.0]]])
    >>> largest_logit_spread([Affinity(near, near, "heat"), Affinity(far, far, "heat")])
    4.0
    """
    spreads = kernel_logit_spreads(affinities)
    return float(torch.tensor(spreads, dtype=torch.float64).max()) if spreads else None
