"""Mixing time: when the law of a walker no longer tells where it started."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc._checks import is_number
from nonloc.processes.jump.spectral import SpectralGap, falls_apart
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.matrix_free.krylov import dense_exponential

# Continuous times are found to 2^−20, a millionth of the mean waiting time.
FINEST = 20
LARGEST = 50  # no walk is followed for more than 2^50 jumps


@dataclass(frozen=True, eq=False)
class MixingTime:
    """The first time at which max_i ½ Σ_j |P_t(i, j) − π_j| ≤ epsilon, over the starts i that are not left for good.

    bound     [B]   log(1 / (ε √π_min)) / gap, which is never too small; infinite where the gap is 0
    exact     [B]   the time itself (continuous: to 1e-6), where the gap is "exact"; else None. Infinite where it
                    never comes (the gap is then 0); NaN where epsilon is so small that rounding hides when it comes
    kind      "certified": the bound holds; "estimate": its gap was estimated from above, so it may be too small
    discrete  whether times are steps of the chain with h = 1
    """

    bound: Tensor
    exact: Tensor | None
    kind: str
    epsilon: float
    discrete: bool


def mixing_time(transitions: Transitions, law: Tensor, gap: SpectralGap, epsilon: float) -> MixingTime:
    """The bound from the gap, and the exact time beside it where the gap is exact."""
    if not is_number(epsilon) or not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be a number between 0 and 1, a distance of laws, got {epsilon!r}")
    epsilon = float(epsilon)
    smallest = torch.where(law > 0, law, torch.inf).amin(-1)
    bound = -(epsilon * smallest.sqrt()).log() / gap.value
    exact = None
    if gap.kind == "exact":
        matrix = transitions.matrix()
        apart = falls_apart(transitions, law, by_matrix=True)
        times = [
            math.inf if apart[b] else _exact(matrix[b], law[b], epsilon, gap.absolute)
            for b in range(len(law))
        ]
        exact = torch.tensor(times, dtype=law.dtype, device=law.device)
        # Not after 2^50 jumps: never, where no rate is known; or rounding keeps the laws apart.
        exact = torch.where(exact.isnan() & (gap.value == 0), torch.inf, exact)
    kind = "certified" if gap.kind == "exact" else "estimate"
    return MixingTime(bound, exact, kind, float(epsilon), gap.absolute)


def _exact(matrix: Tensor, law: Tensor, epsilon: float, discrete: bool) -> float:
    """By doubling the time until the walk has mixed, and halving the step on the way back; the distance never grows."""
    starts = law > 0

    def is_mixed(power: Tensor) -> bool:
        return bool((power[starts] - law).abs().sum(-1).max() <= 2 * epsilon)

    identity = torch.eye(len(law), dtype=law.dtype, device=law.device)
    if is_mixed(identity):
        return 0.0
    generator = matrix - identity

    def exponential(time: float) -> Tensor:
        return dense_exponential(time * generator.unsqueeze(0))[0]

    powers = [(1.0, matrix if discrete else exponential(1.0))]
    while not is_mixed(powers[-1][1]):
        time, power = powers[-1]
        if time >= 2**LARGEST:
            return math.nan
        power = power @ power
        powers.append((2 * time, power / power.sum(-1, keepdim=True)))
    if not discrete:
        finer = [2.0**-k for k in range(1, FINEST + 1)]
        powers = [(time, exponential(time)) for time in reversed(finer)] + powers
    reached, state = 0.0, identity
    for time, power in reversed(powers):
        further = state @ power
        if not is_mixed(further):
            reached, state = reached + time, further
    return reached + powers[0][0]
