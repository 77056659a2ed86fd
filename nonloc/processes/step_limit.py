"""How large an Euler step of a dissipative process may be: what is certified, and what Lanczos says."""

from __future__ import annotations

from math import floor, isfinite, log10

import torch
from torch import Tensor

from nonloc.processes.matrix_free.krylov import KrylovSpace
from nonloc.processes.process import Process

VECTORS = 40
BASIS_ENTRIES = 2**26
MARGIN = 0.9  # Lanczos finds λ_max from below, and so the limit from above


def told_limit(process: Process, change: Tensor) -> str:
    """The limit of stability in words, with a step size that works; "" where nothing is known of it.

    change  [B, M, C]: one that was seen to grow, so that it has a part in what grows
    """
    certified, estimate = process.certified_euler_step(), estimated_euler_step(process, change)
    told = "" if estimate is None else f", which Lanczos estimates at {estimate:.4g}"
    if certified is not None and 0 < certified < float("inf"):
        return f"{told}; every step_size up to {rounded_down(certified):g} is certified to be stable"
    return told and f"{told}; step_size = {rounded_down(MARGIN * (estimate or 0)):g} works"


def estimated_euler_step(process: Process, change: Tensor) -> float | None:
    """2 / λ_max(−A) for a process with rate(z) = A z that is self-adjoint in Σ_i π_i u_i·v_i, by Lanczos: an estimate
    from above. None where there is no π, where nothing moves, and where something moves that π does not weigh."""
    weights = process.inner_weights()
    if weights is None or change.numel() == 0 or bool(((weights == 0) & (change != 0).any(-1)).any()):
        return None
    start = change.to(torch.promote_types(change.dtype, torch.float32))
    roots = weights.to(start).sqrt().unsqueeze(-1)
    inverse = torch.where(roots > 0, 1 / torch.where(roots > 0, roots, 1), 0)

    def apply(v: Tensor) -> Tensor:
        moved = process.rate(inverse * v.view(start.shape))
        return -(torch.where(roots > 0, moved, 0) * roots).flatten(1)

    size = max(8, min(VECTORS, BASIS_ENTRIES // start.numel()))
    # A change alone may have lost modes to rounding; a little of everything brings them back.
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        start
    )
    seen = torch.where(roots > 0, start, 0)
    largest = seen.abs().amax((1, 2), keepdim=True)
    seen = torch.where(largest > 0, seen / torch.where(largest > 0, largest, 1), 0) + 0.01 * noise
    space = KrylovSpace(apply, (roots * seen).flatten(1), size)
    space.extend(size)
    small = space.hessenberg[:, :-1].double()
    if not bool(torch.isfinite(small).all()):
        return None
    largest_rate = float(torch.linalg.eigvalsh((small + small.mT) / 2).max())
    return 2 / largest_rate if largest_rate > 0 and isfinite(2 / largest_rate) else None


def rounded_down(x: float) -> float:
    """To three significant digits; a bound that was lowered by rounding alone is not lowered further."""
    if x <= 0:
        return x
    unit = 10.0 ** (floor(log10(x)) - 2)
    return float(f"{floor(x / unit * (1 + 1e-9)) * unit:.3g}")
