"""In what precision a recipe computes: what torch would decide for itself is decided here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from nonloc.training.recipe import Recipe


@contextmanager
def precision_of(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Inside, a float32 recipe computes its convolutions in float32 on CUDA too, where torch's default is TF32."""
    if device.type != "cuda" or recipe.precision != "float32":
        yield
        return
    # torch puts another object in place of this module when it is imported, which its annotations do not say.
    convolutions = cast(Any, torch.backends.cudnn).conv
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Inside, a bfloat16 recipe computes its convolutions and matrix products in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
