"""Random stages for the tests of stability: every kind and normalisation, weights on both sides of the limit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nonloc.ops import KINDS, NORMALIZATIONS, Affinity, aggregate, diffuse
from nonloc.processes import Certificate, cfl_limit

WEIGHTS = ("positive", "at the limit", "negative", "any", "rotation", "factored", "mixed", "zero")


def random_affinity(draw: torch.Generator) -> Affinity:
    """Shared or separate features, now and then with a mask, a measure, or positions that are worlds apart."""

    def pick(number: int) -> int:
        return int(torch.randint(number, (), generator=draw))

    kind, normalize = KINDS[pick(len(KINDS))], NORMALIZATIONS[pick(len(NORMALIZATIONS))]
    positions = 2 + pick(6)
    symmetric = normalize in ("symmetric", "sinkhorn")
    size = (1, positions, 1 if kind == "concat" else 2)
    spread = 10 ** (2 * float(torch.rand((), generator=draw)) - 1.5)
    left = spread * torch.randn(size, generator=draw, dtype=torch.float64)
    right = spread * torch.randn(size, generator=draw, dtype=torch.float64)
    if kind in ("dot", "concat") and (symmetric or pick(2)):
        left, right = left.abs() + 0.1, right.abs() + 0.1
    if symmetric or pick(2):
        right = left
    mask = measure = None
    if pick(4) == 0:
        mask = torch.rand(1, positions, generator=draw) > 0.3
        mask[:, 0] = True
    if pick(4) == 0:
        measure = 0.1 + torch.rand(positions, generator=draw, dtype=torch.float64)
    return Affinity(left, right, kind, normalize, mask=mask, measure=measure)


def random_weights(affinity: Affinity, draw: torch.Generator) -> list[Tensor]:
    """1 to 3 matrices [C, C], C from 1 to 3, of a size that the kernel can or can just not bear."""

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=draw, dtype=torch.float64)

    channels = 1 + int(torch.randint(3, (), generator=draw))
    limit = cfl_limit(affinity).limit
    limit = limit if 0 < limit < math.inf else 1.0
    actual = []
    kind = WEIGHTS[int(torch.randint(len(WEIGHTS), (), generator=draw))]
    for _ in range(1 + int(torch.randint(3, (), generator=draw))):
        size = limit * 1.2 * float(torch.rand((), generator=draw))
        turn, _ = torch.linalg.qr(normal(channels, channels))
        share = torch.rand(channels, generator=draw, dtype=torch.float64)
        positive = turn @ torch.diag(share) @ turn.T
        one = {
            "positive": size * positive,
            "at the limit": limit * torch.eye(channels, dtype=torch.float64),
            "negative": -size * positive,
            "any": size * normal(channels, channels),
            "rotation": size * turn,
            "factored": size * normal(channels, 1) @ normal(1, channels),
            "mixed": size * (positive + 0.05 * normal(channels, channels)),
            "zero": torch.zeros(channels, channels, dtype=torch.float64),
        }[kind]
        actual.append(one)
    return actual


def whole_map(affinity: Affinity, weights: list[Tensor], form: str) -> Tensor:
    """T [M · C, M · C], from what the stage does to each unit signal."""
    operate = diffuse if form == "diffusive" else aggregate
    positions, channels = affinity.positions, len(weights[0])
    columns = []
    for unit in torch.eye(positions * channels, dtype=torch.float64).view(-1, 1, positions, channels):
        z = unit
        for weight in weights:
            z = z + operate(affinity, z) @ weight.T
        if affinity.mask is not None:
            z = torch.where(affinity.mask.unsqueeze(-1), z, unit)
        columns.append(z.flatten())
    return torch.stack(columns, 1)


def norm_of(certificate: Certificate, z: Tensor) -> Tensor:
    """‖z‖ [...] of z [..., M, C] in the certificate's norm."""
    return (certificate.weights.unsqueeze(-1) * z.square()).sum((-2, -1)).sqrt()
