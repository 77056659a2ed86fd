"""Images as signals on positions: pixels are positions, the patch around a pixel is its feature."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

from nonloc._checks import is_whole
from nonloc.ops.affinity import shape_and_dtype


def patch_features(image: Tensor, radius: int = 1) -> Tensor:
    """The patches of an image [C, H, W] as features [1, H·W, C (2 radius + 1)²], mirrored at the border.

    Scaled by one over the root of their length: |l_i − l_j|² is then the mean squared difference of two patches.
    """
    _check_image(image)
    if not is_whole(radius) or radius < 0:
        raise ValueError(f"radius must be a whole number ≥ 0, got {radius!r}; 1 means patches of 3 × 3")
    if radius >= min(image.shape[1:]):
        largest = min(image.shape[1:]) - 1
        raise ValueError(
            f"radius={radius} does not fit an image of {image.shape[1]} × {image.shape[2]} pixels; use "
            f"radius={largest}{' or less' if largest else ''}, or a larger image"
        )
    side = 2 * radius + 1
    widened = pad(image.unsqueeze(0), (radius,) * 4, mode="reflect") if radius else image.unsqueeze(0)
    patches = unfold(widened, side).mT
    return patches / math.sqrt(patches.shape[-1])


def to_signal(image: Tensor) -> Tensor:
    """[C, H, W] -> z [1, H·W, C]."""
    _check_image(image)
    return image.flatten(1).mT.unsqueeze(0)


def to_image(signal: Tensor, height: int, width: int) -> Tensor:
    """z [1, H·W, C] -> [C, H, W]."""
    if signal.shape[0] != 1 or signal.shape[1] != height * width:
        raise ValueError(f"signal must be [1, {height * width}, C], got {list(signal.shape)}")
    return signal[0].mT.reshape(signal.shape[-1], height, width)


def psnr(image: Tensor, truth: Tensor, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB, of an image and a truth of one shape."""
    if image.shape != truth.shape:
        raise ValueError(
            f"image {list(image.shape)} and truth {list(truth.shape)} must have one shape; to_image(z, height, width) "
            "makes an image of a state"
        )
    return float(10 * torch.log10(peak**2 / (image - truth).square().mean()))


def _check_image(image: Tensor) -> None:
    if isinstance(image, Tensor) and image.dim() == 3 and image.dtype.is_floating_point and image.numel():
        return
    fix = "; a grey image becomes one by image[None]" if getattr(image, "ndim", 3) == 2 else ""
    raise ValueError(
        f"image must be a floating point tensor [C, H, W] with pixels, got {shape_and_dtype(image)}{fix}"
    )
