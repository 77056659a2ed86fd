"""Order and chance as functions of where a run is, so that it can stop after any step and go on identically.

The order of the images depends on (seed, epoch) alone, augmentation and noise on (seed, epoch, step) alone.
Nothing is drawn from torch's global generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nonloc_paper.training.machine import plain_defaults


def mix(purpose: str, *numbers: int) -> int:
    """A seed in [0, 2⁶³): the first eight bytes of the SHA-256 of "purpose/number/number/…".

    Hashing keeps neighbours apart: seed 0 in epoch 1 and seed 1 in epoch 0 have nothing in common.
    """
    text = "/".join([purpose, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """The permutation [n] in which an epoch visits the images; always drawn on the CPU."""
    generator = torch.Generator().manual_seed(mix("order", seed, epoch))
    return torch.randperm(n, generator=generator)


def step_seed(seed: int, epoch: int, step: int) -> int:
    """What seeds the generator of one step's augmentation and noise; `step` counts from 0 within the epoch."""
    return mix("step", seed, epoch, step)


def step_generator(seed: int, epoch: int, step: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one step's augmentation and noise; `step` counts from 0 within the epoch."""
    return torch.Generator(device).manual_seed(step_seed(seed, epoch, step))


@contextmanager
def initialization(seed: int) -> Iterator[None]:
    """Inside, what is built is float32 on the CPU, with values from `seed`; outside, nothing is disturbed."""
    with plain_defaults(), torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the CUDA generators, which this fork does not restore.
        torch.default_generator.manual_seed(mix("initialization", seed))
        yield
