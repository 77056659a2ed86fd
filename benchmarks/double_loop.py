"""The definitions once more, as two plain loops over i and j on single numbers. Slow, and easy to believe.

It shares no code with `nonloc.ops`, so an error would have to be made twice. Gradients come from autograd through
the loops; the Sinkhorn scaling is iterated (not solved), so its derivative is that of the iteration's limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc.ops import Affinity

SINKHORN_SWEEPS = 120


def kernel(affinity: Affinity) -> list[list[list[Tensor]]]:
    """K[b][i][j], each a number."""
    return [_sample(affinity, b) for b in range(affinity.batch)]


def aggregate(affinity: Affinity, z: Tensor) -> Tensor:
    """Σ_j K_ij z_j, term by term."""
    return _gather(kernel(affinity), z, relative=False)


def diffuse(affinity: Affinity, z: Tensor) -> Tensor:
    """Σ_j K_ij (z_j − z_i), term by term."""
    return _gather(kernel(affinity), z, relative=True)


def propagate(affinity: Affinity, z: Tensor, weights: Tensor) -> Tensor:
    """z_i ← z_i + W Σ_j K_ij (z_j − z_i) for each W in turn."""
    k = kernel(affinity)
    for w in weights:
        change = _gather(k, z, relative=True)
        z = torch.stack(
            [torch.stack([z[b, i] + w @ change[b, i] for i in range(len(k[b]))]) for b in range(len(k))]
        )
    return z


def _gather(k: list[list[list[Tensor]]], z: Tensor, relative: bool) -> Tensor:
    samples = []
    for b, sample in enumerate(k):
        rows = []
        for i, row in enumerate(sample):
            total = torch.zeros_like(z[b, 0])
            for j, entry in enumerate(row):
                total = total + entry * (z[b, j] - z[b, i] if relative else z[b, j])
            rows.append(total)
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def _sample(affinity: Affinity, b: int) -> list[list[Tensor]]:
    size = affinity.positions
    valid = [affinity.mask is None or bool(affinity.mask[b, i]) for i in range(size)]
    zero = affinity.left.new_zeros(())
    mass = [(zero + 1 if affinity.measure is None else affinity.measure[j]) * valid[j] for j in range(size)]
    omega = [
        [_omega(affinity, b, i, j) if valid[i] and valid[j] else zero for j in range(size)]
        for i in range(size)
    ]
    sums = [sum((omega[i][j] * mass[j] for j in range(size)), zero) for i in range(size)]
    total = sum(mass, zero)
    if affinity.normalize == "sinkhorn":
        u = _scaling(omega, mass, sums)
    result = []
    for i in range(size):
        row = []
        for j in range(size):
            entry = omega[i][j] * mass[j]
            if sums[i] == 0 or not valid[i]:
                entry = zero
            elif affinity.normalize == "row":
                entry = entry / sums[i]
            elif affinity.normalize == "count":
                entry = entry / total
            elif affinity.normalize == "symmetric":
                entry = entry / (sums[i] * sums[j]).sqrt() if sums[j] != 0 else zero
            elif affinity.normalize == "sinkhorn":
                entry = u[i] * entry * u[j]
            row.append(entry)
        result.append(row)
    return result


def _omega(affinity: Affinity, b: int, i: int, j: int) -> Tensor:
    left, right = affinity.left[b, i], affinity.right[b, j]
    if affinity.kind == "gaussian":
        return (affinity.scale * (left * right).sum()).exp()
    if affinity.kind == "heat":
        return (-affinity.scale * (left - right).square().sum()).exp()
    if affinity.kind == "dot":
        return affinity.scale * (left * right).sum()
    if affinity.kind == "concat":
        return (left + right).squeeze().relu()
    return left.new_ones(()) if i == j else left.new_zeros(())


def _scaling(omega: list[list[Tensor]], mass: list[Tensor], sums: list[Tensor]) -> list[Tensor]:
    """u with u_i Σ_j Ω_ij μ_j u_j = 1, by u ← √(u / Ωμu)."""
    size = len(omega)
    u = [s.rsqrt() if s > 0 else s for s in sums]
    for _ in range(SINKHORN_SWEEPS):
        image = [sum((omega[i][j] * mass[j] * u[j] for j in range(size)), sums[0] * 0) for i in range(size)]
        u = [(u[i] / image[i]).sqrt() if image[i] > 0 else u[i] for i in range(size)]
    return u
