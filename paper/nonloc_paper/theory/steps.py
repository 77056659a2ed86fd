"""Sections 3.1, 4.2 and 4.4: discrete steps with weights. What is small enough, and what sym(W) does not tell."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import propagate
from nonloc.processes.process import Process
from nonloc.processes.simulate import simulate
from nonloc.processes.stability import certify, cfl_limit
from nonloc_paper.theory.case import ROUNDING, Case, matrix_of, path
from nonloc_paper.theory.check import Check, conclude

# Its symmetric part is 0.1 I; the rest turns.
TURNING = torch.tensor([[0.1, 1.0], [-1.0, 0.1]], dtype=torch.float64)
ROTATION = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
NOT_NEGATIVE = "Ω symmetric and ≥ 0"


def stage_is_a_diffusion(case: Case) -> Check:
    """Section 4.2: the stage with W_n = hI is n explicit steps of the diffusion."""
    channels, steps = case.start.shape[-1], 5
    step = 0.5 * cfl_limit(case.affinity).limit
    weights = step * torch.eye(channels, dtype=torch.float64).expand(steps, -1, -1)
    stage = propagate(case.affinity, case.start, weights)
    walked = simulate(case.forward, case.start, num_steps=steps, step_size=step).final
    residual = float((stage - walked).abs().max() / case.start.abs().max())
    return conclude(
        "Section 4.2, network",
        "the stage with W_n = hI is the discrete diffusion Z ← Z + h ℒZ",
        "none",
        case.normalize,
        met=True,
        residual=residual,
        tolerance=ROUNDING,
        detail=f"after {steps} steps they differ by {residual:.1e}",
    )


def steps_up_to_the_limit_are_stable(case: Case) -> Check:
    """Section 4.4, the CFL condition, for W = hI: not above it, and not far below it either."""
    limit = cfl_limit(case.affinity).limit
    roots = case.balance.sqrt()
    identity = torch.eye(case.positions, dtype=torch.float64)
    growth = []
    for size in (limit, 1.05 * limit):
        step = identity + size * matrix_of(case.forward, case.positions)
        growth.append(float(torch.linalg.matrix_norm(roots.unsqueeze(1) * step / roots, 2)))
    residual = max(0.0, growth[0] - 1) if growth[1] > 1.01 else 1.0
    return conclude(
        "Section 4.4, CFL condition",
        "a step with W = hI enlarges no signal up to h = 2/λ_max(−ℒ), and does above",
        NOT_NEGATIVE,
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=residual,
        tolerance=1e-10,
        detail=f"limit {limit:.6g}: growth there {growth[0]:.6g}, and {growth[1]:.6g} at 1.05 of it",
    )


def small_weights_are_stable_as_stated(case: Case) -> Check:
    """Section 4.4 has any weights, as long as they are small enough."""
    limit = cfl_limit(case.affinity).limit
    factors = [certify(case.affinity, [size * limit * ROTATION]).growth - 1 for size in (1.0, 1e-1, 1e-2)]
    return conclude(
        "Section 4.4, small weights as stated",
        "a stage is stable as long as its weights are small enough",
        NOT_NEGATIVE,
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=min(factors),
        tolerance=1e-10,
        detail="W = ε (0 1; −1 0) grows for every ε: by " + ", ".join(f"{one:.1e}" for one in factors),
        expected="fails",
    )


def symmetric_part_decides_as_stated(case: Case) -> Check:
    """Section 3.1: "the effect of W on the decay properties … is determined by … the symmetric part"."""
    size = cfl_limit(case.affinity).limit / 2
    whole = certify(case.affinity, [size * TURNING])
    part = certify(case.affinity, [size * (TURNING + TURNING.T) / 2])
    return conclude(
        "Section 3.1, steps as stated",
        "a step with W grows no more than a step with its symmetric part",
        NOT_NEGATIVE,
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=max(0.0, whole.growth / part.growth - 1),
        tolerance=1e-10,
        detail=f"sym(W) alone gives {part.growth:.4g}, W gives {whole.growth:.4g}; ‖I − λW‖ is what decides",
        expected="fails",
    )


def symmetric_part_decides_the_flow(case: Case) -> Check:
    """In continuous time it does: d/dt ‖z‖² = −2 Σ_λ λ z_λ·sym(W) z_λ."""
    _, states = path(_Weighted(case.forward, TURNING), case.start[..., :2], case.time(3.0))
    sizes = case.norm(states)
    rise = max(0.0, float((sizes.diff() / sizes[0]).max()))
    return conclude(
        "Section 3.1, flow",
        "‖z(t)‖ never grows under ∂z = ℒz Wᵀ, whatever W is beside its symmetric part",
        f"{NOT_NEGATIVE}, sym(W) positive semi-definite",
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative,
        residual=rise,
        tolerance=1e-10,
        detail=f"with W = (0.1 1; −1 0.1) the norm rises by {rise:.1e} at most",
    )


class _Weighted(Process):
    """∂z = (what the process does to z) Wᵀ."""

    def __init__(self, process: Process, weight: Tensor) -> None:
        self._process, self._weight = process, weight

    def rate(self, z: Tensor) -> Tensor:
        return self._process.rate(z) @ self._weight.mT
