"""Random certificates: `certify` and `cfl_limit` against the norm of the dense operator, in the norm that they state.

A verdict "stable" fails where the dense stage enlarges a signal, "unstable" where it enlarges none, both beyond
ROUNDING. A limit fails where a step up to it enlarges a signal; an exact one also where a step 1e-3 beyond it enlarges
none. The comparison with dense stages is that of benchmarks/certificates.py, and half of the stages are within 1e-3 of
the boundary. Kernels are small, with masks and measures, so that many fit into a second.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.certificates import ROUNDING, is_wrong, stage_norm, stated_law
from faults.trial import Trial
from nonloc.ops import KINDS, Affinity, kernel_matrix, self_adjoint_weights
from nonloc.processes import CFLLimit, certify, cfl_limit
from nonloc.processes.stability.cfl import MAX_NORM
from nonloc.processes.stability.own_norm import own_norm

GOALS = {"certify by matrix": 26_000, "certify by bounds": 4_000, "cfl_limit": 20_000}
# Scalings by Sinkhorn and searches for a signal that grows take ten times as long as the others.
NORMALIZATIONS = ("row", "row", "count", "none", "symmetric") * 3 + ("sinkhorn",)
BY_BOUNDS = 1 / 8
SHARPNESS = 1e-3
BISECTIONS = 14


@dataclass(frozen=True)
class Case:
    """A kernel, made from its description."""

    kind: str
    normalize: str
    positions: int
    width: int
    spread: float
    shared: bool
    positive: bool
    masked: bool
    measured: bool
    seed: int

    def affinity(self) -> Affinity:
        generator = torch.Generator().manual_seed(self.seed)

        def normal() -> Tensor:
            x = torch.randn(1, self.positions, self.width, generator=generator, dtype=torch.float64)
            x = self.spread * x
            return x.abs() + 0.05 if self.positive and self.kind in ("dot", "concat") else x

        left = normal()
        right = left if self.shared else normal()
        mask = torch.rand(1, self.positions, generator=generator) < 0.7 if self.masked else None
        measure = torch.rand(self.positions, generator=generator, dtype=torch.float64) + 0.1
        if self.measured and self.seed % 3 == 0 and self.normalize != "sinkhorn":
            measure[self.seed % self.positions] = 0
        return Affinity(
            left, right, self.kind, self.normalize, mask=mask, measure=measure if self.measured else None
        )


def draw(chance: random.Random) -> Case:
    """Return a random kernel that its normalisation accepts."""
    kind, normalize = chance.choice(KINDS), chance.choice(NORMALIZATIONS)
    is_symmetric = normalize in ("symmetric", "sinkhorn")
    return Case(
        kind=kind,
        normalize=normalize,
        positions=chance.choice((1, 2, 2, 3, 4, 5, 6, 8)),
        width=1 if kind == "concat" else chance.choice((1, 2, 3)),
        spread=chance.choice((0.0, 0.3, 1.0, 1.0, 2.0)),
        shared=is_symmetric or kind == "delta" or chance.random() < 0.5,
        positive=is_symmetric or chance.random() < 0.5,
        masked=chance.random() < 0.2,
        measured=chance.random() < 0.3,
        seed=chance.randrange(2**32),
    )


def stages(case: Case, chance: random.Random, exact_up_to: int) -> Iterator[str | None]:
    """Certify a random stage with this kernel, then the same near the boundary."""
    affinity = case.affinity()
    kernel = kernel_matrix(affinity)[0]
    channels, seed = chance.choice((1, 2, 3)), chance.randrange(2**32)
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for _ in range(chance.choice((1, 1, 2, 3))):
        w = torch.randn(channels, channels, generator=generator, dtype=torch.float64) / channels**0.5
        w = w @ w.T if chance.random() < 0.5 else w
        weights.append(w * 10 ** (2 * chance.random() - 1.5))

    def judge(factor: float) -> tuple[Tensor, str | None]:
        scaled = [factor * w for w in weights]
        certificate = certify(affinity, scaled, exact_up_to=exact_up_to)
        law = stated_law(kernel, certificate)
        norm = stage_norm(kernel, scaled, law)
        if not is_wrong(certificate, norm):
            return law, None
        return law, (
            f"{certificate.verdict}, and the norm is 1 + {norm - 1:.3g} ({certificate.reason}); "
            f"W = {factor!r} · {[w.tolist() for w in weights]}, exact_up_to={exact_up_to}, {case}"
        )

    law, wrong = judge(1.0)
    yield wrong
    near = boundary(kernel, weights, law)
    if near is not None:
        yield judge(near * (1 + SHARPNESS * (2 * chance.random() - 1)))[1]


def boundary(kernel: Tensor, weights: list[Tensor], law: Tensor) -> float | None:
    """The factor at which the norm of the stage passes 1; None where there is none up to 1,000."""

    def grows(factor: float) -> bool:
        return stage_norm(kernel, [factor * w for w in weights], law) > 1 + ROUNDING

    low, high = 1e-3, 1e3
    if grows(low) or not grows(high):
        return None
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def limit(case: Case, exact_up_to: int) -> str | None:
    """Return what is wrong with the largest stable step of this kernel."""
    affinity = case.affinity()
    found = cfl_limit(affinity, exact_up_to=exact_up_to)
    kernel = kernel_matrix(affinity)[0]
    kernel.diagonal().zero_()
    laplacian = torch.diag(kernel.sum(-1)) - kernel
    size = float(laplacian.abs().sum(-1).max())
    wrong = None
    if found.limit == math.inf:
        wrong = None if size == 0 else "something moves"
    elif found.limit > 0:
        for share in (1, 0.5):
            growth = step_growth(laplacian, share * found.limit, affinity, found)
            if not growth <= 1 + ROUNDING:
                wrong = f"a step of {share} times the limit grows by 1 + {growth - 1:.3g}"
        beyond = step_growth(laplacian, (1 + SHARPNESS) * found.limit, affinity, found)
        if wrong is None and found.kind == "exact" and not beyond > 1 + 1e-12:
            wrong = f"a step of {1 + SHARPNESS} times the limit grows by 1 + {beyond - 1:.3g} alone"
    elif found.kind == "exact":
        small = SHARPNESS / size if size else 1.0
        if not step_growth(laplacian, small, affinity, found) > 1:
            wrong = "a small step enlarges nothing"
    return None if wrong is None else f"{found}: {wrong}; exact_up_to={exact_up_to}, {case}"


def step_growth(laplacian: Tensor, step: float, affinity: Affinity, found: CFLLimit) -> float:
    """‖I − hL‖ in the norm that a limit states; the spectral radius where that is the norm of eigenvectors."""
    matrix = torch.eye(len(laplacian), dtype=torch.float64) - step * laplacian
    if found.norm == MAX_NORM:
        return float(matrix.abs().sum(-1).max())
    if "eigenvectors" in found.norm or "real part" in found.reason:
        return float(torch.linalg.eigvals(matrix).abs().max())
    if "detailed balance" in found.norm:
        balance = self_adjoint_weights(affinity)
        assert balance is not None
        law = balance[0]
    else:
        law = own_norm(affinity).weights
    root = law.sqrt()
    seen = root > 0
    if bool((matrix[seen][:, ~seen] != 0).any()):
        return math.inf
    root = root[seen]
    return float(torch.linalg.matrix_norm(root.unsqueeze(1) * matrix[seen][:, seen] / root, 2))


def trials(chance: random.Random, folder: Path) -> Iterator[Trial]:
    """Yield trials of each kind in turn."""
    while True:
        by_bounds = chance.random() < BY_BOUNDS
        exact_up_to = 0 if by_bounds else 1024
        case = draw(chance)
        try:
            kind = "certify by bounds" if by_bounds else "certify by matrix"
            for wrong in stages(case, chance, exact_up_to):
                yield Trial(kind, wrong)
            kind = "cfl_limit"
            yield Trial(kind, limit(case, chance.choice((0, 1024))))
        except ValueError as error:
            # A kernel that overflows, or has no scaling, is refused, and no trial; another refusal is a failure.
            if "overflows" not in str(error) and "no scaling" not in str(error):
                yield Trial(kind, f"{error}; {case}")
        except Exception as error:
            yield Trial(kind, f"{type(error).__name__}: {error}; {case}")
