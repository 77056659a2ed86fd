"""Walks: many walkers at once, in discrete and in continuous time.

A walker at i jumps to the first j at which the sum of K_i1 … K_ij exceeds a uniform number. All rows together
form one increasing sequence (row r runs from r to r + 1), so one sorted search serves all walkers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nonloc._checks import check_flag, check_whole, is_finite, is_whole, shown
from nonloc.ops import Affinity, SparseAffinity, exponential, factored, kernel_matrix, normalize, sparse
from nonloc.ops.affinity import position_weights, valid_positions
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.process import MOST_STEPS

# Entries of rows that exist at one time. A kernel with no more is tabulated once.
BLOCK_ENTRIES = 2**22
MOST_PLACES = 2**36  # positions of all walkers at all times: 512 GiB

Jump = Callable[[Tensor, Tensor], Tensor]  # positions [W], uniform numbers [W] -> positions [W]


def sample_paths(
    transitions: Transitions,
    num_walkers: int,
    num_steps: int | None,
    *,
    until: float | None,
    step_size: float,
    start: int | Tensor | None,
    sample: int,
    only_final: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Positions [num_steps + 1, num_walkers], or the last ones; see `JumpProcess.sample_paths`."""
    if num_steps is None and until is None:
        raise ValueError("give num_steps for discrete time, or until for continuous time")
    check_whole("num_walkers", num_walkers)
    if num_steps is not None:
        check_whole("num_steps", num_steps, least=0, most=MOST_STEPS)
    if until is not None:
        if not is_finite(until) or until < 0:
            raise ValueError(f"until must be a finite time ≥ 0, got {shown(until)}")
        if step_size != 1:
            raise ValueError("step_size belongs to discrete time; leave it out with until")
        if num_steps == 0:
            raise ValueError(
                "num_steps must be ≥ 1 with until: positions are returned for num_steps + 1 times"
            )
    transitions.check_sample(sample)
    device = transitions.sums.device
    if not isinstance(generator, torch.Generator | None):
        raise ValueError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if generator is not None and generator.device.type != device.type:
        raise ValueError(
            f"generator is on {generator.device}, the affinity on {device}; use torch.Generator({device.type!r})"
        )
    check_flag("only_final", only_final)
    steps = 1 if num_steps is None else num_steps
    if num_walkers * (1 if only_final else steps + 1) > MOST_PLACES:
        raise ValueError(
            f"num_walkers={num_walkers} and num_steps={steps} are more positions than memory holds "
            f"({MOST_PLACES:,}); use fewer, or only_final=True"
        )
    with torch.no_grad():
        draw = _Draw(num_walkers, device, generator)
        positions = _start(transitions, sample, start, draw)
        jump = _jump(transitions, sample)
        stays = transitions.stays[sample]
        waiting = None if until is None else draw.waiting_times()
        observed = positions.new_empty(1 if only_final else steps + 1, num_walkers)
        observed[0] = positions
        for n in range(1, steps + 1):
            if until is None:
                uniform = draw.uniform()
                moves = (uniform < step_size) & ~stays[positions]
                # Below h, u is uniform on [0, h): the same number serves for the jump.
                positions = _moved(jump, positions, moves, uniform / step_size)
            else:
                assert waiting is not None
                positions = _run_clocks(jump, positions, waiting, n * until / steps, stays, draw)
            observed[0 if only_final else n] = positions
    return observed[0] if only_final else observed


class _Draw:
    """Random numbers for all walkers, from one generator."""

    def __init__(self, walkers: int, device: torch.device, generator: torch.Generator | None) -> None:
        self.walkers, self.device, self.generator = walkers, device, generator

    def uniform(self) -> Tensor:
        """[W] in [0, 1)."""
        return torch.rand(self.walkers, generator=self.generator, dtype=torch.float64, device=self.device)

    def waiting_times(self) -> Tensor:
        """[W] with an exponential law of mean 1."""
        return -torch.log1p(-self.uniform())


