"""Random stages for the tests of stability: weights on both sides of the limit, and the stage as one matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nonloc.ops import Affinity, aggregate, diffuse
from nonloc.processes import Certificate, cfl_limit

WEIGHTS = ("positive", "at the limit", "negative", "any", "rotation", "factored", "mixed", "zero")


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
