"""Section 4.2: the reversed flow grows, and is stable in finite time."""

from __future__ import annotations

import math

import torch

from nonloc_paper.theory.case import Case, path
from nonloc_paper.theory.check import Check, conclude
from nonloc_paper.theory.operator import SYMMETRIC


def reversal_is_stable_in_finite_time(case: Case) -> Check:
    """‖z(t)‖ ≤ e^(λ_max t) ‖z(0)‖, attained, and undone by the forward flow."""
    largest = float(case.rates[0][-1])
    horizon = 4 / largest
    times, states = path(case.backward, case.start, horizon)
    bound = case.norm(states[0]) * torch.exp(largest * times)
    missed = max(0.0, float((case.norm(states) / bound).max()) - 1)
    fastest = case.rates[1][:, -1].view(1, -1, 1)
    _, grown = path(case.backward, fastest, horizon, saved=2)
    attained = abs(float(case.norm(grown[-1]) / case.norm(grown[0])) / math.exp(largest * horizon) - 1)
    _, returned = path(case.forward, states[-1:].clone(), horizon, saved=2)
    undone = float((returned[-1] - states[0]).abs().max() / states[0].abs().max())
    return conclude(
        "Section 4.2, reversal",
        "backwards ‖z(t)‖ ≤ e^(λt) ‖z(0)‖ with λ = λ_max(−ℒ), the fastest mode attains it, and the flow can be undone",
        SYMMETRIC,
        case.normalize,
        met=case.is_symmetric,
        residual=max(missed, attained, undone),
        tolerance=1e-8,
        detail=f"λ_max = {largest:.6g}; back and forth loses {undone:.1e}",
    )
