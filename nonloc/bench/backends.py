"""Reference against factored, in one run: where the matrix is faster, and what "auto" therefore takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nonloc.ops import Affinity, choose_backend, propagate

# (batch, positions, embed = channels, sub-blocks): from the demo's stage to a feature map of 64 × 64.
SHAPES = (
    (16, 144, 8, 4),
    (1, 256, 16, 4),
    (4, 256, 32, 4),
    (1, 1024, 32, 4),
    (8, 1024, 32, 4),
    (1, 4096, 16, 1),
)
CELLS = (("gaussian", "row"), ("heat", "row"), ("gaussian", "count"), ("dot", "row"), ("concat", "row"))


@dataclass(frozen=True)
class Timing:
    """Milliseconds of forward and backward in float32: the median and the range of `repeats`, turn by turn."""

    kind: str
    normalize: str
    batch: int
    positions: int
    channels: int
    num_blocks: int
    reference: float
    reference_range: tuple[float, float]
    factored: float
    factored_range: tuple[float, float]
    auto: str
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def timings(repeats: int = 7, device: str = "cpu") -> Iterator[Timing]:
    for kind, normalize in CELLS:
        for shape in SHAPES:
            yield _time(kind, normalize, shape, repeats, device)


def _time(kind: str, normalize: str, shape: tuple[int, int, int, int], repeats: int, device: str) -> Timing:
    batch, positions, channels, num_blocks = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device).requires_grad_()

    width = 1 if kind == "concat" else channels
    affinity = Affinity(normal(batch, positions, width), normal(batch, positions, width), kind, normalize)
    z, weights = normal(batch, positions, channels), normal(num_blocks, channels, channels)

    def work(backend: str) -> None:
        propagate(affinity, z, 0.1 * weights, backend=backend).sum().backward()

    names = ("reference", "factored")
    seconds = in_turns({name: partial(work, name) for name in names}, repeats, device)
    reference, factored = (sorted(1e3 * s for s in seconds[name]) for name in names)
    return Timing(
        kind,
        normalize,
        *shape,
        statistics.median(reference),
        (reference[0], reference[-1]),
        statistics.median(factored),
        (factored[0], factored[-1]),
        choose_backend(affinity),
        repeats,
    )


def in_turns(works: dict[str, Callable[[], None]], repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds of each, one after the other in every round, so that a slow moment hits both sides."""

    def finish() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            finish()
            start = time.perf_counter()
            work()
            finish()
            seconds[name].append(time.perf_counter() - start)
    return seconds
