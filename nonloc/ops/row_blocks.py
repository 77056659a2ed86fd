"""Functions of a logit matrix S_ij = q_i·k_j + b_j that is never stored: a few of its rows exist at a time.

Backward makes them again. All blocks of rows share one buffer, and a second one backward: with fresh memory for each,
glibc's heap grew to several times M × M numbers, which had to be mapped and cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nonloc._torch_compat import (
    is_exporting,
    is_forward_mode,
    is_open_size,
    is_transformed,
    needs_plain_torch,
)
from nonloc.ops.arithmetic import full_precision
from nonloc.ops.derivatives import Gradients, partial_gradients

# Entries of one block of rows, B · rows · M'. A quarter of that took up to twice as long, on two cores; twice, no less.
BLOCK_ENTRIES = 2**20


class Exponential:
    """Σ_j exp(S_ij + a_i) z_j."""

    def plain(self, logits: Tensor, row: Tensor, z: Tensor) -> Tensor:
        """The result for rows S and a, by operations that torch can differentiate as often as it likes."""
        return (logits + row).exp() @ z

    def kernel(self, logits: Tensor, row: Tensor) -> Tensor:
        """K with K z the result, in the place of the logits."""
        return logits.add_(row).exp_()

    def to_logits(self, gradient: Tensor, kernel: Tensor, row: Tensor) -> Tensor:
        """The gradient of S and of a from that of K, in its place."""
        return gradient.mul_(kernel)


@dataclass(frozen=True)
class ExponentialBetween(Exponential):
    """As `Exponential`, with 0 between two positions without weight, where nothing bounds exp.

    row: (a_i, whether i has weight)
    """

    has_weight: Tensor

    def plain(self, logits: Tensor, row: Tensor, z: Tensor) -> Tensor:
        return (logits + row[..., :1]).masked_fill(self._is_empty(row), -torch.inf).exp() @ z

    def kernel(self, logits: Tensor, row: Tensor) -> Tensor:
        return logits.add_(row[..., :1]).masked_fill_(self._is_empty(row), -torch.inf).exp_()

    def to_logits(self, gradient: Tensor, kernel: Tensor, row: Tensor) -> Tensor:
        return gradient.mul_(kernel).masked_fill_(self._is_empty(row), 0)

    def _is_empty(self, row: Tensor) -> Tensor:
        return ~self.has_weight.unsqueeze(1) & (row[..., 1:] == 0)


class Softmax(Exponential):
    """Σ_j softmax_j(S_ij) z_j, whose weights sum to 1 however large the logits are."""

    def plain(self, logits: Tensor, row: Tensor, z: Tensor) -> Tensor:
        return torch.softmax(logits, -1) @ z

    def kernel(self, logits: Tensor, row: Tensor) -> Tensor:
        logits.sub_(logits.amax(-1, keepdim=True)).exp_()
        return logits.div_(logits.sum(-1, keepdim=True))

    def to_logits(self, gradient: Tensor, kernel: Tensor, row: Tensor) -> Tensor:
        gradient.mul_(kernel)
        return gradient.addcmul_(kernel, gradient.sum(-1, keepdim=True), value=-1)


Plain = Callable[[Tensor, Tensor, Tensor], Tensor]  # (S, a, z) of some rows -> the result for these rows


def by_blocks(
    rows: Exponential, query: Tensor, row: Tensor, key: Tensor, column: Tensor, z: Tensor
) -> Tensor:
    """What `rows` says of all rows [B, M, C], for q [B, M, d], a [B, M, 1], k [B, M', d], b [B, M'], z [B, M', C]."""
    column = column.expand(key.shape[:2])
    if _needs_plain_blocks(query, key):
        return _plain_blocks(rows.plain, query, row, key, column, z)
    result: Tensor = _InBuffers.apply(rows, query, row, key, column, z)
    return result


def log_sums(query: Tensor, key: Tensor, column: Tensor) -> Tensor:
    """log Σ_j exp(S_ij) [B, M]."""
    column = column.expand(key.shape[:2])
    if _needs_plain_blocks(query, key):
        return _plain_log_sums(query, key, column).squeeze(-1)
    result: Tensor = _LogSums.apply(query, key, column)
    return result.squeeze(-1)


def logit_blocks(query: Tensor, key: Tensor, column: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Which rows, and S of these rows: in a buffer, which the next block overwrites. Without gradients."""
    (batch, count, _), width = query.shape, key.shape[1]
    size = _rows_at_once(batch * width)
    buffer = query.new_empty(batch * min(size, count) * width)
    for start in range(0, count, size):
        some = slice(start, min(start + size, count))
        shape = batch, some.stop - start, width
        block = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
        yield some, torch.matmul(query[:, some], key.mT, out=block).add_(column.unsqueeze(1))


class _InBuffers(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Exponential, query: Tensor, row: Tensor, key: Tensor, column: Tensor, z: Tensor
    ) -> Tensor:
        ctx.rows = rows
        ctx.save_for_backward(query, row, key, column, z)
        result = z.new_empty(*query.shape[:2], z.shape[-1])
        for some, logits in logit_blocks(query, key, column):
            torch.matmul(rows.kernel(logits, row[:, some]), z, out=result[:, some])
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            again = partial(_plain_blocks, ctx.rows.plain)
            return None, *partial_gradients(again, inputs, needed, gradient)
        return None, *_gradients(ctx.rows, inputs, needed, gradient)


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, column: Tensor) -> Tensor:
        sums = query.new_empty(*query.shape[:2], 1)
        for some, logits in logit_blocks(query, key, column):
            highest = logits.amax(-1, keepdim=True)
            highest = torch.where(highest.isfinite(), highest, 0)
            sums[:, some] = logits.sub_(highest).exp_().sum(-1, keepdim=True).log_().add_(highest)
        ctx.save_for_backward(query, key, column, sums)
        return sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        query, key, column, sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            return partial_gradients(_plain_log_sums, (query, key, column), ctx.needs_input_grad, gradient)
        # The derivative is softmax_j(S_ij) = exp(S_ij − log Σ), which is taken as a kernel that is applied to ones.
        row, ones = -torch.where(sums > -torch.inf, sums, 0), column.new_ones(*column.shape, 1)
        of_query, of_key, of_column = ctx.needs_input_grad
        needed = (of_query, False, of_key, of_column, False)
        d_query, _, d_key, d_column, _ = _gradients(
            Exponential(), (query, row, key, column, ones), needed, gradient
        )
        return d_query, d_key, d_column


def _gradients(
    rows: Exponential, inputs: Sequence[Tensor], needed: Sequence[bool], gradient: Tensor
) -> Gradients:
    """The gradients in q, a, k, b and z that are needed."""
    query, row, key, column, z = inputs
    found = [x.new_zeros(x.shape) if needs else None for x, needs in zip(inputs, needed, strict=True)]
    d_query, d_row, d_key, d_column, d_z = found
    buffer = None
    with full_precision(gradient):
        for some, logits in logit_blocks(query, key, column):
            kernel, g = rows.kernel(logits, row[:, some]), gradient[:, some]
            if d_z is not None:
                d_z.baddbmm_(kernel.mT, g)
            if not any(needed[:4]):
                continue
            buffer = torch.empty_like(kernel) if buffer is None else buffer
            of_logits = torch.matmul(g, z.mT, out=buffer[:, : kernel.shape[1]])
            of_logits = rows.to_logits(of_logits, kernel, row[:, some])
            if d_query is not None:
                torch.matmul(of_logits, key, out=d_query[:, some])
            if d_row is not None:
                d_row[:, some, :1] = of_logits.sum(-1, keepdim=True)
            if d_key is not None:
                d_key.baddbmm_(of_logits.mT, query[:, some])
            if d_column is not None:
                d_column.add_(of_logits.sum(1))
    return tuple(found)


def _needs_plain_blocks(query: Tensor, key: Tensor) -> bool:
    """Whether a program is traced or a transform is active, or there is nothing to add up."""
    return needs_plain_torch() or is_exporting() or query.shape[0] * key.shape[1] == 0


def _plain_log_sums(query: Tensor, key: Tensor, column: Tensor) -> Tensor:
    def plain(logits: Tensor, row: Tensor, z: Tensor) -> Tensor:
        return torch.logsumexp(logits, -1, keepdim=True)

    return _plain_blocks(plain, query, query[..., :1], key, column, column)


def _plain_blocks(plain: Plain, query: Tensor, row: Tensor, key: Tensor, column: Tensor, z: Tensor) -> Tensor:
    """`plain` for a few rows at a time; backward computes each block again instead of storing it.

    torch.func and forward mode cannot compute a block again. Their gradients store all blocks: M × M numbers.
    """

    def result(query: Tensor, row: Tensor, key: Tensor, column: Tensor, z: Tensor) -> Tensor:
        return plain(query @ key.mT + column.unsqueeze(1), row, z)

    entries, count = query.shape[0] * key.shape[1], query.shape[1]
    if is_open_size(entries):
        return result(query, row, key, column, z)
    if torch.compiler.is_compiling():
        # Each number of blocks is a program of its own, so there are few of them.
        blocks = 1
        while blocks * BLOCK_ENTRIES < entries * count:
            blocks *= 2
        size = -(-count // blocks)
    else:
        size = _rows_at_once(entries)
    if torch.is_grad_enabled() and not (is_exporting() or is_transformed() or is_forward_mode()):
        compute: Callable[..., Tensor] = partial(
            checkpoint, result, use_reentrant=False, preserve_rng_state=False
        )
    else:
        compute = result
    pairs = zip(query.split(size, 1), row.split(size, 1), strict=True)
    return torch.cat([compute(q, a, key, column, z) for q, a in pairs], 1)


def _rows_at_once(entries: int) -> int:
    return max(1, BLOCK_ENTRIES // max(1, entries))
