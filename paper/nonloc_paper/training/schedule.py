"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from nonloc_paper.training.recipe import Recipe

# One-cycle's shape, as torch's OneCycleLR has it by default (momentum is not cycled here).
WARM_UP_SHARE = 0.3
START_DIVISOR = 25.0
FINAL_DIVISOR = 1e4


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The rate of step `step`, counted from 0 over the whole run."""
    if recipe.schedule == "constant":
        return recipe.learning_rate
    if recipe.schedule == "step":
        # A milestone m takes effect once m epochs are done.
        passed = sum(milestone <= step // steps_per_epoch for milestone in recipe.milestones)
        return recipe.learning_rate * recipe.gamma**passed
    return _one_cycle(recipe.learning_rate, step, recipe.epochs * steps_per_epoch)


def _one_cycle(maximum: float, step: int, total: int) -> float:
    start = maximum / START_DIVISOR
    peak = WARM_UP_SHARE * total - 1
    if step <= peak:
        return _cosine(start, maximum, step / peak)
    return _cosine(maximum, start / FINAL_DIVISOR, (step - peak) / (total - 1 - peak))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
