"""The picture that `nonloc simulate` starts from: any file that Pillow opens, as numbers in [0, 1]."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from nonloc._checks import shown

LARGEST_SIDE = 1024  # pixels; every step goes through all pairs of them
# What Pillow's readers raise on files that are cut short or scrambled.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)


def read_picture(path: str | None, size: int) -> Any:
    """float64 [3, H, W] in [0, 1], its longer side scaled to `size`; a flower without a path.

    Greys become three equal channels, transparent pixels become white, and the camera's orientation is applied. 8 and
    16 bits a channel are scaled to [0, 1]; floating point must lie in [0, 1] already.
    """
    import numpy as np
    import torch

    if size > LARGEST_SIDE:
        raise ValueError(
            f"--size must be at most {LARGEST_SIDE}, got {shown(size)}; the kernel is between all pairs of pixels"
        )
    picture = _flower() if path is None else _opened(path)
    scale = size / max(picture.size)
    shape = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    if picture.mode == "F":
        # Interpolation overshoots at edges.
        grey = np.clip(np.asarray(picture.resize(shape)), 0, 1)
        pixels = np.repeat(grey[..., None], 3, axis=-1).astype(np.float64)
    else:
        pixels = np.asarray(picture.resize(shape)).astype(np.float64) / 255
    return torch.from_numpy(pixels).movedim(-1, 0)


def _flower() -> Any:
    from PIL import Image
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("flower.jpg")).crop((150, 40, 500, 390))


def _opened(path: str) -> Any:
    """In mode "RGB", or in mode "F" with values in [0, 1] where 8 bits would lose something."""
    from PIL import Image, ImageOps

    if Path(path).is_dir():
        raise ValueError(f"--image {path} is a folder; give an image file in it")
    if not Path(path).is_file():
        raise ValueError(f"--image {path}: there is no such file")
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            picture.load()
    except Image.DecompressionBombError as error:
        raise ValueError(f"--image {path} is too large to be opened ({error}); scale it down first") from None
    except UNREADABLE as error:
        raise ValueError(f"--image {path} cannot be read as an image ({error}); use a PNG or JPEG") from None
    if picture.mode == "F" or picture.mode.startswith("I"):
        return _deep_grey(picture, path)
    if picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return picture.convert("RGB")


def _deep_grey(picture: Any, path: str) -> Any:
    """More than 8 bits of grey in mode "F", scaled to [0, 1]; Pillow's own conversion would cut them off at 255."""
    import numpy as np
    from PIL import Image

    values = np.asarray(picture).astype(np.float64)
    whole = picture.mode != "F"
    if whole:
        values = values / 65535
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        allowed = "whole numbers from 0 to 65535" if whole else "finite numbers from 0 to 1"
        raise ValueError(
            f"--image {path} has pixels of mode {picture.mode} that are not {allowed}; scale them and save it again"
        )
    return Image.fromarray(values.astype(np.float32))
