"""EpochPlan: which images the steps of an epoch see, and what seeds their chance, ready on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nonloc_paper.training.randomness import epoch_order, step_seed
from nonloc_paper.training.recipe import Recipe


class Batch(NamedTuple):
    """What one step is given.

    indices         int64 [B] of the images
    seed            of its augmentation and noise
    seed_on_device  the same, int64 [1]
    """

    indices: Tensor
    seed: int
    seed_on_device: Tensor


@dataclass(frozen=True)
class EpochPlan:
    """All steps of an epoch; a function of the recipe's seed and the epoch alone."""

    batch_size: int
    order: Tensor
    seeds: tuple[int, ...]
    seeds_on_device: Tensor

    @classmethod
    def make(cls, recipe: Recipe, epoch: int, images: int, steps: int, device: torch.device) -> EpochPlan:
        """Of an epoch over `images` images in `steps` steps; does not wait for the device."""
        seeds = tuple(step_seed(recipe.seed, epoch, step) for step in range(steps))
        order = epoch_order(recipe.seed, epoch, images)
        return cls(recipe.batch_size, _send(order, device), seeds, _send(torch.tensor(seeds), device))

    def batch(self, step: int) -> Batch:
        first = step * self.batch_size
        indices = self.order[first : first + self.batch_size]
        return Batch(indices, self.seeds[step], self.seeds_on_device[step : step + 1])


def _send(values: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
