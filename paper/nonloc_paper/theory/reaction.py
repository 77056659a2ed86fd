"""Section 4.4: a ResNet as a reaction, and diffusion beside it. A regulariser where it is alike for all channels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nonloc_paper.theory.case import Case, mean
from nonloc_paper.theory.check import Check, conclude

TIME = 1.0
GROWTH = 3.0  # of the reaction's Lipschitz constant
# A stable reaction (trace −3, determinant 2) whose second channel holds the first one back.
HELD_BACK = torch.tensor([[1.0, -2.0], [3.0, -4.0]], dtype=torch.float64)


def diffusion_regularizes(case: Case) -> Check:
    """∂z = F(z) + D ℒz with F(z) = W₂ f(W₁ f(z)): positions are drawn together at the rate D gap − Lip F or faster."""
    gap = case.gap if case.gap > 0 else 1.0
    reaction, lipschitz = _residual_block(case.start.shape[-1])
    strength = 2 * lipschitz / gap
    rate = strength * gap - lipschitz
    size = strength * float(case.rates[0][-1]) + lipschitz
    spread = []
    for amount in (0.0, strength):

        def rate_of_change(z: Tensor, amount: float = amount) -> Tensor:
            return reaction(z) + amount * case.forward.rate(z)

        times, states = _runge_kutta(rate_of_change, case.start, size)
        spread.append(case.norm(states - mean(case.balance, states).unsqueeze(1)))
    alone, together = (each / each[0] for each in spread)
    missed = max(0.0, float((together / torch.exp(-rate * times)).max()) - 1)
    # Where the reaction alone does not drive positions apart there is nothing to show.
    residual = missed if float(alone[-1]) > 1.05 else float("inf")
    return conclude(
        "Section 4.4, regularizer",
        "diffusion beside a ResNet's reaction F draws positions together: spread(t) ≤ spread(0) e^(−(D gap − Lip F) t)",
        "Ω symmetric, ≥ 0 and connected; W = D I with D gap > Lip F",
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative and case.is_connected,
        residual=residual,
        tolerance=1e-6,
        detail=f"at t = {TIME:g} the spread is {float(alone[-1]):.3g} times that of the start without diffusion, "
        f"{float(together[-1]):.2g} with it; the bound is {float(torch.exp(-rate * times[-1])):.2g}",
    )


def diffusion_regularizes_as_stated(case: Case) -> Check:
    """Any diffusion: W = diag(0, d) frees the first channel from the second, and what was stable grows (Turing)."""
    gap = case.gap if case.gap > 0 else 1.0
    weight = torch.diag(torch.tensor([0.0, 10 / gap], dtype=torch.float64))
    growth = []
    for amount in (0.0, 1.0):
        # In the mode λ of −ℒ the process is ż = (J − λ W) z.
        maps = HELD_BACK - amount * case.rates[0].view(-1, 1, 1) * weight
        growth.append(float(torch.linalg.eigvals(maps).real.max()))
    return conclude(
        "Section 4.4, regularizer as stated",
        "a diffusion term with positive weights makes a reaction more stable",
        "Ω symmetric, ≥ 0 and connected; W symmetric and positive semi-definite",
        case.normalize,
        met=case.is_symmetric and case.is_nonnegative and case.is_connected,
        residual=max(0.0, growth[1]),
        tolerance=1e-10,
        detail=f"a reaction that decays like e^({growth[0]:.3g} t) grows like e^({growth[1]:.3g} t) with diffusion in "
        "its second channel alone; W = D I with D gap > Lip F draws together",
        expected="fails",
    )


def _residual_block(channels: int) -> tuple[Callable[[Tensor], Tensor], float]:
    """F(z) = W₂ f(W₁ f(z)) with f = ReLU and random weights ≥ 0, and its Lipschitz constant ‖W₂‖ ‖W₁‖.

    With such weights what is positive grows, so that the positions are driven apart.
    """
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.rand(channels, channels, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    scale = (GROWTH / (torch.linalg.matrix_norm(first, 2) * torch.linalg.matrix_norm(second, 2))).sqrt()
    first, second = scale * first, scale * second
    return lambda z: torch.relu(torch.relu(z) @ first.mT) @ second.mT, GROWTH


def _runge_kutta(rate: Callable[[Tensor], Tensor], start: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """(times [S], states [S, M, C]) of the classical method, with steps small beside 1/size."""
    steps = max(32, int(4 * TIME * size))
    h, z, states = TIME / steps, start, [start]
    for _ in range(steps):
        a = rate(z)
        b = rate(z + h / 2 * a)
        c = rate(z + h / 2 * b)
        d = rate(z + h * c)
        z = z + h / 6 * (a + 2 * b + 2 * c + d)
        states.append(z)
    return h * torch.arange(steps + 1, dtype=torch.float64), torch.cat(states)
