"""The growth of a signal through a stage z ← z − A z W_nᵀ, n = 1 … N: exact, bounded, or shown on one signal.

With a self-adjoint A the stage falls into one map Π_n (I − λ W_n) of C channels for each eigenvalue λ of A, and its
norm is the largest of theirs. For a single step ‖I − λ W‖ is convex in λ, so over an interval of λ it is largest at
one of the two ends: that bounds a stage whose eigenvalues are not known, without a grid.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nonloc.ops.arithmetic import inverse_or_zero

# Numbers in memory at once: blocks [C, C], one for each eigenvalue.
BLOCK_ENTRIES = 2**23
POWER_STEPS = 30
# M · C up to which the eigenvalues of a map that is not normal are computed; smaller maps as their work allows.
LARGEST_RADIUS = 640
LARGEST_LOG = math.log(sys.float_info.max)

Map = Callable[[Tensor], Tensor]  # z [1, M, C] -> z [1, M, C], linear


@dataclass(frozen=True, eq=False)
class Growth:
    """The growth of a norm through a stage.

    factor   the largest ‖Tz‖ / ‖z‖
    radius   the largest |eigenvalue| of T: the growth of each further pass, if it were repeated for ever; or None
    witness  z [M, C], in the coordinates of the norm, that grows by the factor
    """

    factor: float
    radius: float | None
    witness: Tensor


def spectral_growth(matrix: Tensor, weights: Sequence[Tensor]) -> Growth:
    """Of a symmetric A [M, M]: exact over its eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    channels = weights[0].shape[0]
    best = (-math.inf, 0, torch.zeros(channels))
    radius: float | None = 0.0 if len(values) * channels**3 <= LARGEST_RADIUS**3 else None
    rows = max(1, BLOCK_ENTRIES // channels**2)
    for start in range(0, len(values), rows):
        maps, sizes = channel_maps(values[start : start + rows], weights)
        squares, directions = torch.linalg.eigh(maps.mT @ maps)
        # As logarithms: growth may be more than a number holds, and only the largest is needed.
        logs = 0.5 * squares[:, -1].clamp(min=0).log() + sizes
        top = int(logs.argmax())
        if float(logs[top]) > best[0]:
            best = (float(logs[top]), start + top, directions[top, :, -1])
        if radius is not None:
            radii = torch.linalg.eigvals(maps).abs().amax(-1) * sizes.exp()
            radius = max(radius, float(radii.max()))
    log, mode, direction = best
    return Growth(_exp(log), radius, torch.outer(vectors[:, mode], direction.to(vectors)))


def channel_maps(values: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Π_n (I − λ W_n) for each λ of `values` [K]: [K, C, C] with entries up to 1, and the logarithm of its size [K]."""
    identity = torch.eye(weights[0].shape[0], dtype=values.dtype, device=values.device)
    maps = identity.expand(len(values), -1, -1)
    logs = torch.zeros_like(values)
    for weight in weights:
        maps, sizes = _scaled(maps - values.view(-1, 1, 1) * (weight @ maps))
        logs = logs + sizes.log()
    return maps, logs


def _scaled(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices [..., n, n] divided by their largest entries, so that no square of them overflows; and these [...]."""
    sizes = matrices.abs().amax((-2, -1))
    sizes = torch.where(sizes > 0, sizes, 1)
    return matrices / sizes[..., None, None], sizes


def _exp(log: float) -> float:
    return math.exp(log) if log < LARGEST_LOG else math.inf


def dense_growth(matrices: Sequence[Tensor], weights: Sequence[Tensor]) -> Growth:
    """Of any A_n [M, M], one for each W_n: exact, from the whole map [M · C, M · C]."""
    positions, channels = len(matrices[0]), len(weights[0])
    whole = torch.eye(positions * channels, dtype=matrices[0].dtype, device=matrices[0].device)
    log = 0.0
    for matrix, weight in zip(matrices, weights, strict=True):
        whole, size = _scaled(whole - torch.kron(matrix.contiguous(), weight.contiguous()) @ whole)
        log += math.log(float(size))
    squares, directions = torch.linalg.eigh(whole.T @ whole)
    radius = None
    if len(whole) <= LARGEST_RADIUS:
        radius = float(torch.linalg.eigvals(whole).abs().max()) * _exp(log)
    factor = float(squares[-1].clamp(min=0).sqrt()) * _exp(log)
    return Growth(factor, radius, directions[:, -1].view(positions, channels))


def interval_bound(low: float, high: float, weight: Tensor) -> float:
    """sup ‖I − λ W‖ over λ in [low, high]: exact, at an end of the interval."""
    ends = torch.tensor([low, high], dtype=weight.dtype, device=weight.device)
    identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    return float(torch.linalg.matrix_norm(identity - ends.view(-1, 1, 1) * weight, 2).max())


def symmetric_weight_bound(matrix: Tensor, weight: Tensor) -> float:
    """‖I − A ⊗ W‖ for any A [M, M] and a symmetric W.

    In W's eigenvectors the step is I − w A for each eigenvalue w, convex in w: the two extreme ones decide.
    """
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    extremes = torch.linalg.eigvalsh(weight)[[0, -1]]
    return max(largest_singular(identity - w * matrix) for w in extremes)


def exhibited_growth(stage: Map, roots: Tensor, channels: int) -> Growth:
    """Search for a signal that grows, by power iteration. Its growth is a bound from below.

    stage  T, linear
    roots  √π [M]; 0 where a position weighs nothing
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(1, len(roots), channels, dtype=torch.float64, generator=generator).to(roots.device)
    scale = roots.view(1, -1, 1)
    unscale = inverse_or_zero(scale)
    factor, witness = 0.0, v
    v = torch.where(scale > 0, v, 0)
    for _ in range(POWER_STEPS):
        v = (v / v.norm()).requires_grad_()
        with torch.enable_grad():
            image = scale * stage(unscale * v)
            # T is linear: the gradient of ½|Tv|² is T*T v.
            (back,) = torch.autograd.grad(0.5 * image.square().sum(), v)
        size = float(image.norm())
        if size > factor:
            factor, witness = size, v.detach()
        if not bool(back.isfinite().all()) or not bool(back.any()):
            break
        v = back
    return Growth(factor, None, witness[0])


def repeated_growth(stage: Map, like: Tensor) -> float:
    """The growth of a signal in each of many passes, as a mean over the later ones; near the spectral radius of T."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(like.shape, dtype=torch.float64, generator=generator).to(like.device)
    logs = []
    for _ in range(2 * POWER_STEPS):
        z = stage(z / z.norm())
        size = float(z.norm())
        if size == 0 or not size < float("inf"):
            return size
        logs.append(math.log(size))
    return math.exp(sum(logs[POWER_STEPS:]) / POWER_STEPS)


def largest_singular(matrix: Tensor) -> float:
    """‖A‖₂, to rounding near 1 and above."""
    matrix, size = _scaled(matrix)
    return float(torch.linalg.eigvalsh(matrix.T @ matrix)[-1].clamp(min=0).sqrt()) * float(size)


def is_symmetric(weight: Tensor) -> bool:
    """W = Wᵀ but for rounding."""
    return bool((weight - weight.T).abs().max() <= 1e-14 * weight.abs().max())
