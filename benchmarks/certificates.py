"""An audit of `certify`: thousands of random stages against the norm of the dense operator.

A third of the stages are scaled to lie within 1e-3 of the boundary between stable and unstable, where a careless
certificate would err. Every verdict is held to the largest singular value of the stage as one matrix, in the norm that
the certificate states; the degree bound is audited too, on its own.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import markdown
from nonloc.ops import KINDS, NORMALIZATIONS, Affinity, kernel_matrix
from nonloc.processes.jump.stationary import stationary_weights
from nonloc.processes.stability.certificate import Certificate
from nonloc.processes.stability.certify import certify
from nonloc.processes.stability.own_norm import STATIONARY

# A norm within this of 1 counts as either: both sides are computed with rounding.
ROUNDING = 1e-9


def measure(options: Namespace, talk: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for by_matrix, share in ((True, 1), (False, 3)):
        row = audit(max(1, options.cases // share), by_matrix=by_matrix)
        rows.append({**row, "passed": not row["wrong"]})
        way = "by matrix" if by_matrix else "by bounds"
        talk(f"{way}: {len(row['wrong'])} wrong of {row['cases']:,}")
    return rows


def audit(cases: int = 10_000, seed: int = 0, by_matrix: bool = True) -> dict[str, Any]:
    """Count right, wrong and undecided answers over `cases` random stages with M · C ≤ 512.

    by_matrix  False: the certificate may not look at kernels as matrices, so that bounds have to decide
    """
    generator = torch.Generator().manual_seed(seed)
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    undecided: Counter[str] = Counter()
    for case in range(cases):
        affinity, weights = _stage(generator, near=case % 3 == 0)
        certificate = certify(affinity, weights, exact_up_to=1024 if by_matrix else 0)
        kernel = kernel_matrix(affinity)[0]
        norm = stage_norm(kernel, weights, stated_law(kernel, certificate))
        counts[certificate.verdict] += 1
        counts["near the boundary"] += abs(norm - 1) <= 1e-3
        if is_wrong(certificate, norm):
            wrong.append(
                {"case": case, "verdict": certificate.verdict, "norm": norm, "reason": certificate.reason}
            )
        if certificate.verdict == "not decided":
            undecided[_why_undecided(certificate.reason, norm)] += 1
    return {
        "cases": cases,
        "seed": seed,
        "by_matrix": by_matrix,
        **{name: counts[name] for name in ("stable", "unstable", "not decided", "near the boundary")},
        "wrong": wrong,
        "undecided_because": dict(undecided.most_common()),
    }


def _why_undecided(reason: str, norm: float) -> str:
    if "no norm of its own" in reason:
        return "the kernel has no norm of its own"
    return "the norm is 1 to rounding (1e-9)" if abs(norm - 1) <= ROUNDING else "the bound does not decide"


def _stage(generator: torch.Generator, near: bool) -> tuple[Affinity, list[Tensor]]:
    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kind, normalize = KINDS[whole(0, len(KINDS) - 1)], NORMALIZATIONS[whole(0, len(NORMALIZATIONS) - 1)]
    positions = (whole(2, 12), whole(2, 12), whole(13, 64))[whole(0, 2)]
    channels = whole(1, min(8, 512 // positions))
    left = normal(1, positions, 1 if kind == "concat" else whole(1, 3))
    symmetric = normalize in ("symmetric", "sinkhorn")
    if symmetric and kind in ("dot", "concat"):
        left = left.abs() + 0.05
    right = left if symmetric or whole(0, 1) else normal(*left.shape)
    affinity = Affinity(left, right, kind, normalize)
    weights = []
    for _ in range(whole(1, 3)):
        w = normal(channels, channels) / channels**0.5
        if whole(0, 1):
            w = w @ w.T  # symmetric and ≥ 0: the case that can be stable
        weights.append(w * (10 ** (2 * float(torch.rand((), generator=generator)) - 1.5)))
    if near:
        weights = _scaled_to_boundary(affinity, weights, generator)
    return affinity, weights


def _scaled_to_boundary(
    affinity: Affinity, weights: list[Tensor], generator: torch.Generator
) -> list[Tensor]:
    """The weights times the factor at which the norm passes 1, moved by up to 1e-3 to either side; where there is no
    such factor they stay as they are."""
    low, high = 0.0, 1.0
    norm = certify(affinity, [high * w for w in weights]).growth
    if norm > 1:
        if certify(affinity, [1e-3 * w for w in weights]).growth > 1 + ROUNDING:
            return weights
        low = 1e-3
    else:
        while norm <= 1 + ROUNDING and high < 1e3:
            low, high = high, 2 * high
            norm = certify(affinity, [high * w for w in weights]).growth
    for _ in range(30):
        middle = (low + high) / 2
        inside = certify(affinity, [middle * w for w in weights]).growth <= 1 + ROUNDING
        low, high = (middle, high) if inside else (low, middle)
    shift = 2e-3 * float(torch.rand((), generator=generator)) - 1e-3
    return [low * (1 + shift) * w for w in weights]


def stage_norm(kernel: Tensor, weights: Sequence[Tensor], law: Tensor) -> float:
    """The largest singular value of Π_n (I − L ⊗ W_n), by the dense matrix alone, in the norm ‖z‖² = Σ π_i |z_i|².

    kernel  K [M, M]
    law     π [M]
    """
    laplacian = torch.diag(kernel.sum(-1)) - kernel
    channels = weights[0].shape[0]
    total = torch.eye(len(kernel) * channels, dtype=torch.float64)
    for weight in weights:
        total = total - torch.kron(laplacian, weight) @ total
    root = law.sqrt().repeat_interleave(channels)
    seen = root > 0
    # What the norm does not see must not reach what it sees.
    if bool((total[seen][:, ~seen] != 0).any()):
        return float("inf")
    root = root[seen]
    return float(torch.linalg.matrix_norm(root.unsqueeze(1) * total[seen][:, seen] / root, 2))


def stated_law(kernel: Tensor, certificate: Certificate) -> Tensor:
    """π [M] of the norm that a certificate states. A bound that holds in the stationary law does not compute it."""
    if certificate.weights is not None:
        return certificate.weights
    law = torch.ones_like(kernel[0])
    if certificate.norm != STATIONARY:
        return law
    rates = kernel - torch.diag(kernel.diagonal())
    moves = (rates != 0).any(0) | (rates != 0).any(1)
    found = stationary_weights(rates[moves][:, moves])
    assert found is not None, "a kernel that is positive everywhere has a positive law"
    law[moves] = found
    return law


def is_wrong(certificate: Certificate, norm: float) -> bool:
    """Return whether the verdict contradicts the norm."""
    if certificate.verdict == "stable":
        return not norm <= 1 + ROUNDING  # NaN is wrong, too
    return certificate.verdict == "unstable" and norm < 1 - ROUNDING


def table(rows: Sequence[dict[str, Any]]) -> str:
    verdicts = ("stable", "unstable", "not decided")
    cells = [
        [
            "as matrices" if row["by_matrix"] else "by bounds alone",
            *(f"{row[name]:,}" for name in ("cases", "near the boundary", *verdicts)),
            str(len(row["wrong"])),
        ]
        for row in rows
    ]
    shown = markdown(["kernels are looked at", "stages", "within 1e-3 of 1", *verdicts, "wrong"], cells)
    why = (
        f"Not decided {'as matrices' if row['by_matrix'] else 'by bounds'}: "
        + "; ".join(f"{reason}: {count:,}" for reason, count in row["undecided_because"].items())
        for row in rows
        if row["undecided_because"]
    )
    return "\n\n".join([shown, *why])
