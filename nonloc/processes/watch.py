"""Watch: notices from which state on an Euler simulation runs away although its process does not.

It looks at changes from state to state, which have no part at rest in which a growing mode could hide, and at the range
of values. docs/mathematics.md says why.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, isfinite, log10

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.processes.krylov import lanczos
from nonloc.processes.process import Process, mask_of

GROWTH = 1 + 1e-9
# The weight of a valid position with π = 0, as a share of the largest. Such a position is influenced and influences
# none, so it can run away alone. The weight is so small that other changes stay below GROWTH.
SMALLEST_WEIGHT = 1e-12
ROUNDING = 1e3  # times eps and the size of the state: smaller changes are rounding
WIDENING = 2  # a step that is stable in some norm may overshoot a little, for a while
LANCZOS_PRODUCTS = 40
MARGIN = 0.9  # Lanczos estimates λ_max from below, and so the limit from above

Rate = Callable[[Tensor], Tensor]


class Watch:
    """Watches every Euler step of one simulation.

    rate         that of a change [B, M, C]: of the process, but 0 where values are fixed
    keeps_range  False: values may leave their range, as with a source
    keeps_norm   False: states may become larger than the first, as with a source or fixed values
    """

    def __init__(
        self, process: Process, step_size: float, rate: Rate, *, keeps_range: bool, keeps_norm: bool
    ) -> None:
        self._process, self._step_size, self._rate = process, step_size, rate
        self._keeps_range = keeps_range
        self._growth = GrowthWatch(process, step_size, keeps_norm)
        self._range: RangeWatch | None = None

    def look(self, number: int, before: Tensor, after: Tensor) -> None:
        """Look at the step from one state [B, M, C] to the next, which has this number."""
        self._growth.look(number, before, after)
        if number == 1:  # the kernel is prepared now, so its row sums cost nothing
            self._range = self._range_watch(before)
        if self._range is not None:
            self._range.look(number, after)

    def verdict(self) -> tuple[int, str] | None:
        """The first state from which on the simulation runs away, and a sentence that says why; None if it does not."""
        if self._growth.grown is not None:
            (since, change), symptom = self._growth.grown, "its changes grow"
            limit = f"beyond the limit of stability{describe_limit(self._process, change, self._rate)}"
        elif self._range is not None and self._range.since is not None:
            since = self._range.since
            symptom = f"its values spread over more than {WIDENING} times their range"
            limit = f"too large; with every step_size up to {round_down(self._range.safe):g} values keep their range"
        else:
            return None
        return since, (
            f"From state {since} on, at time {since * self._step_size:g}, {symptom}, which those of this process never "
            f"do: step_size = {self._step_size:g} is {limit}."
        )

    def _range_watch(self, z0: Tensor) -> RangeWatch | None:
        """For a process without a norm of its own, with a step larger than what surely keeps the range."""
        has_norm = self._process.mean_weights() is not None
        if not self._keeps_range or z0.shape[1] < 2 or z0.numel() == 0 or has_norm:
            return None
        safe = self._process.range_euler_step()
        return None if safe is None or self._step_size <= safe else RangeWatch(self._process, z0, safe)


class GrowthWatch:
    """Watches the changes of one simulation.

    grown  the number of the first state that was reached by a change larger than the one before, and that change
           [B, M, C]; None while there is none, and for a process that is not known to be dissipative
    """

    def __init__(self, process: Process, step_size: float, keeps_norm: bool) -> None:
        self.grown: tuple[int, Tensor] | None = None
        self._process, self._step_size = process, step_size
        self._keeps_norm = keeps_norm
        self._rounding = ROUNDING
        # The weights of the mean are cheap; whether they are also those of the norm is asked when it matters.
        self._weights = self._positive(process.mean_weights())
        self._is_norm = False
        self._change: Tensor | None = None

    def look(self, number: int, before: Tensor, after: Tensor) -> None:
        """Look at the step from one state [B, M, C] to the next, which has this number."""
        if self.grown is not None or self._weights is None:
            return
        last, self._change = self._change, after - before
        if last is None:
            self._first, self._first_change = before, self._change
            self._size_before = _norm(self._change, self._weights)
            return
        size = _norm(self._change, self._weights)
        if self._is_larger(size, number, before) and not self._is_norm:
            self._weights, self._is_norm = self._positive(self._process.inner_weights()), True
            if self._weights is None:
                return
            # A step adds K_ii z_i and takes it away again, which rounds a state by h w K_ii times eps.
            self._rounding *= 1 + self._step_size * self._process.fastest_rate()
            self._size_before, size = (_norm(change, self._weights) for change in (last, self._change))
        if self._is_norm and self._is_larger(size, number, before):
            self.grown = number, self._change
        self._size_before = size

    def _positive(self, weights: Tensor | None) -> Tensor | None:
        """Weights with a small one in place of 0, at valid positions."""
        if weights is None or bool((weights > 0).all()):
            return weights
        weights = torch.where(weights > 0, weights, SMALLEST_WEIGHT * weights.amax(-1, keepdim=True))
        mask = mask_of(self._process)
        return weights if mask is None else torch.where(mask, weights, 0)

    def _is_larger(self, size: Tensor, number: int, before: Tensor) -> bool:
        """Whether a change is larger than the one before in any sample, by more than rounding of the state."""
        if not bool((size > GROWTH * self._size_before).any()):
            return False
        # Rounding is relative to the largest state that is right: that of one which runs away would hide its growth.
        # From the first state, changes that do not grow lead no farther than so many first changes.
        assert self._weights is not None
        largest = _norm(self._first, self._weights)
        if not self._keeps_norm:
            farthest = largest + number * _norm(self._first_change, self._weights)
            largest = torch.minimum(farthest, _norm(before, self._weights))
        floor_ = self._rounding * torch.finfo(before.dtype).eps * largest
        return bool((size > GROWTH * self._size_before + floor_).any())


class RangeWatch:
    """Watches the states of one simulation of a process that has no norm of its own.

    since  the first state from which on, up to the last one seen, some channel spreads over positions by more than
           WIDENING times its first spread; None while there is none
    safe   the step up to which that cannot be
    """

    def __init__(self, process: Process, z0: Tensor, safe: float) -> None:
        self.since: int | None = None
        self.safe = safe
        mask = mask_of(process)
        self._masked = None if mask is None else ~mask.unsqueeze(-1)
        rounding = ROUNDING * torch.finfo(z0.dtype).eps * self._fill(z0, 0).abs().amax((1, 2), keepdim=True)
        self._largest = WIDENING * self._spread(z0) + rounding.squeeze(1)

    def look(self, number: int, state: Tensor) -> None:
        """Look at a state [B, M, C] with this number."""
        is_wide = bool((self._spread(state) > self._largest).any())
        self.since = (number if self.since is None else self.since) if is_wide else None

    def _spread(self, z: Tensor) -> Tensor:
        """The largest minus the smallest value of every channel [B, C]."""
        return self._fill(z, -torch.inf).amax(1) - self._fill(z, torch.inf).amin(1)

    def _fill(self, z: Tensor, value: float) -> Tensor:
        return z if self._masked is None else z.masked_fill(self._masked, value)


def _norm(z: Tensor, weights: Tensor) -> Tensor:
    """‖z‖_π [B]. Where π = 0, z may be anything, NaN included."""
    squares = torch.where(weights > 0, z.double().square().sum(-1), 0)
    return (weights * squares).sum(-1).sqrt()


def describe_limit(process: Process, change: Tensor, rate: Rate) -> str:
    """The limit of stability in words, with a step size that works where one is known.

    change  [B, M, C]: one that grew, so it has a part in what grows
    """
    certified, estimate = process.certified_euler_step(), estimate_euler_step(process, change, rate)
    text = "" if estimate is None else f", which Lanczos estimates at {estimate:.4g}"
    if certified is not None and 0 < certified < float("inf"):
        return f"{text}; every step_size up to {round_down(certified):g} is certified to be stable"
    if estimate is None:
        return "; use a smaller one"
    return f"{text}; step_size = {round_down(MARGIN * estimate):g} works"


def estimate_euler_step(process: Process, change: Tensor, rate: Rate) -> float | None:
    """2 / λ_max(−A), where rate(change) = A change is self-adjoint under π, by Lanczos: an estimate from above.

    None where there is no π, where nothing moves, and where a position with π = 0 moves.
    """
    weights = process.inner_weights()
    if weights is None or change.numel() == 0 or bool(((weights == 0) & (change != 0).any(-1)).any()):
        return None
    start = change.to(torch.promote_types(change.dtype, torch.float32))
    roots = weights.to(start).sqrt().unsqueeze(-1)
    inverse = inverse_or_zero(roots)

    def apply(v: Tensor) -> Tensor:
        moved = rate(inverse * v.view(start.shape))
        return -(torch.where(roots > 0, moved, 0) * roots).flatten(1)

    start = torch.where(roots > 0, start, 0)
    start = start * inverse_or_zero(start.abs().amax((1, 2), keepdim=True))
    # A change alone may have lost modes to rounding; a little noise brings them back.
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = start + 0.01 * noise.to(start)
    high = float(lanczos(apply, (roots * start).flatten(1), LANCZOS_PRODUCTS)[1].max())
    return 2 / high if high > 0 and isfinite(2 / high) else None


def round_down(x: float) -> float:
    """Round x > 0 down to three significant digits; a bound that rounding alone has lowered is not lowered further."""
    unit = 10.0 ** (floor(log10(x)) - 2)
    return float(f"{floor(x / unit * (1 + 1e-9)) * unit:.3g}")
