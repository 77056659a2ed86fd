"""How far each (kind × normalize × backend) is from the double loop, in value and in gradient.

The exact backends in float64; the fused one, which knows no float64, in float32 where its kernels run.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks import double_loop
from benchmarks.shared import markdown
from nonloc.ops import BACKENDS, KINDS, NORMALIZATIONS, Affinity, fused, propagate
from nonloc.ops.fused import is_available

LIMIT = 1e-10  # of value and gradient in float64
VALUE_LIMIT = {"reference": 1e-12}
FUSED_LIMIT = 1e-5  # of both in float32: a hundred times its rounding


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    return [*deviations(options.trials), *fused_deviations(options.device, options.trials)]


def cell(
    kind: str, normalize: str, backend: str, worst: tuple[float, float], trials: int, dtype: str = "float64"
) -> dict[str, Any]:
    """A row; value and gradient are the largest |difference| / (1 + largest |value|) over `trials` problems."""
    limit = FUSED_LIMIT if backend == "fused" else LIMIT
    value, gradient = worst
    row = {"kind": kind, "normalize": normalize, "backend": backend, "value": value, "gradient": gradient}
    passed = value <= VALUE_LIMIT.get(backend, limit) and gradient <= limit
    return row | {"trials": trials, "dtype": dtype, "passed": passed}


def deviations(trials: int, positions: int = 6) -> Iterator[dict[str, Any]]:
    """One row for each kernel and exact backend. Masks and measures are in every other trial."""
    exact = [backend for backend in BACKENDS if backend not in fused.BACKENDS]
    for kind in KINDS:
        for normalize in NORMALIZATIONS:
            worst = dict.fromkeys(exact, (0.0, 0.0))
            for trial in range(trials):
                problem = Problem(kind, normalize, positions, trial, decorated=trial % 2 == 1)
                truth = problem.solve(double_loop.propagate)
                for backend in exact:
                    worst[backend] = _worse(worst[backend], _by(problem, backend), truth)
            for backend in exact:
                yield cell(kind, normalize, backend, worst[backend], trials)


def fused_deviations(device: torch.device, trials: int, positions: int = 6) -> Iterator[dict[str, Any]]:
    """The fused kernels' rows, if they run on `device`; masks, which are all they take, in every other trial."""
    if not is_available(device):
        return
    for kind in ("gaussian", "heat"):
        worst = (0.0, 0.0)
        for trial in range(trials):
            problem = Problem(kind, "row", positions, trial, decorated=trial % 2 == 1)
            problem.measure = None
            rounded = problem.to(torch.float32)
            truth = rounded.to(torch.float64).solve(double_loop.propagate)
            values = [x.to(truth[0]) for x in _by(rounded.to(device), "fused")]
            worst = _worse(worst, values, truth)
        yield cell(kind, "row", "fused", worst, trials, dtype="float32")


def _by(problem: Problem, backend: str) -> list[Tensor]:
    return problem.solve(lambda affinity, z, weights: propagate(affinity, z, weights, backend=backend))


def _worse(
    so_far: tuple[float, float], values: Sequence[Tensor], truth: Sequence[Tensor]
) -> tuple[float, float]:
    errors = [relative_error(f, t) for f, t in zip(values, truth, strict=True)]
    return max(so_far[0], errors[0]), max(so_far[1], *errors[1:])


def relative_error(values: Tensor, truth: Tensor) -> float:
    if values.shape != truth.shape or not bool(values.isfinite().all()):
        return float("inf")
    return float((values - truth).abs().max() / (1 + truth.abs().max()))


class Problem:
    """Random features, signal, weights and cotangent of a two-block stage, drawn in float64."""

    def __init__(self, kind: str, normalize: str, positions: int, seed: int, decorated: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        batch, width, channels = 2, 1 if kind == "concat" else 3, 4
        self.kind, self.normalize = kind, normalize
        self.symmetric = normalize in ("symmetric", "sinkhorn")
        left = normal(batch, positions, width)
        # Both normalisations need Ω ≥ 0 and total support; a positive diagonal is enough for the latter.
        self.left = left.abs() + 0.1 if self.symmetric and kind in ("dot", "concat") else left
        self.right = normal(batch, positions, width)
        self.scale = 0.7 if kind in ("gaussian", "heat", "dot") else 1.0
        self.z = normal(batch, positions, channels)
        self.weights = 0.3 * normal(2, channels, channels)
        self.cotangent = normal(batch, positions, channels)
        self.mask = self.measure = None
        if decorated:
            self.mask = torch.rand(batch, positions, generator=generator) > 0.3
            self.mask[1] = False  # a sample without any valid position
            self.measure = torch.rand(positions, generator=generator, dtype=torch.float64) + 0.1

    def to(self, where: torch.dtype | torch.device) -> Problem:
        """The same problem, rounded or moved."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and not (name == "mask" and isinstance(where, torch.dtype)):
                setattr(moved, name, value.to(where))
        return moved

    def solve(self, function: Any) -> list[Tensor]:
        """[value, gradient to z, to weights, to left, to right]; zeros where nothing flows."""
        left, z, weights = (t.clone().requires_grad_() for t in (self.left, self.z, self.weights))
        right = left if self.symmetric else self.right.clone().requires_grad_()
        affinity = Affinity(
            left, right, self.kind, self.normalize, self.scale, mask=self.mask, measure=self.measure
        )
        out = function(affinity, z, weights)
        wanted = [z, weights, left] if self.symmetric else [z, weights, left, right]
        gradients = torch.autograd.grad(out, wanted, self.cotangent, allow_unused=True)
        return [
            out.detach(),
            *(torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted, strict=True)),
        ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [
            row["kind"],
            row["normalize"],
            # The others are in float64.
            f"{row['backend']}, float32" if row["dtype"] == "float32" else row["backend"],
            f"{row['value']:.1e}",
            f"{row['gradient']:.1e}",
            "yes" if row["passed"] else "NO",
        ]
        for row in rows
    ]
    return markdown(["kind", "normalize", "backend", "value", "gradient", "within limit"], cells)
