"""In what precision a recipe computes: what torch would decide for itself is decided here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from nonloc_paper.training.recipe import Recipe


@contextmanager
def precision_of(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Inside, a float32 recipe computes its convolutions in float32 on CUDA too, where torch's default is TF32; and a
    bfloat16 recipe does without oneDNN on a CPU that has no bfloat16.

    There torch turns oneDNN off at the first product that fails, with a warning, and for the rest of the process: a run
    that is continued would compute other sums than one that went through, and so would whatever comes after it.
    """
    where: Any
    value: str | bool
    # torch puts other objects in place of these modules when it is imported, which its annotations do not say.
    if device.type == "cuda" and recipe.precision == "float32":
        where, name, value = cast(Any, torch.backends.cudnn).conv, "fp32_precision", "ieee"
    elif device.type == "cpu" and recipe.precision == "bfloat16" and not cpu_has_bfloat16():
        where, name, value = cast(Any, torch.backends.mkldnn), "enabled", False
    else:
        yield
        return
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def cpu_has_bfloat16() -> bool:
    """Whether torch's library for CPUs computes in bfloat16 on this one; elsewhere it takes a hundred times as long."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def slow_precision(recipe: Recipe, device: torch.device) -> str:
    """What to say to whoever is about to wait, where the processor has no instructions for bfloat16; else ""."""
    if recipe.precision != "bfloat16" or device.type != "cpu" or cpu_has_bfloat16():
        return ""
    return "this CPU has no bfloat16, without which a step may take minutes; precision float32 is many times as fast"


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Inside, a bfloat16 recipe computes its convolutions and matrix products in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
