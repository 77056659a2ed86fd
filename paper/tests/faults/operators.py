"""Random operators: `factored` against `reference`, values and gradients of aggregate, diffuse and propagate.

A trial fails where one backend raises and the other does not, where one has NaN or inf and the other has not, and where
they differ by more than rounding. With K the kernel and |K| its entries made of absolute terms, it is

    ρ = n eps (1 + the condition of the row sums) + (e^{2λ} − 1),   λ = n eps (the largest logit),   n = M + d + C + 16

relative to each term of a sum: a value is a sum over |K_ij| |z_j|, a gradient one over |∂K_ij| |z_j| |cotangent_i|.
Sinkhorn multiplies ρ by (1 + ‖(I + K)⁻¹‖)², and adds the residual that the iteration may stop at. Where ρ is more than
1/8 no digit is left: only exceptions and finiteness are compared then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from faults.trial import Trial
from nonloc.ops import KINDS, NORMALIZATIONS, Affinity, aggregate, diffuse, kernel_matrix, propagate
from nonloc.ops.affinity import SYMMETRIC, centred, position_weights, without_masked
from nonloc.ops.bounds import wide
from nonloc.ops.factored import product
from nonloc.ops.functional import compute_dtype
from nonloc.ops.normalize import sides

GOALS = {"reference against factored": 20_000}
OPERATIONS = ("aggregate", "diffuse", "propagate")
DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16)
# A value this near to the largest number may overflow in one order of summation and not in another.
NEAR_OVERFLOW = 1e-3


@dataclass(frozen=True)
class Case:
    """One operator, made from its description.

    givers  M', of which only `aggregate` may have another number than M
    sides   "shared": left is right; "equal": two tensors of equal values; "separate"
    spread  the deviation of the features: 0 is flat, hundreds are peaked
    zeros   how many positions have features 0
    mask    None, "some" or "all": valid are some positions, or none of the first sample
    measure None, "plain", "zeros", "wide" (from 1e-9 to 1e9) or "nothing" (0 everywhere)
    """

    kind: str
    normalize: str
    batch: int
    positions: int
    givers: int
    width: int
    channels: int
    dtype: torch.dtype
    signal: torch.dtype
    spread: float
    scale: float
    sides: str
    positive: bool
    zeros: int
    mask: str | None
    measure: str | None
    blocks: int
    is_pair: bool
    seed: int


def draw(chance: random.Random) -> Case:
    """Return a random case."""
    # Sinkhorn takes ten times as long as the others, so it is drawn half as often.
    kind, normalize = chance.choice(KINDS), chance.choice((*NORMALIZATIONS[:-1] * 2, "sinkhorn"))
    positions = chance.choice((1, 1, 2, 3, 4, 5, 7))
    is_symmetric = normalize in SYMMETRIC or kind == "delta"
    is_square = is_symmetric or chance.random() < 0.85
    dtype = chance.choice(DTYPES)
    scale = 1.0
    if kind in ("gaussian", "dot", "heat"):
        scale = chance.choice((1.0, 0.3, 1.7, 2, 1e-3, 40.0))
        if kind != "heat" and normalize not in SYMMETRIC and chance.random() < 0.1:
            scale = -scale
    return Case(
        kind=kind,
        normalize=normalize,
        batch=chance.choice((1, 1, 2)),
        positions=positions,
        givers=positions if is_square else chance.choice((1, 2, 5)),
        width=1 if kind == "concat" else chance.choice((1, 2, 3)),
        channels=chance.choice((1, 2, 3)),
        dtype=dtype,
        signal=dtype if chance.random() < 0.8 else chance.choice(DTYPES),
        spread=chance.choice((0.0, 1e-3, 0.2, 1.0, 1.0, 2.0, 5.0, 30.0, 300.0, 1e4)),
        scale=scale,
        sides=chance.choice(("shared", "equal") if is_symmetric else ("shared", "equal", "separate", "separate")),
        # Signed features are refused under these, by both backends.
        positive=chance.random() < (0.9 if normalize in SYMMETRIC else 0.5),
        zeros=chance.choice((0, 0, 0, 1, positions)),
        mask=chance.choice((None, None, "some", "all")) if is_square else None,
        measure=chance.choice((None, None, "plain", "zeros", "wide", "nothing" if chance.random() < 0.2 else "zeros")),
        blocks=chance.choice((1, 2)),
        is_pair=chance.random() < 0.5,
        seed=chance.randrange(2**32),
    )  # fmt: skip


class Problem:
    """The tensors of a case, with gradients, and its operations."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        def features(count: int) -> Tensor:
            x = case.spread * normal(case.batch, count, case.width)
            x = x.abs() + 0.05 * case.spread if case.positive and case.kind in ("dot", "concat") else x
            x[:, : min(case.zeros, count)] = 0
            return x.to(case.dtype).requires_grad_()

        self.case = case
        left = features(case.positions)
        right = features(case.givers) if case.sides == "separate" or case.givers != case.positions else left
        if case.sides == "equal" and right is left:
            right = left.detach().clone().requires_grad_()
        mask, measure = None, None
        if case.mask is not None:
            mask = torch.rand(case.batch, case.positions, generator=generator) < 0.6
            mask[0] &= case.mask != "all"
        if case.measure is not None:
            measure = 0.2 + torch.rand(case.givers, generator=generator, dtype=torch.float64)
            if case.measure == "wide":
                measure = 10 ** (18 * torch.rand(case.givers, generator=generator, dtype=torch.float64) - 9)
                measure = measure.clamp(1e-4, 1e4) if case.dtype == torch.float16 else measure
            if case.measure in ("zeros", "nothing"):
                is_zero = torch.rand(case.givers, generator=generator) < 0.4
                measure[is_zero | (case.measure == "nothing")] = 0
            measure = measure.to(case.dtype).requires_grad_()
        self.affinity = Affinity(
            left, right, case.kind, case.normalize, case.scale, mask=mask, measure=measure
        )
        size = case.channels
        self.z = normal(case.batch, case.givers, size).to(case.signal).requires_grad_()
        self.weights: list[Tensor | tuple[Tensor, Tensor]] = []
        for _ in range(case.blocks):
            if case.is_pair:
                factors = [normal(size, 2) / 2, normal(2, size) / 2]
                self.weights.append(tuple(one.to(case.signal).requires_grad_() for one in factors))
            else:
                self.weights.append((normal(size, size) / 2).to(case.signal).requires_grad_())
        self.cotangent = normal(case.batch, case.positions, size).to(case.signal)

    def run(self, operation: str, backend: str) -> dict[str, Tensor] | str:
        """Return the value and the gradients by name, or the exception."""
        affinity, z = self.affinity, self.z
        leaves = {"left": affinity.left, "z": z}
        if affinity.right is not affinity.left:
            leaves["right"] = affinity.right
        if affinity.measure is not None:
            leaves["measure"] = affinity.measure
        if operation == "propagate":
            for n, one in enumerate(self.weights):
                named = (
                    {f"W_Z {n}": one[0], f"W_g {n}": one[1]} if isinstance(one, tuple) else {f"W {n}": one}
                )
                leaves |= named
        try:
            if operation == "propagate":
                value = propagate(affinity, z, self.weights, backend=backend)
            else:
                value = (aggregate if operation == "aggregate" else diffuse)(affinity, z, backend=backend)
            found = torch.autograd.grad(value, list(leaves.values()), self.cotangent, allow_unused=True)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        gradients = {
            name: torch.zeros_like(leaf) if one is None else one
            for (name, leaf), one in zip(leaves.items(), found, strict=True)
        }
        return {"value": value.detach(), **gradients}


