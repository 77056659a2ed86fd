"""How fast the laws of a jump process approach the stationary one: the spectral gap and the mixing time.

In L²(π), P is similar to S = diag(√π) P diag(1/√π), which has √π as its eigenvector for 1 and is symmetric where the
process is reversible. On what is orthogonal to √π,

    continuous time   d/dt |f|² ≤ −2 (1 − λ) |f|²   with λ the largest eigenvalue of (S + Sᵀ)/2
    discrete time     |P f| ≤ σ |f|                 with σ the largest singular value of S

for every process. For a reversible one, λ is the second eigenvalue of P and σ the second largest |eigenvalue|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc._checks import check_choice, is_number
from nonloc.ops.arithmetic import inverse_root_or_zero
from nonloc.ops.bounds import has_symmetric_kernel
from nonloc.processes.jump.stationary import LARGEST_CLASSES, LARGEST_DENSE, closed_classes, valid_positions
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.krylov import dense_exponential, lanczos

METHODS = ("auto", "dense", "lanczos")
# An eigenvalue this close to 1, times M, is 1 up to rounding: there are several closed classes.
ROUNDING = 16 * torch.finfo(torch.float64).eps
MAX_PRODUCTS = 3000
LANCZOS_TOLERANCE = 1e-5  # of the residual, relative to the gap
FINEST_TIME = 20  # continuous times are accurate to 2^−20, a millionth of the mean waiting time
LONGEST_TIME = 50  # no walk is followed for more than 2^50 jumps


@dataclass(frozen=True, eq=False)
class SpectralGap:
    """The gap, and how reliable it is. Positions with π = 0, which are left for ever, do not count in it.

    value     [B]   1 − λ₂ (absolute: 1 − max |λ|) for a reversible process; otherwise a rate at which deviations from
                    π surely shrink in L²(π). 0: there are several stationary laws, as far as rounding
                    shows (absolute: or the walk is periodic, or a step of a process that is not reversible shrinks
                    nothing)
    kind      "exact": from all eigenvalues; "estimate": by Lanczos, from above, for its λ₂ is never too large
    absolute  whether it is that of discrete time with h = 1
    residual  [B]   of Lanczos: an eigenvalue lies this close to its λ₂; None for "exact"

    >>> from nonloc.processes import JumpProcess, from_edge_index
    >>> path = from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))  # eigenvalues 1, 0 and −1
    >>> gap = JumpProcess(path).spectral_gap()
    >>> round(float(gap.value), 6), gap.kind
    (1.0, 'exact')
    """

    value: Tensor
    kind: str
    absolute: bool
    residual: Tensor | None = None

    def __float__(self) -> float:
        """The value, for a batch of one."""
        return float(self.value)


@dataclass(frozen=True, eq=False)
class MixingTime:
    """The first time at which max_i ½ Σ_j |P_t(i, j) − π_j| ≤ epsilon, over the starts i that are not left for ever.

    bound     [B]   log(1 / (ε √π_min)) / gap, which is never too small: an exact gap is counted less its rounding,
                    M 2⁻⁴⁸. Infinite where nothing is left of it
    exact     [B]   the time itself (continuous: to 1e-6, or 1e-10 of it), where the gap is "exact"; else None. Infinite
                    where it never comes (the gap is then 0), and for every epsilon where there are several closed
                    classes; NaN where it has not come after 2⁵⁰ jumps: the gap is that small, or epsilon so small that
                    rounding hides it
    kind      "certified": the bound holds; "estimate": its gap was estimated from above, so it may be too small
    discrete  whether times are steps of the chain with h = 1

    >>> from nonloc import Affinity
    >>> from nonloc.processes import JumpProcess
    >>> same = torch.zeros(1, 4, 1, dtype=torch.float64)  # one jump leads anywhere
    >>> time = JumpProcess(Affinity(same, same, "heat")).mixing_time(epsilon=0.01, discrete=True)
    >>> time.exact.tolist(), time.kind
    ([1.0], 'certified')
    """

    bound: Tensor
    exact: Tensor | None
    kind: str
    epsilon: float
    discrete: bool


def spectral_gap(transitions: Transitions, law: Tensor, absolute: bool, method: str) -> SpectralGap:
    """The gap over the positions with π > 0; positions that no walker visits in the long run do not count."""
    check_choice("method", method, METHODS)
    with torch.no_grad():
        if method == "dense" or (method == "auto" and transitions.positions <= LARGEST_DENSE):
            second, residual = _second_dense(transitions, law, absolute), None
        else:
            is_symmetric = has_symmetric_kernel(transitions.affinity)
            if not is_symmetric:
                # The smallest values of a law that was found by iteration are noise: leave out a billionth of it.
                law = torch.where(law > 1e-9 / transitions.positions, law, 0)
                law = law / law.sum(-1, keepdim=True)
            second, residual = _second_lanczos(transitions, law, absolute, is_symmetric)
    gap = 1 - second
    gap = torch.where(gap <= ROUNDING * transitions.positions, 0, gap)
    # A single position has nothing left to approach; a walker in another closed class never approaches this law.
    gap = torch.where((law > 0).sum(-1) > 1, gap, 1)
    gap = torch.where(_has_several_classes(transitions, law, by_matrix=residual is None), 0, gap)
    return SpectralGap(gap, "exact" if residual is None else "estimate", absolute, residual)


def mixing_time(transitions: Transitions, law: Tensor, gap: SpectralGap, epsilon: float) -> MixingTime:
    """The bound by the gap; and the exact time where the gap is exact."""
    if not is_number(epsilon) or not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be a number between 0 and 1, a distance of laws, got {epsilon!r}")
    epsilon = float(epsilon)
    smallest = torch.where(law > 0, law, torch.inf).amin(-1)
    rounding = ROUNDING * transitions.positions if gap.kind == "exact" else 0.0
    bound = -(epsilon * smallest.sqrt()).log() / (gap.value - rounding).clamp(min=0)
    if gap.kind != "exact":
        return MixingTime(bound, None, "estimate", epsilon, gap.absolute)
    never = _has_several_classes(transitions, law, by_matrix=True)
    times = [
        math.inf if one_never else _exact_time(matrix, one_law, epsilon, gap.absolute)
        for matrix, one_law, one_never in zip(transitions.matrix(), law, never, strict=True)
    ]
    exact = torch.tensor(times, dtype=law.dtype, device=law.device)
    return MixingTime(bound, exact, "certified", epsilon, gap.absolute)


def _has_several_classes(transitions: Transitions, law: Tensor, by_matrix: bool) -> Tensor:
    """[B]: whether there are several closed classes; without the matrix, by the positions that are never left."""
    valid = valid_positions(transitions) > 0
    if by_matrix and transitions.positions <= LARGEST_CLASSES:
        numbers = [closed_classes(*one) for one in zip(transitions.matrix(), valid, strict=True)]
        return torch.tensor([int(one.max()) > 0 for one in numbers], dtype=torch.bool, device=law.device)
    alone = transitions.stays & valid
    return alone.sum(-1) + ((law > 0) & ~alone).any(-1).long() > 1


def _second_dense(transitions: Transitions, law: Tensor, absolute: bool) -> Tensor:
    """λ or σ [B] from the matrix."""
    root, inverse = law.sqrt(), inverse_root_or_zero(law)
    similar = root.unsqueeze(-1) * transitions.matrix() * inverse.unsqueeze(-2)
    top = root.unsqueeze(-1) * root.unsqueeze(-2)
    if absolute:
        return torch.linalg.matrix_norm(similar - top, 2)
    # √π and positions with π = 0 get eigenvalues below all others, which are ≥ −1.
    below = 3 * top + torch.diag_embed(2 * (law == 0).to(law.dtype))
    return torch.linalg.eigvalsh(0.5 * (similar + similar.mT) - below)[:, -1]


def _second_lanczos(
    transitions: Transitions, law: Tensor, absolute: bool, is_symmetric: bool
) -> tuple[Tensor, Tensor]:
    """λ or σ [B] from products alone, from below, and the residual."""
    root, inverse = law.sqrt(), inverse_root_or_zero(law)

    def without_top(v: Tensor) -> Tensor:
        return v - root * (root * v).sum(-1, keepdim=True)

    def forward(v: Tensor) -> Tensor:
        return root * transitions.average((inverse * v).unsqueeze(-1)).squeeze(-1)

    def backward(v: Tensor) -> Tensor:
        return inverse * transitions.move((root * v).unsqueeze(-1)).squeeze(-1)

    def apply(v: Tensor) -> Tensor:
        rest = without_top(v)
        if absolute:
            image = forward(forward(rest)) if is_symmetric else backward(forward(rest))
        else:
            image = forward(rest) if is_symmetric else 0.5 * (forward(rest) + backward(rest))
        # Rounding brings √π back. It gets an eigenvalue below all others, as in `_second_dense`, which may be below 0.
        return without_top(image) - 2 * (v - rest)

    def is_enough(value: Tensor, residual: Tensor) -> Tensor:
        return residual <= LANCZOS_TOLERANCE * (1 - value).clamp(min=1e-12)

    start = torch.rand(law.shape, generator=torch.Generator().manual_seed(0), dtype=law.dtype)
    start = without_top((law > 0) * (start.to(law.device) - 0.5))
    _, value, residual = lanczos(apply, start, MAX_PRODUCTS, is_enough)
    return (value.clamp(min=0).sqrt(), residual) if absolute else (value, residual)


def _exact_time(matrix: Tensor, law: Tensor, epsilon: float, discrete: bool) -> float:
    """Double the time until the walk has mixed, then halve the step on the way back; the distance never grows."""
    starts = law > 0

    def is_mixed(power: Tensor) -> bool:
        return bool((power[starts] - law).abs().sum(-1).max() <= 2 * epsilon)

    identity = torch.eye(len(law), dtype=law.dtype, device=law.device)
    if is_mixed(identity):
        return 0.0

    def exponential(time: float) -> Tensor:
        return dense_exponential(time * (matrix - identity).unsqueeze(0))[0]

    powers = [(1.0, matrix if discrete else exponential(1.0))]
    while not is_mixed(powers[-1][1]):
        time, power = powers[-1]
        if time >= 2**LONGEST_TIME:
            # A walk in step is kept out of some positions for ever.
            is_in_step = discrete and bool((power[starts][:, starts] == 0).any())
            return math.inf if is_in_step else math.nan
        power = power @ power
        powers.append((2 * time, power / power.sum(-1, keepdim=True)))
    if not discrete:
        shorter = [2.0**-k for k in range(FINEST_TIME, 0, -1)]
        powers = [(time, exponential(time)) for time in shorter] + powers
    elapsed, state = 0.0, identity
    for time, power in reversed(powers):
        further = state @ power
        if not is_mixed(further):
            elapsed, state = elapsed + time, further
    return elapsed + powers[0][0]