def _run_clocks(
    jump: Jump, positions: Tensor, next_jump: Tensor, end: float, stays: Tensor, draw: _Draw
) -> Tensor:
    """Positions at time `end`; `next_jump` [W] is carried along in place."""
    while True:
        rings = next_jump <= end
        if not bool(rings.any()):
            return positions
        positions = _moved(jump, positions, rings & ~stays[positions], draw.uniform())
        next_jump += torch.where(rings, draw.waiting_times(), 0)


def _moved(jump: Jump, positions: Tensor, moves: Tensor, uniform: Tensor) -> Tensor:
    movers = moves.nonzero().squeeze(-1)
    return positions.index_copy(0, movers, jump(positions[movers], uniform[movers]))


def _jump(transitions: Transitions, sample: int) -> Jump:
    affinity = transitions.affinity
    if isinstance(affinity, SparseAffinity):
        return _sparse_jump(affinity)
    if affinity.kind == "delta":
        return lambda positions, uniform: positions
    rows = row_normalized(affinity.sample(sample))
    size = rows.positions
    if size * size <= BLOCK_ENTRIES:
        table = _cumulative(kernel_rows(rows, torch.arange(size, device=rows.left.device)))
        return lambda positions, uniform: _search(table, positions, uniform)
    return lambda positions, uniform: _jump_by_blocks(rows, positions, uniform)


def row_normalized(affinity: Affinity) -> Affinity:
    """The same K under normalize="row", for B = 1: the scaling u of "sinkhorn" and the mask become part of the measure.

    K_ij = u_i Ω_ij u_j μ_j has rows that sum to 1, so u_i is their normaliser.
    """
    dtype = affinity.left.dtype
    weights = position_weights(affinity, dtype)
    if affinity.normalize == "row":
        return replace(affinity, mask=None, measure=weights.flatten())
    if affinity.has_logits:
        query, key, row, column = exponential.logit_factors(affinity, dtype)
        logged = column + exponential.log_weights(weights)
        scaling = exponential.sinkhorn_scaling(
            query, key, row, logged, column, weights, valid_positions(affinity)
        )
        # A factor of a column of exp(q·k) is one more coordinate: it may be far outside the range of numbers.
        left = torch.cat([query, torch.ones_like(query[..., :1])], -1)
        right = torch.cat([key, (column + scaling).unsqueeze(-1)], -1)
        return Affinity(left, right, "gaussian", "row", measure=weights.flatten())
    omega = factored.product(affinity, affinity.left, affinity.right)
    giver = normalize.sides(omega, weights.unsqueeze(-1), affinity)[1]
    return replace(affinity, normalize="row", mask=None, measure=giver.flatten())


def kernel_rows(affinity: Affinity, rows: Tensor) -> Tensor:
    """The rows [R, M] of K with these indices [R], for an affinity with B = 1 and normalize="row"."""
    return kernel_matrix(replace(affinity, left=affinity.left[:, rows])).squeeze(0)


