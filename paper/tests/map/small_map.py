"""A map and data small enough to train in a second: 8 × 8 images, batches of 8."""

from __future__ import annotations

from dataclasses import replace

import torch

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.map.cells import ONE_EPOCH, MapCell, MapPart

CALM = MapCell(0.01, "normal 0.01", "diffusive", 1)
WILD = MapCell(1e4, "normal 0.1", "original", 2)
STABLE = MapCell(0.01, "normal 0.05", "stable", 2)


def small_data(train: int = 40) -> Dataset:
    """Noise around one mean image a class, under the name that the recipes of the paper ask for."""
    generator = torch.Generator().manual_seed(7)
    means = torch.randint(60, 196, (10, 3, 8, 8), generator=generator)

    def split(count: int) -> Split:
        classes = torch.arange(count) % 10
        noise = torch.randint(-60, 60, (count, 3, 8, 8), generator=generator)
        return Split((means[classes] + noise).to(torch.uint8), classes)

    return Dataset("cifar10", split(train), split(16), tuple("abcdefghij"))


def small_part(*cells: MapCell, seeds: int = 1, **changes: object) -> MapPart:
    base = ONE_EPOCH.base.with_(**{"batch_size": 8, "precision": "float32", "channels_last": False} | changes)
    return replace(ONE_EPOCH, base=base, cells=cells, seeds=seeds)