class Sizes:
    """What the error of each result is relative to, and how large that error may be; all from float64."""

    def __init__(self, problem: Problem) -> None:
        case, affinity, z = problem.case, problem.affinity, problem.z
        self.problem, self.is_known = problem, True
        self.count = case.positions + case.givers + case.width + case.channels + 16
        self.eps = torch.finfo(compute_dtype(affinity, z)).eps
        with torch.no_grad():
            measure = None if affinity.measure is None else affinity.measure.double()
            try:
                self._measure(without_masked(replace(wide(affinity), measure=measure)))
            except ValueError:
                # Narrow numbers may have a scaling to their rounding where float64 finds none: no digit is known.
                self.relative, self.is_known = math.inf, False

    def _measure(self, affinity: Affinity) -> None:
        kind, scale = affinity.kind, abs(affinity.scale)
        weights = position_weights(affinity, torch.float64).expand(affinity.batch, -1)
        used = weights[weights > 0]
        longest = [float(side.norm(dim=-1).max()) for side in (affinity.left, affinity.right)]
        logs = float(used.log().abs().max()) if len(used) else 0.0
        kernel = kernel_matrix(affinity)
        condition, largest = 0.0, 0.0
        if kind in ("gaussian", "heat"):
            if kind == "heat":
                longest = [float(side.norm(dim=-1).max()) for side in centred(affinity, torch.float64)]
                largest, slope = scale * (longest[0] + longest[1]) ** 2, 2 * scale * sum(longest)
            else:
                largest, slope = scale * longest[0] * longest[1], scale * max(longest)
            # K as it is: rounding of a logit changes an entry by a factor.
            size, entry = kernel.abs(), kernel.abs()
            per_measure = entry / torch.where(weights > 0, weights, torch.inf).unsqueeze(1)
            if affinity.normalize in ("none", "count"):
                per_measure = kernel_matrix(replace(affinity, normalize="none", measure=None))
                share = 1.0 if affinity.normalize == "none" else 1 / weights.sum(-1).clamp(min=1e-300)
                per_measure = per_measure * torch.as_tensor(share).view(-1, 1, 1)
        else:
            size = entry = kernel.abs()
            # Of "delta", 1 for a unit of measure, also where there is none.
            per_measure = kernel.abs().clamp(min=1)
            slope = 1.0
            if kind != "delta":
                raw = scale * (affinity.left.abs() @ affinity.right.abs().mT)
                if kind == "concat":
                    raw = torch.relu(affinity.left + affinity.right.mT)
                omega = product(affinity, affinity.left, affinity.right)
                a, b, _ = sides(omega, weights.unsqueeze(-1), affinity)
                a = torch.as_tensor(a, dtype=torch.float64).expand(affinity.batch, affinity.positions, 1)
                entry = a.abs() * b.abs().mT
                size = entry * raw
                if affinity.normalize in ("row", "symmetric", "sinkhorn"):
                    sums = omega(weights.unsqueeze(-1)).abs()
                    total = raw @ weights.unsqueeze(-1)
                    seen = total > 0
                    condition = float((total / sums)[seen].max()) if bool(seen.any()) else 0.0
                slope = scale * max(longest) if kind == "dot" else 1.0
                per_measure = (
                    a.abs() * raw * (b.abs() / torch.where(weights > 0, weights, 1).unsqueeze(-1)).mT
                )
                if affinity.normalize in ("none", "count", "row"):
                    per_measure = a.abs() * raw
                elif affinity.normalize == "symmetric":
                    # Sums are divided by at positions, too, that then give nothing.
                    shares = torch.where(sums > 0, 1 / sums, 0)
                    entry = torch.maximum(entry, shares * weights.unsqueeze(1))
                    per_measure = torch.maximum(per_measure, shares * raw)
        self.rows, self.columns = float(size.sum(-1).max()), float(size.sum(1).max())
        self.entry, self.slope = float(entry.max()), slope
        self.per_measure = float(per_measure.max())
        if affinity.normalize == "count" and kind != "delta":
            # The total of the measure divides every entry.
            self.per_measure += self.rows / max(float(weights.sum(-1).min()), 1e-300)
        self.per_measure = max(self.per_measure, self.rows / float(used.min()) if len(used) else 0.0)
        rounding = self.count * self.eps
        logits = rounding * (4 * largest + 2 * logs)
        self.relative = rounding * (1 + condition) + (math.expm1(2 * logits) if logits < 1 else math.inf)
        if affinity.normalize in ("none", "count", "symmetric"):
            # No row is divided by its own sum: what rounding adds to a logit multiplies the kernel, and may overflow.
            factor = math.exp(min(logits, 700.0))
            self.rows, self.columns = factor * self.rows, factor * self.columns
            self.entry, self.per_measure = factor * self.entry, factor * self.per_measure
        self.inverse = 1.0
        if affinity.normalize == "sinkhorn":
            identity = torch.eye(affinity.positions, dtype=torch.float64)
            try:
                inverse = torch.linalg.inv(identity + kernel)
                self.inverse = 1 + float(inverse.abs().sum(-1).max())
            except RuntimeError:
                self.inverse = math.inf
            # What `_iterate` may stop at.
            self.relative += 256 * self.eps * (1 + 4 * largest + 2 * logs)
            self.relative *= self.inverse**2
        # What one sub-block multiplies a state, or a cotangent, by.
        norms = [1.0]
        for one in self.problem.weights:
            factors = one if isinstance(one, tuple) else (one,)
            norms.append(math.prod(float(f.double().abs().sum(-1).max()) * f.shape[-1] for f in factors))
        self.weight = max(norms)
        self.size = size

    def of(self, name: str, operation: str) -> float:
        """What the rounding of a result of this name is relative to; 0 where it is not known."""
        if not self.is_known:
            return 0.0
        case = self.problem.case
        blocks, weight, growth = 1, 1.0, 1.0
        if operation == "propagate":
            blocks, weight = case.blocks, self.weight
            growth = math.prod([1 + 2 * max(self.rows, self.columns) * weight] * blocks)  # inf, not an error
        z = float(self.problem.z.detach().double().abs().max()) * growth
        cotangent = float(self.problem.cotangent.double().abs().max()) * growth
        each = 2 * case.channels * cotangent * z * weight * (1 + self.rows) * self.inverse * blocks
        places = case.batch * case.positions * case.givers
        if name == "value":
            size = blocks * 2 * (1 + self.rows) * weight * z
        elif name == "z":
            size = blocks * 2 * (1 + self.columns + self.rows) * weight * cotangent
        elif name in ("left", "right"):
            size = places * self.entry * self.slope * each
        elif name == "measure":
            size = places * self.per_measure * each
        else:
            size = blocks * 2 * places * (1 + self.rows) * z * cotangent * max(1.0, weight)
        return size