def _jump_by_blocks(rows: Affinity, positions: Tensor, uniform: Tensor) -> Tensor:
    """Sort walkers by position, so that each row is computed once for all walkers there."""
    order = positions.argsort()
    occupied, counts = torch.unique_consecutive(positions[order], return_counts=True)
    ends = counts.cumsum(0)
    arrived = torch.empty_like(positions)
    at_once, done = max(1, BLOCK_ENTRIES // rows.positions), 0
    for first in range(0, len(occupied), at_once):
        block = occupied[first : first + at_once]
        last = int(ends[first + len(block) - 1])
        walkers = order[done:last]
        index = torch.searchsorted(block, positions[walkers])
        arrived[walkers] = _search(_cumulative(kernel_rows(rows, block)), index, uniform[walkers])
        done = last
    return arrived


def _cumulative(rows: Tensor) -> Tensor:
    """[R, M] as one increasing sequence [R, M] in which row r runs from r to r + 1."""
    sums = rows.clamp(min=0).cumsum(-1)
    total = sums[:, -1:]
    index = torch.arange(len(rows), dtype=rows.dtype, device=rows.device).unsqueeze(-1)
    return index + sums / torch.where(total > 0, total, 1)


def _search(table: Tensor, index: Tensor, uniform: Tensor) -> Tensor:
    """The column at which row `index` of the table first exceeds `uniform` [W]."""
    row = index.to(uniform.dtype)
    below_end = torch.nextafter(row + 1, torch.zeros_like(row))
    entry = torch.searchsorted(table.view(-1), torch.minimum(row + uniform, below_end), right=True)
    return entry - index * table.shape[1]


def _sparse_jump(affinity: SparseAffinity) -> Jump:
    matrix, dtype = affinity.matrix, affinity.matrix.dtype
    giver = affinity.measure
    if affinity.normalize == "sinkhorn":
        omega, weights = sparse.product(matrix, dtype), sparse.weights(affinity, dtype)
        giver = normalize.sides(omega, weights, affinity)[1].flatten()
    starts, columns = matrix.crow_indices().long(), matrix.col_indices()
    # What else K multiplies a row by makes its sum 1.
    shares = matrix.values().clamp(min=0)
    if giver is not None:
        shares = shares * giver.to(dtype)[columns]
    row = sparse.rows(matrix)
    total = shares.new_zeros(affinity.positions).index_add_(0, row, shares)
    shares = shares / torch.where(total > 0, total, 1)[row]
    # Entry e of the sequence is the sum of all before and e itself; each row adds 1.
    sequence = torch.nn.functional.pad(shares.cumsum(0), (1, 0))

    def jump(positions: Tensor, uniform: Tensor) -> Tensor:
        low, high = sequence[starts[positions]], sequence[starts[positions + 1]]
        target = torch.minimum(low + uniform * (high - low), torch.nextafter(high, torch.zeros_like(high)))
        entry = torch.searchsorted(sequence, target, right=True) - 1
        return columns[entry].long()

    return jump


def _start(transitions: Transitions, sample: int, start: int | Tensor | None, draw: _Draw) -> Tensor:
    """Positions [W]."""
    size = transitions.positions
    if start is None:
        mask = transitions.affinity.mask
        law = torch.ones(size, device=draw.device) if mask is None else mask[sample].float()
        start = law if bool(law.any()) else torch.ones_like(law)
    if isinstance(start, Tensor):
        start = start.to(draw.device)
        if start.dtype.is_floating_point:
            return _drawn(start, size, draw)
        if list(start.shape) != [draw.walkers]:
            raise ValueError(
                f"start must be one position for each of the {draw.walkers} walkers, [{draw.walkers}], or a law "
                f"[{size}] in floating point; got {start.dtype} {list(start.shape)}"
            )
        positions = start.long()
    elif not is_whole(start):
        raise ValueError(
            f"start must be a position, a tensor or None, got {type(start).__name__}; of a list, torch.as_tensor(start)"
        )
    else:
        # What is beyond 64 bits is outside, too.
        positions = torch.full((draw.walkers,), min(max(start, -1), size), device=draw.device)
    if bool(((positions < 0) | (positions >= size)).any()):
        raise ValueError(f"start has positions outside 0 … {size - 1}")
    return positions


def _drawn(law: Tensor, size: int, draw: _Draw) -> Tensor:
    if list(law.shape) != [size]:
        raise ValueError(f"start as a law must be [M] = [{size}], got {list(law.shape)}")
    law = law.double()
    if not bool((torch.isfinite(law) & (law >= 0)).all()) or not bool(law.any()):
        raise ValueError("start as a law must be ≥ 0, finite, and not 0 everywhere")
    row = torch.zeros(draw.walkers, dtype=torch.long, device=draw.device)
    return _search(_cumulative(law.unsqueeze(0)), row, draw.uniform())
