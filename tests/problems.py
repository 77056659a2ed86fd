"""Small problems that the tests share: every kind × normalisation with features that it accepts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nonloc.ops import KINDS, NORMALIZATIONS, Affinity

JOINING = tuple(kind for kind in KINDS if kind != "delta")  # kinds that join positions
SCALED = ("gaussian", "heat", "dot")
CELLS = list(itertools.product(KINDS, NORMALIZATIONS))
# A dozen cells, for what depends little on the cell: every kind and every normalisation more than once.
SOME_CELLS = CELLS[::2]
FORMS = ("plain", "masked", "measured", "both")
# Every cell in one form; neighbours have different forms.
FORMED_CELLS = [(*cell, FORMS[(n + n // 5) % 4]) for n, cell in enumerate(CELLS)]
SYMMETRIC = ("symmetric", "sinkhorn")
EXACT = ("reference", "factored")  # the others have no float64, and tests of their own


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
        scale = 0.7 if kind in SCALED else 1.0
    return Affinity(left, right, kind, normalize, scale, mask=mask, measure=measure)


def symmetric(
    kind: str = "heat", normalize: str = "row", scale: float = 1.0, *, mask=None, measure=None, **sizes
) -> Affinity:
    """A random affinity with one set of features for both sides, which every normalisation accepts."""
    x = features(kind, "symmetric", **sizes)
    return Affinity(x, x, kind, normalize, scale, mask=mask, measure=measure)


def decoration(form: str, positions: int = 6) -> dict[str, Tensor]:
    """Mask [2, M] and measure [M] of a form, as keywords of an affinity."""
    mask = torch.ones(2, positions, dtype=torch.bool)
    mask[0, 1], mask[:, -1] = False, False
    measure = torch.linspace(0.2, 1.4, positions, dtype=torch.float64)
    chosen = {"masked": {"mask"}, "measured": {"measure"}, "both": {"mask", "measure"}}.get(form, set())
    return {name: value for name, value in {"mask": mask, "measure": measure}.items() if name in chosen}


def peak_bytes(function: Callable[[], object]) -> int:
    """The peak of the bytes that torch's allocator hands out, from its own memory profiler."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def capture(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The CUDA graph of `work`, and what it returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    return graph, found


def signal(like: Affinity, channels: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(like.batch, like.positions, channels, generator=generator(seed), dtype=torch.float64)


def relative(actual: Tensor, truth: Tensor) -> float:
    """max |actual − truth| / (1 + max |truth|); infinite if anything is not finite."""
    actual, truth = actual.detach(), truth.detach()
    if not bool(torch.isfinite(actual).all()):
        return float("inf")
    return float((actual - truth).abs().max() / (1 + truth.abs().max()))
