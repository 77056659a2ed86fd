"""Where [B, C, *spatial] meets [B, M, C]."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def to_positions(x: Tensor, layout: str, channels: int) -> Tensor:
    """x in the given layout as [B, M, C]."""
    _check_input(x, layout, channels)
    return x if layout == "positions" else x.flatten(2).transpose(1, 2)


def from_positions(z: Tensor, layout: str, shape: torch.Size) -> Tensor:
    """z [B, M, C] in the given layout; `shape` is that of the input it came from."""
    return z if layout == "positions" else z.transpose(1, 2).reshape(shape)


def flat_mask(mask: Tensor | None, x: Tensor, layout: str) -> Tensor | None:
    """The mask of valid positions as [B, M]; given as [B, M], or [B, *spatial] with channels first."""
    if mask is None:
        return None
    expected = x.shape[:2] if layout == "positions" else x.shape[:1] + x.shape[2:]
    if mask.dtype != torch.bool or mask.shape != expected:
        raise ValueError(
            f"mask must be a bool tensor {list(expected)}, True where valid; "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    return mask.flatten(1)


def pool_positions(z: Tensor, shape: torch.Size, stride: int) -> Tensor:
    """z [B, M, C] max-pooled to [B, M', C] over the spatial dimensions of `shape` [B, C, *spatial].

    Of [B, C, T, H, W] height and width are pooled and time is kept, as Wang et al. do.
    """
    spatial = shape[2:]
    kernel = [stride] * len(spatial)
    if len(spatial) == 3:
        kernel[0] = 1
    if any(size < step for size, step in zip(spatial, kernel, strict=True)):
        raise ValueError(f"subsample={stride} leaves no key of an input {list(shape)}; use a smaller one")
    pooled = _POOLS[len(spatial)](z.transpose(1, 2).reshape(shape), kernel, kernel)
    return pooled.flatten(2).transpose(1, 2)


def _check_input(x: Tensor, layout: str, channels: int) -> None:
    if not isinstance(x, Tensor):
        raise ValueError(f"a nonlocal module takes a tensor, got {type(x).__name__}")
    fits = x.dim() == 3 if layout == "positions" else 3 <= x.dim() <= 5
    form = "[B, M, C]" if layout == "positions" else "[B, C, L], [B, C, H, W] or [B, C, T, H, W]"
    if not fits:
        raise ValueError(
            f"layout={layout!r} takes {form}, got {list(x.shape)}; add a batch dimension or change layout"
        )
    got = x.shape[-1 if layout == "positions" else 1]
    if got != channels:
        raise ValueError(
            f"the module has {channels} channels and its input {list(x.shape)}, read as {form}, has {got}; "
            "build it with that number of channels, or change layout"
        )
