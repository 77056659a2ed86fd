"""Plan of a run: the images, the seed and the learning rate of every step.

All are functions of the recipe and the position in the run, so that a run can stop after any step and continue
identically. The order of the images depends on (seed, epoch) alone, augmentation and noise on (seed, epoch, step)
alone. Nothing is drawn from torch's global generators.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nonloc_paper.training.machine import plain_defaults
from nonloc_paper.training.recipe import Recipe

# The shape of "onecycle": the defaults of torch's OneCycleLR, but momentum is not cycled.
WARM_UP_SHARE = 0.3
START_DIVISOR = 25.0
FINAL_DIVISOR = 1e4


class Batch(NamedTuple):
    """The input of one step.

    indices         int64 [B] of the images
    seed            of its augmentation and noise
    seed_on_device  the same, int64 [1]
    """

    indices: Tensor
    seed: int
    seed_on_device: Tensor


@dataclass(frozen=True)
class EpochPlan:
    """All batches of an epoch."""

    batch_size: int
    order: Tensor
    seeds: tuple[int, ...]
    seeds_on_device: Tensor

    @classmethod
    def make(cls, recipe: Recipe, images: int, steps: int, device: torch.device, epoch: int) -> EpochPlan:
        """Plan an epoch of `steps` steps over `images` images, without waiting for the device."""
        seeds = tuple(step_seed(recipe.seed, epoch, step) for step in range(steps))
        order, seeds_on_device = epoch_order(recipe.seed, epoch, images), torch.tensor(seeds)
        if device.type == "cuda":
            order, seeds_on_device = order.pin_memory(), seeds_on_device.pin_memory()
        return cls(
            recipe.batch_size,
            order.to(device, non_blocking=True),
            seeds,
            seeds_on_device.to(device, non_blocking=True),
        )

    def batch(self, step: int) -> Batch:
        """Return the batch of step `step`, whose tensors are views."""
        first = step * self.batch_size
        indices = self.order[first : first + self.batch_size]
        return Batch(indices, self.seeds[step], self.seeds_on_device[step : step + 1])


def steps_per_epoch(recipe: Recipe, images: int) -> int:
    """Return how many batches an epoch over `images` training images has."""
    whole = math.ceil(images / recipe.batch_size)
    if recipe.steps_per_epoch is None:
        return whole
    if recipe.steps_per_epoch > whole:
        raise ValueError(
            f"steps_per_epoch={recipe.steps_per_epoch}, but {images} images make {whole} batches of "
            f"batch_size={recipe.batch_size}; use at most {whole}, or None"
        )
    return recipe.steps_per_epoch


def mix(purpose: str, *numbers: int) -> int:
    """Return a seed in [0, 2⁶³): the first eight bytes of the SHA-256 of "purpose/number/number/…".

    The hash makes neighbours independent: seed 0 in epoch 1 and seed 1 in epoch 0 have nothing in common.
    """
    text = "/".join([purpose, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """Return the permutation [n] in which an epoch visits the images; always drawn on the CPU."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(n, generator=generator)


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Return the seed of one step's augmentation and noise; `step` counts from 0 within the epoch."""
    return mix("step", seed, epoch, step)


def step_generator(seed: int, epoch: int, step: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of one step's augmentation and noise; `step` counts from 0 within the epoch."""
    return torch.Generator(device).manual_seed(step_seed(seed, epoch, step))


@contextmanager
def initialization(seed: int) -> Iterator[None]:
    """Inside, modules are built in float32 on the CPU from `seed`, and global generators stay as they are."""
    with plain_defaults(), torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the CUDA generators, which this fork does not restore.
        torch.default_generator.manual_seed(mix("initialization", seed))
        yield


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the rate of step `step`, counted from 0 over the whole run."""
    if recipe.schedule == "constant":
        return recipe.learning_rate
    if recipe.schedule == "step":
        # A milestone m takes effect after m epochs.
        passed = sum(milestone <= step // steps_per_epoch for milestone in recipe.milestones)
        return recipe.learning_rate * recipe.gamma**passed
    total = recipe.epochs * steps_per_epoch
    start = recipe.learning_rate / START_DIVISOR
    peak = WARM_UP_SHARE * total - 1
    if step <= peak:
        return _cosine(start, recipe.learning_rate, step / peak)
    return _cosine(recipe.learning_rate, start / FINAL_DIVISOR, (step - peak) / (total - 1 - peak))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))
