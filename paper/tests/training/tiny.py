"""The smallest things that train: a few images and recipes whose runs take a second or two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe


def tiny_data(*, labels: bool = True, train: int = 40, test: int = 24, size: int = 8) -> Dataset:
    """Noise around one mean image per class, so that there is something to learn; named "tiny"."""
    generator = torch.Generator().manual_seed(5)
    means = torch.randint(60, 196, (3, 3, size, size), generator=generator)

    def split(count: int) -> Split:
        classes = torch.arange(count) % 3
        noise = torch.randint(-60, 60, (count, 3, size, size), generator=generator)
        return Split((means[classes] + noise).to(torch.uint8), classes if labels else None)

    return Dataset("tiny", split(train), split(test), ("a", "b", "c") if labels else None)


def tiny_recipe(**changes: Any) -> Recipe:
    """Three epochs of five steps, the last batch smaller, with augmentation and a change of rate."""
    recipe = Recipe(
        network="preresnet8-basic/diffusive-1@1",
        data="tiny",
        epochs=3,
        batch_size=9,
        learning_rate=0.05,
        milestones=(2,),
    )
    return recipe.with_(**changes)


@contextmanager
def unusual_defaults() -> Iterator[None]:
    """Inside, what nobody said a dtype or a device for is float64 and, on the meta device, of no use."""
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def timeless_metrics(run: Run) -> list[dict[str, Any]]:
    """The metrics without the one number that may differ between two runs of the same recipe."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in run.read_metrics()]
