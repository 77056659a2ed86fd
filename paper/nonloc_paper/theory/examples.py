"""What the claims of Section 4.4 add to a case: weights, kernels, starts and reactions; and tests of what they are."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import Affinity
from nonloc.processes.stability.cfl import cfl_limit
from nonloc_paper.theory.case import Case, is_nothing, is_semidefinite

# Weights with which a step enlarges some signal, however small they are: one sharpens, one turns.
ALWAYS_GROWING = torch.tensor([[[-1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)
# Large enough that z e^(z²) blows up at once, and not in the first step.
BLOW_UP_START = 0.5
LIPSCHITZ = 3.0  # constant of the reaction
STRENGTH = 2.0  # of the diffusion: D gap in units of the constant
# A reaction that decays (trace −3, determinant 2): its second channel holds the first one back.
HELD_BACK = torch.tensor([[1.0, -2.0], [3.0, -4.0]], dtype=torch.float64)
# W of a diffusion in the second channel alone, in units of 1/gap.
SECOND_ALONE = torch.diag(torch.tensor([0.0, 10.0], dtype=torch.float64))


def small_weights(case: Case) -> Tensor:
    """Return W_n [N, 2, 2] with the eigenvalues 0 and 2/λ_max(−ℒ), each along other directions."""
    angles = torch.arange(10, dtype=torch.float64)
    along = torch.stack([angles.cos(), angles.sin()], -1)
    return cfl_limit(case.affinity).limit * along.unsqueeze(2) * along.unsqueeze(1)


def small_weights_satisfy_cfl(case: Case) -> bool:
    largest = 2 / case.kernel_rates[-1] * torch.eye(2, dtype=torch.float64)
    return all(is_semidefinite(one) and is_semidefinite(largest - one) for one in small_weights(case))


def constant_kernel(z: Tensor, normalize: str) -> Affinity:
    """ω ≡ 1 in every state."""
    alike = torch.zeros_like(z)
    return Affinity(alike, alike, "heat", normalize)


def gaussian_kernel(z: Tensor, normalize: str) -> Affinity:
    """ω = exp(z_i·z_j), which follows the state."""
    return Affinity(z, z, "gaussian", normalize)


def some_states(case: Case) -> list[Tensor]:
    """Return z = (1, −1, 0, …), then others."""
    opposite = torch.zeros_like(case.start)
    opposite[0, :2, 0] = torch.tensor([1.0, -1.0])
    return [opposite, case.start, 1e-2 * case.start, case.start - case.start.mean(1)]


def constant_kernel_is_one(case: Case) -> bool:
    kernels = [Case.of(constant_kernel(z, case.normalize), z) for z in some_states(case)]
    return all(is_nothing(kernel.omega - 1, kernel.omega) for kernel in kernels)


def gaussian_kernel_is_exponential(case: Case) -> bool:
    kernels = [Case.of(gaussian_kernel(z, case.normalize), z) for z in some_states(case)]
    ratios = [kernel.omega / torch.exp(kernel.start[0] @ kernel.start[0].T) for kernel in kernels]
    return all(is_nothing(ratio - 1, ratio) for ratio in ratios)


def blow_up_start(case: Case) -> Tensor:
    return torch.full((1, case.positions, 1), BLOW_UP_START, dtype=torch.float64)


def blow_up_starts_alike(case: Case) -> bool:
    start = blow_up_start(case)
    return bool(start.all()) and is_nothing(start - start[:, :1], start)


def reaction_weights(case: Case) -> tuple[Tensor, Tensor]:
    """Return W₁ and W₂ of F(z) = W₂ f(W₁ f(z)): random and ≥ 0, so that F drives positions apart."""
    generator, channels = torch.Generator().manual_seed(0), case.start.shape[-1]
    first, second = (
        torch.rand(channels, channels, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    scale = (LIPSCHITZ / (torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(second, 2))).sqrt()
    return scale * first, scale * second


def diffusion_strength(case: Case) -> float:
    """Return D; where the kernel has no gap, no D is enough."""
    return STRENGTH * LIPSCHITZ / float(case.kernel_rates[1]) if case.has_gap else 1.0


def diffusion_outweighs_reaction(case: Case) -> bool:
    """Whether D gap > ‖W₂‖ ‖W₁‖, which is no less than Lip F: ReLU enlarges no difference."""
    first, second = (torch.linalg.matrix_norm(weight, 2) for weight in reaction_weights(case))
    return bool(diffusion_strength(case) * case.kernel_rates[1] > first * second)