def compare(case: Case) -> str | None:
    """Return what is wrong with a case, or None."""
    problem = Problem(case)
    sizes: Sizes | None = None
    operations = OPERATIONS if case.givers == case.positions else OPERATIONS[:1]
    for operation in operations:
        truth, actual = (problem.run(operation, backend) for backend in ("reference", "factored"))
        if isinstance(truth, str) or isinstance(actual, str):
            if isinstance(truth, str) and isinstance(actual, str) and truth.startswith("ValueError"):
                continue
            return f"{operation}: reference {_short(truth)}, factored {_short(actual)}"
        sizes = sizes or Sizes(problem)
        for name, one in truth.items():
            if wrong := _difference(one, actual[name], sizes.of(name, operation), sizes.relative):
                return f"{operation}, {name}: {wrong}"
    return None


def _difference(truth: Tensor, actual: Tensor, size: float, relative: float) -> str | None:
    if truth.dtype != actual.dtype or truth.shape != actual.shape:
        return f"{truth.dtype} {list(truth.shape)} against {actual.dtype} {list(actual.shape)}"
    number = torch.finfo(truth.dtype)
    if not size < number.max * NEAR_OVERFLOW:
        return None
    finite = truth.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        return f"reference {truth.flatten().tolist()}, factored {actual.flatten().tolist()}"
    if not relative <= 1 / 8 or not bool(finite.any()):
        return None
    gap = float((truth.double() - actual.double())[finite].abs().max())
    bound = (relative + 4 * number.eps) * size + 64 * number.tiny
    return None if gap <= bound else f"they differ by {gap:.3g}, and at most {bound:.3g} is rounding"


def _short(result: dict[str, Tensor] | str) -> str:
    return result[:120] if isinstance(result, str) else "gives a result"


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """Yield a trial for each random operator."""
    while True:
        case = draw(chance)
        try:
            wrong = compare(case)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        yield Trial("reference against factored", None if wrong is None else f"{wrong}; {case}")
