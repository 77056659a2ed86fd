"""Reference against factored, in one run: where the matrix is faster, and what "auto" therefore takes.

What is timed must agree first: a backend that is wrong, or a problem whose numbers overflow, is no comparison.
"""

from __future__ import annotations

import math
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
LIMIT = 1e-4  # of what the two may differ by in float32, relative to the reference in norm: value and every gradient
NAMES = ("reference", "factored")
CELLS = (("gaussian", "row"), ("heat", "row"), ("gaussian", "count"), ("dot", "row"), ("concat", "row"))


@dataclass(frozen=True)
class Timing:
    """Milliseconds of forward and backward in float32: the median and the range of `repeats`, turn by turn.

    error   the largest ‖factored − reference‖ / ‖reference‖ of value and gradients; None where one is not finite
    passed  whether it is within LIMIT; what is not is timed all the same, and makes the command fail
    """

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
    error: float | None
    passed: bool

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
        return torch.randn(*size, generator=generator)

    width = 1 if kind == "concat" else channels
    # Products of two rows of these are about 1, so that no exponential overflows; and rows of positive products have
    # sums to divide by.
    left, right = (normal(batch, positions, width) / width**0.25 for _ in range(2))
    if kind == "dot":
        left, right = left.abs(), right.abs()
    inputs = [left, right, normal(batch, positions, channels), 0.1 * normal(num_blocks, channels, channels)]
    left, right, z, weights = inputs = [value.to(device).requires_grad_() for value in inputs]
    affinity = Affinity(left, right, kind, normalize)

    def work(backend: str) -> None:
        propagate(affinity, z, weights, backend=backend).sum().backward()

    def found(backend: str) -> list[Tensor]:
        out = propagate(affinity, z, weights, backend=backend)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]

    errors = [
        float((one - other).norm() / other.norm())
        for one, other in zip(found("factored"), found("reference"), strict=True)
    ]
    # A NaN among them is no number to compare, and no agreement.
    error = max(errors) if all(map(math.isfinite, errors)) else None
    seconds = in_turns({name: partial(work, name) for name in NAMES}, repeats, device)
    reference, factored = (sorted(1e3 * s for s in seconds[name]) for name in NAMES)
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
        error,
        error is not None and error <= LIMIT,
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
