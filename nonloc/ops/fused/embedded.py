"""A stage whose features are linear maps of its own state: embedding, kernel and update as one computation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nonloc._torch_compat import is_exporting, is_forward_mode, is_transformed
from nonloc.ops.arithmetic import full_precision
from nonloc.ops.fused import (
    LARGEST_BATCH,
    WIDEST_STATE,
    choice,
    is_available,
    padded_channels,
    padded_width,
    stack_weights,
)
from nonloc.ops.fused.launch import Settings
from nonloc.ops.fused.operators import embedded_stage

WIDEST = 64  # d = r: with more, the last kernel backward has not enough registers

Pair = tuple[Tensor, Tensor]


def propagate_embedded(
    z: Tensor,
    embedding: Callable[[], Pair | None],
    pairs: Sequence[Tensor | Pair],
    *,
    scale: float,
    differences: bool,
    backend: str,
) -> Tensor | None:
    """As `propagate` with Affinity(z θᵀ, z φᵀ, "gaussian", scale=scale), for (θ, φ) [d, C] under autocast.

    None where there is no such computation, or where the backend is, or "auto" would be, another one.

    embedding  () -> (θ, φ), or None where they are not all that there is; called only for a state that is taken
    """
    if backend not in ("auto", "fused") or (backend == "auto" and not z.is_cuda) or z.is_meta:
        return None
    kind = z.device.type
    # That of linear(z).
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else z.dtype
    maps = embedding() if _takes_state(z, dtype) else None
    if maps is None or not _takes_maps(z, maps, pairs):
        return None
    batch, positions, _ = z.shape
    width = maps[0].shape[0]
    if backend == "auto" and choice.order(batch, positions, width, width, len(pairs), dtype)[0] != "fused":
        return None
    settings = Settings(scale, differences, torch.are_deterministic_algorithms_enabled(), dtype=dtype)
    with full_precision(z):
        tensors = (one.contiguous() for one in (z, *maps, *stack_weights(pairs)))
        return embedded_stage(*tensors, settings=settings)


def _takes_state(z: Tensor, dtype: torch.dtype) -> bool:
    if is_exporting() or is_transformed() or is_forward_mode():
        return False
    if dtype not in choice.HALF or z.dtype not in (dtype, torch.float32) or len(z) > LARGEST_BATCH:
        return False
    # Inside a traced program nothing can be asked about the machine; the operator says it when it runs.
    return torch.compiler.is_compiling() or is_available(z.device)


def _takes_maps(z: Tensor, embedding: Pair, pairs: Sequence[Tensor | Pair]) -> bool:
    factors = [one for pair in (embedding, *pairs) if isinstance(pair, tuple) for one in pair]
    width, channels = embedding[0].shape
    shapes = {(channels, width), (width, channels)}
    if len(factors) != 2 * len(pairs) + 2 or any(one.shape not in shapes for one in factors):
        return False
    if padded_width(width) != width or padded_channels(channels) != channels:
        return False
    if width > WIDEST or channels > WIDEST_STATE:
        return False
    # Where torch asks for another dtype, the usual way says so.
    dtypes = (torch.float32, *choice.HALF) if torch.is_autocast_enabled(z.device.type) else (z.dtype,)
    return all(one.device == z.device and one.dtype in dtypes for one in factors)
