"""JumpProcess: a walker that jumps from i to j with probability K_ij, the Markov process of the operator."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from nonloc._checks import check_flag, is_number, shown
from nonloc.ops import Affinity, SparseAffinity
from nonloc.ops.affinity import zero_masked
from nonloc.ops.arithmetic import inverse_or_zero
from nonloc.ops.bounds import STOCHASTIC, has_negative_entries, has_symmetric_kernel
from nonloc.ops.functional import check_signal, compute_dtype
from nonloc.processes.jump.mixing import MixingTime, SpectralGap, mixing_time, spectral_gap
from nonloc.processes.jump.paths import sample_paths
from nonloc.processes.jump.stationary import BALANCE_TOLERANCE, balance_residual, class_laws, stationary_law
from nonloc.processes.jump.transitions import Transitions
from nonloc.processes.kernel import check_affinity
from nonloc.processes.process import Process

ROUNDING = 1e4  # times eps: what a long simulation may leave below 0
SMALLEST_SHARE = 1e-100  # of the largest π: below it, p/π is a quotient of numbers too small for one


class JumpProcess(Process):
    """The Markov jump process with K_ij = P(i → j), whose laws move by ∂p = Kᵀp − p.

    A state is a law p [B, M, C], or C laws: p_i is the probability of position i, not its density (which is p_i / μ_i
    where there is a measure). In continuous time a walker waits for a time with an exponential law of mean 1 and then
    jumps. In discrete time it jumps with probability h in each step of length h. A walker at a masked position, or
    where the row of K is empty (𝒞_i = 0), stays there for ever.

    `simulate(process, p)` is the master equation: stepper="euler" its discrete form p + h (Kᵀp − p), "exact" its
    continuous one. The energy of a law is that of its density p/π under the stationary law, which never grows; it is
    None where Ω is not symmetric. The weighted mean is the plain one: Σ_i p_i is conserved.

    affinity   normalize "row" or "sinkhorn", so that rows sum to 1, and nowhere negative. A gaussian or heat kernel is
               stored as a matrix up to 256 MiB, as in `Diffusion`

    >>> from nonloc.processes import JumpProcess, from_edge_index
    >>> path = from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> JumpProcess(path).stationary_law()
    tensor([[0.2500, 0.5000, 0.2500]], dtype=torch.float64)
    >>> JumpProcess(path).rates()[0, 1]
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, affinity: Affinity | SparseAffinity) -> None:
        _check(affinity)
        self.affinity: Affinity | SparseAffinity = affinity
        self._ready: dict[torch.dtype, Transitions] = {}
        self._law: Tensor | None = None

    def rate(self, z: Tensor) -> Tensor:
        """Kᵀp − p [B, M, C] of a law p [B, M, C]."""
        check_signal(self.affinity, z)
        return self._change(z)

    def evolve(self, law: Tensor, step_size: float = 1.0) -> Tensor:
        """The law [B, M, C] after one step of length h ≤ 1, without a matrix: p + h (Kᵀp − p)."""
        step_size = _checked_step(step_size)
        check_signal(self.affinity, law, "law")
        return law + step_size * self._change(law)

    def expect(self, f: Tensor, step_size: float = 1.0) -> Tensor:
        """The mean of f [B, M, C] after one step, by the start of the walker: f_i + h Σ_j K_ij (f_j − f_i).

        For h = 1 that is K f, because rows sum to 1: the paper's two discrete forms agree. It is the adjoint of
        `evolve`: Σ_i p_i expect(f)_i = Σ_i evolve(p)_i f_i. Both do the same to a density only where K is symmetric.
        """
        step_size = _checked_step(step_size)
        check_signal(self.affinity, f, "f")
        transitions = self._transitions(compute_dtype(self.affinity, f))
        return f + step_size * transitions.difference(f.to(transitions.dtype)).to(f.dtype)

    def rates(self) -> Tensor:
        """γ [B, M, M] in float64: the mean number of jumps i → j in a unit of time of a walker at i; 0 for i = j.

        For small M.
        """
        rates = self._wide.matrix()
        rates.diagonal(dim1=-2, dim2=-1).zero_()
        return rates

    def transition_matrix(self, step_size: float = 1.0) -> Tensor:
        """I + h (K − I) [B, M, M] in float64: p_ij = h γ_ij for i ≠ j, and rows sum to 1. For small M.

        `evolve` and `simulate` do the same to a law without the matrix.
        """
        step_size = _checked_step(step_size)
        identity = torch.eye(self.affinity.positions, dtype=torch.float64, device=self._wide.sums.device)
        return (1 - step_size) * identity + step_size * self._wide.matrix()

    def sample_paths(
        self,
        num_walkers: int,
        num_steps: int | None = None,
        *,
        until: float | None = None,
        step_size: float = 1.0,
        start: int | Tensor | None = None,
        sample: int = 0,
        only_final: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Positions [num_steps + 1, num_walkers] (int64) of independent walkers, the start among them.

        num_steps   discrete time: this many steps, in each of which a walker jumps with probability `step_size`
        until       continuous time: walkers jump after exponential waiting times; positions are returned for
                    num_steps + 1 times, equally spaced from 0 to `until` (num_steps is 1 when left out)
        start       a position for all; positions [num_walkers]; a law [M] to draw them from; None: any valid position
        sample      which kernel of the batch to walk on
        only_final  return the last positions alone [num_walkers], in memory that does not grow with num_steps
        generator   a torch.Generator on the affinity's device, for walks that can be repeated

        For large M the M × M matrix is never stored: the rows of occupied positions are computed, a block at a time.
        """
        return sample_paths(
            self._wide,
            num_walkers,
            num_steps,
            until=until,
            step_size=_checked_step(step_size),
            start=start,
            sample=sample,
            only_final=only_final,
            generator=generator,
        )

    def stationary_law(self) -> Tensor:
        """π [B, M] in float64 with Kᵀπ = π and Σ π = 1.

        Known for a symmetric Ω: in proportion to μ 𝒞 under "row", to μ under "sinkhorn". Otherwise computed, to a
        residual of 1e-12 or with a NotSolvedError; from M = 513 on that leaves an error of about 1e-12 / gap.
        Where positions do not all reach one another there may be several such laws; this is one of them. See
        `stationary_laws`.
        """
        if self._law is None:
            self._law = stationary_law(self._wide)
        return self._law

    def stationary_laws(self, sample: int = 0) -> Tensor:
        """The laws [K, M] (float64) of the closed classes of one sample; every stationary law is a mixture of them.

        A closed class is a set of positions that reach one another and that no walker leaves: K = 1 where all positions
        reach one another, and one class for each component of a graph that falls apart. For M ≤ 2048.
        """
        return class_laws(self._wide, sample)

    def balance_residual(self) -> Tensor:
        """[B]: the largest violation of π_i K_ij = π_j K_ji on fixed vectors, relative to the flow there."""
        return balance_residual(self._wide, self.stationary_law())

    def is_reversible(self) -> bool:
        """Whether detailed balance π_i K_ij = π_j K_ji holds by value, in every sample of the batch."""
        return bool((self.balance_residual() <= BALANCE_TOLERANCE).all())

    def spectral_gap(self, *, absolute: bool = False, method: str = "auto") -> SpectralGap:
        """The rate at which laws approach π in L²(π), where walkers start with π > 0; see `SpectralGap`.

        absolute  False: of the process in continuous time, 1 − λ₂. True: of the chain with h = 1, 1 − max |λ| over
                  all other eigenvalues λ, which is 0 for a periodic one
        method    "dense": all eigenvalues, exact; "lanczos": an estimate, without a matrix; "auto": by M
        """
        check_flag("absolute", absolute)
        return spectral_gap(self._wide, self.stationary_law(), absolute, method)

    def mixing_time(
        self, epsilon: float = 0.25, *, discrete: bool = False, method: str = "auto"
    ) -> MixingTime:
        """When every walker's law is within `epsilon` of π in total variation, from each start with π > 0.

        See `MixingTime`. How long a walker takes from a position that is left for ever is not counted.

        discrete  True: in steps of the chain with h = 1, instead of continuous time
        method    as in `spectral_gap`; where the gap is exact, the exact time is computed as well as the bound
        """
        check_flag("discrete", discrete)
        gap = self.spectral_gap(absolute=discrete, method=method)
        return mixing_time(self._wide, self.stationary_law(), gap, epsilon)

    def check_state(self, z: Tensor) -> None:
        """A ValueError where z [B, M, C] is negative beyond rounding: it is then no law."""
        check_signal(self.affinity, z)
        seen = zero_masked(z, self.affinity.mask)
        rounding = ROUNDING * torch.finfo(z.dtype).eps * seen.abs().amax(1, keepdim=True)
        if bool((seen < -rounding).any()):
            raise ValueError(
                f"a law must be ≥ 0, for it is made of probabilities, and the smallest value here is "
                f"{float(seen.min()):.3g}; begin with p / p.sum(1, keepdim=True), p = z.clamp(min=0), or use "
                "Diffusion(affinity) for a signal of either sign"
            )

    def checked_euler_step(self, step_size: float) -> float:
        """h ≤ 1, for it is the probability of a jump."""
        return _checked_step(step_size)

    def inner_weights(self) -> Tensor | None:
        """1/π where Ω is symmetric: Kᵀ − I is then self-adjoint and dissipative in Σ_i u_i v_i / π_i."""
        law = self._dividing_law
        if law is None:
            return None
        # Nothing arrives where π = 0, and nothing leaves: any weight serves there.
        return torch.where(law > 0, law.amax(-1, keepdim=True) * inverse_or_zero(law), 1)

    def mean_weights(self) -> Tensor:
        """Ones [B, M]: the total probability is conserved."""
        return torch.ones_like(self._wide.sums.squeeze(-1))

    def energy(self, z: Tensor) -> Tensor | None:
        """½ Σ_ij π_i K_ij (f_i − f_j)² [B] of the density f = p/π, where Ω is symmetric and walkers leave no position
        with π = 0, else None."""
        check_signal(self.affinity, z)
        law = self._dividing_law
        if law is None:
            return None
        law = law.unsqueeze(-1)
        wide = zero_masked(z, self.affinity.mask).to(torch.float64)
        # The stationary part has no energy; without it, little cancels.
        rest = wide - wide.sum(1, keepdim=True) * law
        energy = -(rest * inverse_or_zero(law) * self._change(rest)).sum((1, 2))
        return energy.to(torch.promote_types(z.dtype, torch.float32))

    def _change(self, law: Tensor) -> Tensor:
        """Kᵀp − p of a law that was checked."""
        transitions = self._transitions(compute_dtype(self.affinity, law))
        return transitions.change(law.to(transitions.dtype)).to(law.dtype)

    @cached_property
    def _dividing_law(self) -> Tensor | None:
        """π where densities p/π have a meaning: Ω is symmetric, and a walker at a position with π ≈ 0 stays there."""
        # Cheap to check. It makes the stationary law known; computing a law for a trajectory would not be cheap.
        if not has_symmetric_kernel(self.affinity):
            return None
        law = self.stationary_law()
        is_nothing = law <= SMALLEST_SHARE * law.amax(-1, keepdim=True)
        return None if bool((is_nothing & (self._wide.sums.squeeze(-1) != 0)).any()) else law

    @property
    def _wide(self) -> Transitions:
        return self._transitions(torch.float64)

    def _transitions(self, dtype: torch.dtype) -> Transitions:
        if dtype not in self._ready:
            self._ready[dtype] = Transitions(self.affinity, dtype)
        return self._ready[dtype]

    def __repr__(self) -> str:
        a = self.affinity
        kind = a.kind if isinstance(a, Affinity) else "sparse"
        return f"JumpProcess({kind} {a.normalize}, B = {a.batch}, M = {a.positions})"


def _check(affinity: Affinity | SparseAffinity) -> None:
    check_affinity(affinity)
    if affinity.normalize not in STOCHASTIC:
        raise ValueError(
            f"a jump process needs rows that sum to 1, and normalize={affinity.normalize!r} does not see to that; "
            f"use one of {', '.join(STOCHASTIC)}"
        )
    if has_negative_entries(affinity):
        fix = (
            'use features ≥ 0 (a ReLU) on both sides, or kind="gaussian" or "heat"'
            if isinstance(affinity, Affinity)
            else "use a matrix ≥ 0, such as matrix.abs()"
        )
        raise ValueError(f"affinity has negative entries, which are no probabilities; {fix}")


def _checked_step(step_size: float) -> float:
    if not is_number(step_size) or not 0 < step_size <= 1:
        raise ValueError(
            f"step_size must be a number in (0, 1], the probability of a jump in one step, got {shown(step_size)}; a "
            'longer time is several steps, or simulate with stepper="exact" or "implicit"'
        )
    return float(step_size)
