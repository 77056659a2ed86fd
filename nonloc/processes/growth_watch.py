"""GrowthWatch, RangeWatch: tell from which state on an Euler simulation runs away, although its process does not.

Where A is self-adjoint and dissipative in ‖·‖_π, a step T = I + hA is non-expansive for every h up to the limit of
stability, and so are the changes d_n = z_{n+1} − z_n, for d_{n+1} = T d_n. Changes that grow prove that h lies beyond
the limit. Unlike the states they have no part at rest in which a growing mode could hide.

A kernel that is not symmetric has no such norm, and its changes may grow for a while in any. But a diffusion with
Ω ≥ 0 never leaves the values it began with: a simulation that does, and does not come back, has run away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.processes.process import Process

GROWTH = 1 + 1e-9
# What a position that is not masked weighs where π = 0, as a share of the largest: it listens and nobody listens to
# it, so that it can run away alone. So little that changes which do not grow stay below GROWTH.
LIGHT = 1e-12
# Of the state's own size times eps: changes below it are rounding.
ROUNDING = 1e3
# A step that is stable in some norm may still overshoot, by a little and for a while.
WIDER = 2


class GrowthWatch:
    """Looks at every step of one simulation.

    since  the number of the first state that was reached by a change larger than the one before; None while there
           is none, and for a process that is not known to be dissipative
    grown  that change [B, M, C]
    """

    def __init__(self, process: Process) -> None:
        self.since: int | None = None
        self.grown: Tensor | None = None
        self._process = process
        # The weights of the mean are at hand; whether they are those of the norm too is asked when it matters.
        self._weights = self._all_weighing(process.mean_weights())
        self._is_norm = False
        self._change: Tensor | None = None

    def look(self, number: int, before: Tensor, after: Tensor) -> None:
        """At the step from one state [B, M, C] to the next, which has this number."""
        if self.since is not None or self._weights is None:
            return
        last, self._change = self._change, after - before
        if last is None:
            self._size_before = _size(self._change, self._weights)
            return
        size = _size(self._change, self._weights)
        if self._is_larger(size, before) and not self._is_norm:
            self._weights, self._is_norm = self._all_weighing(self._process.inner_weights()), True
            if self._weights is None:
                return
            self._size_before, size = (_size(change, self._weights) for change in (last, self._change))
        if self._is_norm and self._is_larger(size, before):
            self.since, self.grown = number, self._change
        self._size_before = size

    def _all_weighing(self, weights: Tensor | None) -> Tensor | None:
        if weights is None or bool((weights > 0).all()):
            return weights
        light = torch.where(weights > 0, weights, LIGHT * weights.amax(-1, keepdim=True))
        affinity = self._process.affinity
        return light if affinity is None or affinity.mask is None else torch.where(affinity.mask, light, 0)

    def _is_larger(self, size: Tensor, state: Tensor) -> bool:
        """Than the size before, in any sample, and by more than rounding of the state."""
        if not bool((size > GROWTH * self._size_before).any()):
            return False
        assert self._weights is not None
        floor = ROUNDING * torch.finfo(state.dtype).eps * _size(state, self._weights)
        return bool((size > GROWTH * self._size_before + floor).any())


class RangeWatch:
    """Looks at the states of one simulation of a process that has no norm of its own.

    since  the number of the first state from which on, up to the last that was looked at, some channel spreads over
           positions by more than WIDER times what it did at first; None while there is none
    safe   the step up to which that cannot be
    """

    def __init__(self, process: Process, z0: Tensor, safe: float) -> None:
        self.since: int | None = None
        self.safe = safe
        mask = None if process.affinity is None else process.affinity.mask
        self._outside = None if mask is None else ~mask.unsqueeze(-1)
        rounding = ROUNDING * torch.finfo(z0.dtype).eps * self._valid(z0, 0).abs().amax((1, 2), keepdim=True)
        self._most = WIDER * self._spread(z0) + rounding.squeeze(1)

    def look(self, number: int, state: Tensor) -> None:
        """At a state [B, M, C] with this number."""
        is_wide = bool((self._spread(state) > self._most).any())
        self.since = (number if self.since is None else self.since) if is_wide else None

    def _spread(self, z: Tensor) -> Tensor:
        """The largest less the smallest value of every channel [B, C]."""
        return self._valid(z, -torch.inf).amax(1) - self._valid(z, torch.inf).amin(1)

    def _valid(self, z: Tensor, otherwise: float) -> Tensor:
        return z if self._outside is None else z.masked_fill(self._outside, otherwise)


def _size(z: Tensor, weights: Tensor) -> Tensor:
    """‖z‖_π [B]."""
    # What weighs nothing may be anything, NaN included.
    squares = torch.where(weights > 0, z.double().square().sum(-1), 0)
    return (weights * squares).sum(-1).sqrt()
