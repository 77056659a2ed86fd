"""read_tensors: the images and maps that were observed of a run, checked. Never imports torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from nonloc.outcomes import CorruptDataError

Tensors = dict[str, NDArray[Any]]


def read_tensors(path: Path, observations: Mapping[str, Any]) -> Tensors:
    """Return the tensors of observations.safetensors by name, {} without the file or without observations.

    images uint8 [K, 3, H, W]; noisy and restored float32 of the same shape; affinity.<stage> float32 [K, h, w]. A
    tensor that was not finite is missing. What does not fit the observations is a CorruptDataError.
    """
    if not observations or not os.path.lexists(path):
        return {}
    try:
        content = path.read_bytes()
        tensors = load(content)
        wrong = next(_faults(content, tensors, observations), None)
    except (SafetensorError, IsADirectoryError, KeyError, TypeError, ValueError) as error:
        wrong = f"is not a whole safetensors file ({error})"
    if wrong is not None:
        raise CorruptDataError(
            f"{path} {wrong}; delete it and observations.json, and run `nonloc spectrum {path.parent} --features`"
        )
    return tensors


def _faults(content: bytes, tensors: Tensors, observations: Mapping[str, Any]) -> Iterator[str]:
    known = observations.get("tensors_sha256")
    if known is not None and hashlib.sha256(content).hexdigest() != known:
        yield "is not the file that observations.json names by its SHA-256"
    images = tensors.get("images")
    if images is None or images.ndim != 4 or images.shape[1] != 3 or images.dtype != np.uint8:
        yield "has no images, uint8 [K, 3, H, W]"
        return
    grids = {f"affinity.{one['stage']}": tuple(one["grid"]) for one in observations.get("affinity", [])}
    shapes = {"noisy": images.shape, "restored": images.shape} if "psnr" in observations else {}
    shapes |= {name: (len(images), *grid) for name, grid in grids.items()}
    for name, value in tensors.items():
        if name != "images" and (value.shape != shapes.get(name) or value.dtype != np.float32):
            yield f"has {ascii(name)[:60]} of another type or shape than the observations say"
        elif not np.isfinite(value).all():
            yield f"has {ascii(name)[:60]} with numbers that are not finite"
    if any(len(values) != len(images) for values in observations.get("psnr", {}).values()):
        yield "has another number of images than observations.json"
