"""Small problems that the tests share: every kind × normalisation with features that it accepts."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from nonloc.ops import BACKENDS, KINDS, NORMALIZATIONS, Affinity

CELLS = list(itertools.product(KINDS, NORMALIZATIONS))
SYMMETRIC = ("symmetric", "sinkhorn")
EXACT = tuple(name for name in BACKENDS if name != "fused")  # which has no float64, and tests of its own


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(
    kind: str, normalize: str, batch: int = 2, positions: int = 6, width: int = 3, seed: int = 0
) -> Tensor:
    """Left features [B, M, d] in float64 that every normalisation of the kind accepts."""
    width = 1 if kind == "concat" else width
    x = torch.randn(batch, positions, width, generator=generator(seed), dtype=torch.float64)
    return x.abs() + 0.1 if normalize in SYMMETRIC and kind in ("dot", "concat") else x


def affinity(
    kind: str, normalize: str = "row", *, seed: int = 0, scale: float | None = None, **keywords
) -> Affinity:
    """A random affinity: one set of features where Ω must be symmetric, two where it need not be."""
    mask, measure = keywords.pop("mask", None), keywords.pop("measure", None)
    left = features(kind, normalize, seed=seed, **keywords)
    right = left if normalize in SYMMETRIC else features(kind, normalize, seed=seed + 100, **keywords)
    if scale is None:
        scale = 0.7 if kind in ("gaussian", "heat", "dot") else 1.0
    return Affinity(left, right, kind, normalize, scale, mask=mask, measure=measure)


def signal(like: Affinity, channels: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(like.batch, like.positions, channels, generator=generator(seed), dtype=torch.float64)


def relative(found: Tensor, truth: Tensor) -> float:
    """max |found − truth| / (1 + max |truth|); infinite if anything is not finite."""
    found, truth = found.detach(), truth.detach()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    return float((found - truth).abs().max() / (1 + truth.abs().max()))
