"""Layouts: [B, C, *spatial] and [B, *spatial, C] as [B, M, C] and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
# By layout, for inputs of three, four and five dimensions.
_FORMS = {
    "channels_first": ("[B, C, L]", "[B, C, H, W]", "[B, C, T, H, W]"),
    "positions": ("[B, M, C]", "[B, H, W, C]", "[B, T, H, W, C]"),
}


def to_positions(x: Tensor, layout: str, channels: int) -> Tensor:
    """Return x, in this layout, as [B, M, C]."""
    if not isinstance(x, Tensor):
        raise ValueError(f"a nonlocal module takes a tensor, got {type(x).__name__}")
    if not x.dtype.is_floating_point:
        fix = "x.real" if x.dtype.is_complex else "x.dequantize()" if x.is_quantized else "x.float()"
        raise ValueError(f"a nonlocal module takes floating point, got {x.dtype}; use {fix}")
    if x.is_nested:
        raise ValueError(
            "a nonlocal module does not take a nested tensor; use x.to_padded_tensor(0) with a mask, or "
            "nn.TransformerEncoder(…, enable_nested_tensor=False)"
        )
    check_shape(x.shape, layout, channels)
    return x.flatten(1, -2) if layout == "positions" else x.flatten(2).transpose(1, 2)


def from_positions(z: Tensor, layout: str, shape: torch.Size) -> Tensor:
    """Return z [B, M, C] in this layout; `shape` is that of the input it came from."""
    return (z if layout == "positions" else z.transpose(1, 2)).reshape(shape)


def flat_mask(mask: Tensor, x: Tensor, layout: str) -> Tensor:
    """Return the mask of valid positions, [B, *spatial] like x without its channels, as [B, M]."""
    expected = x.shape[:-1] if layout == "positions" else x.shape[:1] + x.shape[2:]
    if not isinstance(mask, Tensor):
        raise ValueError(
            f"mask must be a bool tensor {list(expected)}, got {type(mask).__name__}; use torch.as_tensor(mask)"
        )
    if mask.dtype != torch.bool or mask.shape != expected:
        raise ValueError(
            f"mask must be a bool tensor {list(expected)}, True where valid; "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    return mask.flatten(1)


def pool_positions(z: Tensor, shape: torch.Size, stride: int) -> Tensor:
    """Return z [B, M, c] max-pooled to [B, M', c] over the spatial dimensions of `shape` [B, C, *spatial].

    Of [B, C, T, H, W] height and width are pooled, and time is not, as in Wang et al.
    """
    kernel = _strides(shape, stride)
    image = z.transpose(1, 2).reshape(shape[0], z.shape[-1], *shape[2:])
    pooled = _POOLS[len(kernel)](image, kernel, kernel)
    return pooled.flatten(2).transpose(1, 2)


def check_shape(shape: torch.Size, layout: str, channels: int, subsample: int | None = None) -> None:
    """Raise a ValueError unless a module with these settings takes an input of this shape."""
    forms = _FORMS[layout]
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"layout={layout!r} takes {forms[0]}, {forms[1]} or {forms[2]}, got {list(shape)}; "
            "add a batch dimension, or one of positions"
        )
    got = shape[-1 if layout == "positions" else 1]
    if got != channels:
        other, across = ("channels_first", 1) if layout == "positions" else ("positions", -1)
        fix = "build it with that number of channels, or change layout"
        if shape[0] == channels and layout == "channels_first":
            fix = "one sample without a batch is x[None]"
        if shape[across] == channels:
            fix = f'use layout="{other}", which reads it as {_FORMS[other][len(shape) - 3]}'
        raise ValueError(
            f"the module has {channels} channels and its input {list(shape)}, read as {forms[len(shape) - 3]}, "
            f"has {got}; {fix}"
        )
    if 0 in shape[1:]:
        raise ValueError(f"an input {list(shape)} has no position; give one with at least one")
    if subsample is not None:
        _strides(shape, subsample)


def _strides(shape: torch.Size, stride: int) -> list[int]:
    """Return the stride in each spatial dimension of [B, C, *spatial]."""
    spatial = shape[2:]
    kernel = [stride] * len(spatial)
    if len(spatial) == 3:
        kernel[0] = 1
    if any(size < step for size, step in zip(spatial, kernel, strict=True)):
        fix = "use a smaller one" if stride > 2 else "leave it out"
        raise ValueError(
            f"subsample={stride} leaves no key of an input {list(shape)}; {fix}, or a larger input"
        )
    return kernel
