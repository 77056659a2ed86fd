"""Case: one kernel, a start and its processes, with every property that a hypothesis names, read off numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import torch
from torch import Tensor

from nonloc.ops import Affinity, kernel_matrix, self_adjoint_weights
from nonloc.processes.diffusion import DampedFlow, Diffusion
from nonloc.processes.jump.stationary import reachable_positions, stationary_weights
from nonloc.processes.process import Process
from nonloc.processes.simulate import simulate

ROUNDING = 1e-12  # what counts as equal, relative to the largest entry
CLEARLY_POSITIVE = 1e-9  # a smaller eigenvalue, relative to the largest, is no proof that it is positive
CHANNELS = 3
# Positions are about 1 apart: neighbours see each other, and the kernel is clearly positive definite.
SCALE = 0.5


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel, a start, and the processes that are claimed to have the paper's properties.

    affinity  of one sample: the hypotheses are about it
    start     z [1, M, C]
    forward, backward   the diffusion and its time reversal
    damped, growing     the original operation with negative and with positive weights
    The claims are about the processes, and use nothing of them but their rates.
    """

    affinity: Affinity
    start: Tensor
    forward: Process
    backward: Process
    damped: Process
    growing: Process

    @classmethod
    def of(cls, affinity: Affinity, start: Tensor) -> Case:
        """With the processes of the affinity."""
        forward, backward = Diffusion(affinity), Diffusion(affinity, backwards=True)
        return cls(
            affinity, start, forward, backward, DampedFlow(affinity), DampedFlow(affinity, backwards=True)
        )

    @property
    def normalize(self) -> str:
        return self.affinity.normalize

    @property
    def positions(self) -> int:
        return self.affinity.positions

    @cached_property
    def measure(self) -> Tensor:
        """μ [M]."""
        measure = self.affinity.measure
        return torch.ones(self.positions, dtype=torch.float64) if measure is None else measure.double()

    @cached_property
    def omega(self) -> Tensor:
        """Ω [M, M]."""
        return kernel_matrix(replace(self.affinity, normalize="none", measure=None))[0].double()

    @cached_property
    def kernel(self) -> Tensor:
        """K [M, M]."""
        return kernel_matrix(self.affinity)[0].double()

    @cached_property
    def laplacian(self) -> Tensor:
        """−ℒ [M, M], by what the forward process does to each unit signal."""
        return -matrix_of(self.forward, self.positions)

    @cached_property
    def balance(self) -> Tensor:
        """π [M] of detailed balance with Σ π = 1; the measure where there is no balance."""
        weights = self_adjoint_weights(self.affinity)
        chosen = self.measure if weights is None else weights[0].double()
        return chosen / chosen.sum()

    @property
    def has_balance(self) -> bool:
        """Whether there are weights π > 0 of detailed balance. Under row, row sums below 0 are none."""
        weights = self_adjoint_weights(self.affinity)
        return weights is not None and bool((weights > 0).all())

    @cached_property
    def plain(self) -> Tensor:
        """μ [M] with Σ μ = 1."""
        return self.measure / self.measure.sum()

    @cached_property
    def law(self) -> Tensor | None:
        """The stationary law [M] of the jumps i → j; None where some rates are negative or there is none."""
        rates = self.kernel - torch.diag(self.kernel.diagonal())
        law = stationary_weights(rates) if bool((rates >= 0).all()) else None
        return None if law is None else law / law.sum()

    @property
    def has_law(self) -> bool:
        return self.law is not None

    @property
    def is_symmetric(self) -> bool:
        return is_nothing(self.omega - self.omega.T, self.omega)

    @property
    def is_one_sided(self) -> bool:
        return not self.is_symmetric

    @property
    def is_nonnegative(self) -> bool:
        return bool((self.omega >= 0).all())

    @property
    def is_connected(self) -> bool:
        return bool(reachable_positions(self.omega).all())

    @cached_property
    def kernel_rates(self) -> Tensor:
        """λ [M] of diag(K1) − K from the smallest: by the kernel, whatever the processes do."""
        return modes(self.balance, torch.diag(self.kernel.sum(1)) - self.kernel)[0]

    @property
    def has_gap(self) -> bool:
        """Whether λ₂ of diag(K1) − K is more than rounding. A connection of 1e-16 joins nothing."""
        return is_gap(self.kernel_rates)

    @property
    def is_not_zero(self) -> bool:
        return bool(self.omega.any())

    @property
    def is_definite(self) -> bool:
        values = torch.linalg.eigvalsh(self.omega) if self.is_symmetric else torch.zeros(2)
        return float(values[0]) > CLEARLY_POSITIVE * float(values[-1])

    @property
    def has_symmetric_kernel(self) -> bool:
        """μ_i K_ij = μ_j K_ji: what the paper assumes of 𝒦."""
        flow = self.measure.unsqueeze(1) * self.kernel
        return is_nothing(flow - flow.T, flow)

    @property
    def is_stochastic(self) -> bool:
        """Σ_j K_ij = 1: the paper's 𝒞_i = 1."""
        return is_nothing(self.kernel.sum(1) - 1, self.kernel.sum(1))

    @cached_property
    def rates(self) -> tuple[Tensor, Tensor]:
        """(λ [M] from the smallest, modes [M, M] as columns) of −ℒ in the norm of π."""
        return modes(self.balance, self.laplacian)

    @property
    def gap(self) -> float:
        """The smallest rate but for that of constants."""
        return float(self.rates[0][1])

    @property
    def scale(self) -> float:
        """The gap, or 1 where a wrong operator has none."""
        return self.gap if is_gap(self.rates[0]) else 1.0

    @cached_property
    def course(self) -> tuple[Tensor, Tensor]:
        """(times, states) of the forward flow while most of it happens."""
        return path(self.forward, self.start, self.time(3.0))

    @cached_property
    def end(self) -> Tensor:
        """z [M, C] when only rounding is left of what decays."""
        return path(self.forward, self.start, self.time(30.0), saved=3)[1][-1]

    def time(self, gaps: float) -> float:
        """Return a time long enough to see the flow settle, also where a wrong operator has no gap."""
        return gaps / self.scale

    def norm(self, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return (Σ_i π_i |z_i|²)^½ [...] of z [..., M, C]; π is the balance when left out."""
        weights = self.balance if weights is None else weights
        return (weights.unsqueeze(-1) * z.square()).sum((-2, -1)).sqrt()


def symmetric_case(normalize: str, positions: int, seed: int) -> Case:
    """Return a heat kernel on one set of scattered points, for both sides."""
    points = scattered_points(positions, seed)
    return _heat_case(points, points, normalize, seed)


def one_sided_case(normalize: str, positions: int, seed: int) -> Case:
    """Return a heat kernel on two sets of scattered points, as separate embeddings make it."""
    return _heat_case(
        scattered_points(positions, seed), scattered_points(positions, seed + 1), normalize, seed
    )


def _heat_case(left: Tensor, right: Tensor, normalize: str, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed + 1)
    start = torch.randn(1, left.shape[1], CHANNELS, generator=generator, dtype=torch.float64)
    return Case.of(Affinity(left, right, "heat", normalize, SCALE), start)


def scattered_points(positions: int, seed: int) -> Tensor:
    """Return [1, M, 2]: a grid with every point moved a little, so that no two positions are alike."""
    axis = torch.arange(ceil(positions**0.5), dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)[:positions]
    generator = torch.Generator().manual_seed(seed)
    return (grid + 0.6 * (torch.rand(grid.shape, generator=generator, dtype=torch.float64) - 0.5))[None]


def modes(weights: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return (eigenvalues [M] from the smallest, modes [M, M] as columns) of a matrix self-adjoint under π [M]."""
    roots = weights.sqrt()
    values, vectors = torch.linalg.eigh(symmetric_part(roots.unsqueeze(1) * matrix / roots))
    return values, vectors / roots.unsqueeze(1)


def matrix_of(process: Process, positions: int) -> Tensor:
    """Return A [M, M] of a linear process dz/dt = A z."""
    return process.rate(torch.eye(positions, dtype=torch.float64).unsqueeze(0))[0]


def path(process: Process, start: Tensor, time: float, saved: int = 16) -> tuple[Tensor, Tensor]:
    """Return (times [S], states [S, M, C]) of the exact flow of one sample, from 0 to `time`."""
    trajectory = simulate(
        process, start, num_steps=saved, step_size=time / saved, stepper="exact", throw=False
    )
    return trajectory.times, trajectory.states[:, 0]


def mean(weights: Tensor, z: Tensor) -> Tensor:
    """Return Σ_i w_i z_i [..., C] of z [..., M, C], with Σ w = 1."""
    return (weights.unsqueeze(-1) * z).sum(-2)


def symmetric_part(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def is_nothing(difference: Tensor, size: Tensor) -> bool:
    """Whether a difference is rounding, relative to `size`."""
    return bool(difference.abs().max() <= ROUNDING * size.abs().max())


def is_semidefinite(matrix: Tensor) -> bool:
    """Whether a matrix is symmetric, and no eigenvalue is below 0 by more than rounding."""
    values = torch.linalg.eigvalsh(symmetric_part(matrix))
    return is_nothing(matrix - matrix.T, matrix) and bool(values[0] >= -ROUNDING * values.abs().max())


def is_gap(rates: Tensor) -> bool:
    """Whether the second of the rates [M] is above rounding, relative to the largest of them."""
    return bool(rates[1] > CLEARLY_POSITIVE * rates.abs().max())


def rise(values: Tensor) -> float:
    """Return the largest increase from one value to the next, relative to the first; 0 where there is none."""
    return max(0.0, float((values.diff() / values[0]).max()))


def excess(sizes: Tensor, bound: Tensor) -> float:
    """Return how far sizes are above a bound, relative to it; 0 where they are not."""
    return max(0.0, float((sizes / bound).max()) - 1)
