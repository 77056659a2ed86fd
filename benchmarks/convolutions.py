"""The convolutions of PreResNet-20, pass by pass: our own kernels against torch's, right first and then the time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.stage_kernels import time_launches
from benchmarks.table import markdown
from nonloc_paper.fast.convolution import is_own, torch_gradients

# (kernel, channels in, out, height and width): how often in the network
SHAPES = {
    (3, 3, 16, 32): 1,
    (3, 16, 16, 32): 2,
    (3, 32, 32, 16): 2,
    (3, 64, 64, 8): 2,
    (1, 16, 16, 32): 1,
    (1, 16, 64, 32): 3,
    (1, 64, 16, 32): 1,
    (1, 64, 32, 16): 1,
    (1, 64, 128, 16): 1,
    (1, 32, 128, 16): 2,
    (1, 128, 32, 16): 1,
    (1, 128, 64, 8): 1,
    (1, 128, 256, 8): 1,
    (1, 64, 256, 8): 2,
    (1, 256, 64, 8): 1,
}
PASSES = ("forward", "input_gradient", "weight_gradient")
# How many times as far from float64 as torch's own, which rounds the same sums once.
FACTOR = 1.5
# Different images in turn, more of them than the cache holds.
SETS = 4


@dataclass(frozen=True)
class Pass:
    """One pass of one convolution in microseconds; None where ours is wrong, and is not timed.

    calls  how often a step of PreResNet-20 does it
    taken  whether the networks take ours
    error  ‖found − float64‖ / ‖float64‖ of ours
    """

    shape: tuple[int, int, int, int]
    name: str
    calls: int
    own: float | None
    torch: float
    taken: bool
    error: float
    passed: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(batch: int = 128, repeats: int = 15) -> Iterator[Pass]:
    """All shapes in bfloat16 on CUDA, each launch from a captured graph."""
    if not torch.cuda.is_available():
        raise ValueError("convolutions can be timed on a CUDA device only, and there is none")
    for shape, count in SHAPES.items():
        sets = [_operands(shape, batch, seed) for seed in range(SETS)]
        for name in PASSES:
            # Images have no gradient.
            calls = 0 if name == "input_gradient" and shape[1] == 3 else count
            own, theirs = _ours(name), _torchs(name)
            exact = theirs(*(x.double() for x in sets[0]))
            error, allowed = (_error(way(*sets[0]), exact) for way in (own, theirs))
            # NaN does not pass either.
            passed = error <= FACTOR * allowed
            yield Pass(
                shape=shape,
                name=name,
                calls=calls,
                own=_time(own, sets, repeats) if passed else None,
                torch=_time(theirs, sets, repeats),
                taken=is_own(name, sets[0][2]),
                error=error,
                passed=passed,
            )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a shape, and what all of them together take in a step, torch's where ours are not taken or wrong."""
    headers = ["convolution", *(f"{name.replace('_', ' ')}: own, torch" for name in PASSES)]
    cells = []
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        kernel, channels, out, size = shape
        same = {row["name"]: row for row in rows if tuple(row["shape"]) == shape}
        title = f"{kernel}×{kernel}, {channels} → {out}, {size}²"
        cells.append([title, *(_cell(same[name]) for name in PASSES)])
    total = ["a step"]
    for name in PASSES:
        mine = [row for row in rows if row["name"] == name]
        best = sum(
            row["calls"] * (row["own"] if row["taken"] and row["passed"] else row["torch"]) for row in mine
        )
        total.append(f"{best:.0f}, {sum(row['calls'] * row['torch'] for row in mine):.0f}")
    return markdown(headers, [*cells, total])


def _cell(row: dict[str, Any]) -> str:
    if not row["passed"]:
        return f"wrong by {row['error']:.0e}"
    return f"{row['own']:.1f}, {row['torch']:.1f}{'' if row['taken'] else ' (torch’s taken)'}"


Way = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(x, gradient of the output, weight) -> the pass's result"""


def _ours(name: str) -> Way:
    from nonloc_paper.fast import convolution_kernels as kernels

    if name == "forward":
        return lambda x, grad, weight: kernels.convolve(x, weight)
    if name == "input_gradient":
        return lambda x, grad, weight: kernels.input_gradient(grad, weight)
    return lambda x, grad, weight: kernels.weight_gradient(x, grad, weight)


def _torchs(name: str) -> Way:
    if name == "forward":
        return lambda x, grad, weight: F.conv2d(x, weight, padding=weight.shape[2] // 2)
    wanted = (name == "input_gradient", name == "weight_gradient")

    def backward(x: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
        found = torch_gradients(x, grad, weight, wanted)[wanted.index(True)]
        assert found is not None
        return found

    return backward


def _operands(shape: tuple[int, int, int, int], batch: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, the gradient of the output, the weight; channels-last."""
    kernel, channels, out, size = shape
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*sizes: int, deviation: float = 1.0) -> Tensor:
        drawn = deviation * torch.randn(*sizes, generator=generator, device="cuda")
        return drawn.bfloat16().contiguous(memory_format=torch.channels_last)

    weight = normal(out, channels, kernel, kernel, deviation=(channels * kernel**2) ** -0.5)
    return normal(batch, channels, size, size), normal(batch, out, size, size), weight


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _time(way: Way, sets: Sequence[tuple[Tensor, Tensor, Tensor]], repeats: int) -> float:
    def work() -> None:
        for operands in sets:
            way(*operands)

    return statistics.median(time_launches(work, repeats)) / len(sets)
