"""Reference against factored, in one run: where the matrix is faster, and what "auto" therefore takes.

The two must agree before their times mean anything: a row of other numbers, or of an overflow, does not pass.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import format_range, markdown, median_and_range, time_in_turns
from nonloc.ops import NORMALIZATIONS, Affinity, choose_backend, propagate
from nonloc.ops.affinity import SYMMETRIC

# (batch, positions, embed = channels, sub-blocks): from the demo's stage to a feature map of 64 × 64.
SHAPES = (
    (16, 144, 8, 4),
    (1, 256, 16, 4),
    (4, 256, 32, 4),
    (1, 1024, 32, 4),
    (8, 1024, 32, 4),
    (1, 4096, 16, 1),
)
CELLS = (
    *(("gaussian", normalize) for normalize in NORMALIZATIONS),
    ("heat", "row"),
    ("dot", "row"),
    ("concat", "row"),
)
NAMES = ("reference", "factored")
LIMIT = 1e-4  # of ‖factored − reference‖ / ‖reference‖ in float32, value and every gradient


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return [
        _measure(kind, normalize, shape, options.repeats, options.device)
        for kind, normalize in CELLS
        for shape in SHAPES
    ]


def _measure(
    kind: str, normalize: str, shape: tuple[int, int, int, int], repeats: int, device: torch.device
) -> dict[str, Any]:
    """One row: milliseconds of forward and backward, median and range; `error` is None where it is not finite."""
    batch, positions, channels, num_blocks = shape
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    width = 1 if kind == "concat" else channels
    # Products of two rows are about 1, so that no exponential overflows. Positive products have sums to divide by.
    left, right = (normal(batch, positions, width) / width**0.25 for _ in range(2))
    if kind == "dot":
        left, right = left.abs(), right.abs()
    if normalize in SYMMETRIC:
        right = left
    inputs = [left, right, normal(batch, positions, channels), 0.1 * normal(num_blocks, channels, channels)]
    left, right, z, weights = inputs = [value.to(device).requires_grad_() for value in inputs]
    affinity = Affinity(left, right, kind, normalize)

    def solve(backend: str) -> list[Tensor]:
        out = propagate(affinity, z, weights, backend=backend)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]

    pairs = zip(solve("factored"), solve("reference"), strict=True)
    errors = [float((one - other).norm() / other.norm()) for one, other in pairs]
    error = max(errors) if all(map(math.isfinite, errors)) else None
    times = time_in_turns([partial(solve, name) for name in NAMES], (1, 1), repeats, device)
    row: dict[str, Any] = {"kind": kind, "normalize": normalize}
    row |= zip(("batch", "positions", "channels", "num_blocks"), shape, strict=True)
    for name, mine in zip(NAMES, times, strict=True):
        row[name], row[f"{name}_range"] = median_and_range(mine)
    passed = error is not None and error <= LIMIT
    return row | {"auto": choose_backend(affinity), "repeats": repeats, "error": error, "passed": passed}


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            f"{r['kind']}, {r['normalize']}",
            f"{r['batch']} × {r['positions']:,} × {r['channels']}, N {r['num_blocks']}",
            *(format_range(r[name], r[f"{name}_range"], 2) for name in NAMES),
            r["auto"],
        ]
        for r in rows
    ]
    return markdown(["kernel", "B × M × C", "reference, ms", "factored, ms", "auto takes"], cells)
