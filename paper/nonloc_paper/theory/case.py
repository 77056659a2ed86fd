"""Case: one kernel with everything that the statements ask of it, each told by its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import torch
from torch import Tensor

from nonloc.ops import Affinity, kernel_matrix, self_adjoint_weights
from nonloc.processes.diffusion import DampedFlow, Diffusion
from nonloc.processes.jump.stationary import reachable_positions
from nonloc.processes.process import Process
from nonloc.processes.simulate import simulate

ROUNDING = 1e-12  # what counts as equal, relative to the largest entry


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel, a start, and the processes that are claimed to have the paper's properties.

    affinity  of one sample: the hypotheses are about it
    start     z [1, M, C]
    forward, backward   the diffusion and its time reversal
    damped, growing     the original operation with negative and with positive weights
    The claims are about the processes: they look at nothing of them but their rates.
    """

    affinity: Affinity
    start: Tensor
    forward: Process
    backward: Process
    damped: Process
    growing: Process

    @classmethod
    def of(cls, affinity: Affinity, start: Tensor) -> Case:
        """With the processes that the affinity stands for."""
        return cls(
            affinity,
            start,
            Diffusion(affinity),
            Diffusion(affinity, backwards=True),
            DampedFlow(affinity),
            DampedFlow(affinity, backwards=True),
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
        given = self.affinity.measure
        return torch.ones(self.positions, dtype=torch.float64) if given is None else given.double()

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
        """−ℒ [M, M], read off what the forward process does to each unit signal."""
        return -matrix_of(self.forward, self.positions)

    @cached_property
    def balance(self) -> Tensor:
        """π [M] of detailed balance with Σ π = 1; the measure where there is no balance."""
        found = self_adjoint_weights(self.affinity)
        weights = self.measure if found is None else found[0].double()
        return weights / weights.sum()

    @cached_property
    def plain(self) -> Tensor:
        """μ [M] with Σ μ = 1."""
        return self.measure / self.measure.sum()

    @property
    def is_symmetric(self) -> bool:
        return is_nothing(self.omega - self.omega.T, self.omega)

    @property
    def is_nonnegative(self) -> bool:
        return bool((self.omega >= 0).all())

    @property
    def is_connected(self) -> bool:
        return bool(reachable_positions(self.omega).all())

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

    @cached_property
    def course(self) -> tuple[Tensor, Tensor]:
        """(times, states) of the forward flow while most of it happens."""
        return path(self.forward, self.start, self.time(3.0))

    @cached_property
    def end(self) -> Tensor:
        """z [M, C] when nothing but rounding is left of what decays."""
        return path(self.forward, self.start, self.time(30.0), saved=3)[1][-1]

    def time(self, gaps: float) -> float:
        """A time long enough to see the flow settle, also where a wrong operator has no gap."""
        return gaps / self.gap if self.gap > 1e-6 else gaps

    def norm(self, z: Tensor, weights: Tensor | None = None) -> Tensor:
        """(Σ_i π_i |z_i|²)^½ [...] of z [..., M, C]; π is the balance when left out."""
        weights = self.balance if weights is None else weights
        return (weights.unsqueeze(-1) * z.square()).sum((-2, -1)).sqrt()


def modes(weights: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(eigenvalues [M] from the smallest, modes [M, M] as columns) of a matrix that is self-adjoint under π [M]."""
    roots = weights.sqrt()
    turned = roots.unsqueeze(1) * matrix / roots
    values, vectors = torch.linalg.eigh((turned + turned.T) / 2)
    return values, vectors / roots.unsqueeze(1)


def matrix_of(process: Process, positions: int) -> Tensor:
    """A [M, M] of a linear process dz/dt = A z."""
    units = torch.eye(positions, dtype=torch.float64).unsqueeze(0)
    return process.rate(units)[0]


def path(process: Process, start: Tensor, time: float, saved: int = 16) -> tuple[Tensor, Tensor]:
    """(times [S], states [S, M, C]) of the exact flow of one sample, from 0 to `time`."""
    found = simulate(process, start, num_steps=saved, step_size=time / saved, stepper="exact", throw=False)
    return found.times, found.states[:, 0]


def mean(weights: Tensor, z: Tensor) -> Tensor:
    """Σ_i w_i z_i [..., C] of z [..., M, C], with Σ w = 1."""
    return (weights.unsqueeze(-1) * z).sum(-2)


def is_nothing(difference: Tensor, size: Tensor) -> bool:
    """Whether a difference is rounding beside what it is a difference of."""
    return bool(difference.abs().max() <= ROUNDING * size.abs().max())


def scattered_points(positions: int, seed: int) -> Tensor:
    """[1, M, 2]: a grid with every point moved a little, so that no two positions are alike."""
    side = ceil(positions**0.5)
    axis = torch.arange(side, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)[:positions]
    generator = torch.Generator().manual_seed(seed)
    return (grid + 0.6 * (torch.rand(grid.shape, generator=generator, dtype=torch.float64) - 0.5)).unsqueeze(
        0
    )


def random_signal(positions: int, channels: int, seed: int) -> Tensor:
    """z [1, M, C] with normal entries."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, positions, channels, generator=generator, dtype=torch.float64)
