"""Drawn pictures that we may ship: a bird, a ship, noisy tiles. Drawn by whole numbers, so the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64
FINE = 4  # each pixel is the mean of FINE × FINE points
NOISE = 40  # grey levels up or down

Picture = NDArray[np.uint8]  # [3, 64, 64]
_DOWN, _RIGHT = np.mgrid[: SIDE * FINE, : SIDE * FINE]  # in quarters of a pixel


def pictures() -> dict[str, Picture]:
    """Return the pictures by name."""
    return {"a bird": _bird(), "a ship": _ship(), "noisy tiles": _tiles()}


def halved(picture: Picture) -> Picture:
    """Return the picture [3, H, W] at half its size, by the means of 2 × 2 pixels."""
    channels, height, width = picture.shape
    blocks = picture.reshape(channels, height // 2, 2, width // 2, 2).astype(np.int64)
    return ((blocks.sum((2, 4)) + 2) // 4).astype(np.uint8)


def _bird() -> Picture:
    canvas = _gradient((112, 168, 224), (196, 220, 240))
    _fill(canvas, _polygon((0, 202), (256, 222), (256, 238), (0, 214)), (94, 66, 44))  # branch
    _fill(canvas, _polygon((36, 120), (8, 84), (20, 78), (92, 132)), (120, 44, 36))  # tail
    _fill(canvas, _ellipse(120, 148, 72, 48), (188, 74, 44))  # body
    _fill(canvas, _ellipse(128, 166, 50, 28), (232, 176, 120))  # belly
    _fill(canvas, _ellipse(176, 92, 36, 34), (188, 74, 44))  # head
    _fill(canvas, _polygon((206, 86), (244, 98), (206, 108)), (232, 184, 48))  # beak
    _fill(canvas, _ellipse(184, 84, 7, 7), (20, 20, 24))  # eye
    _fill(canvas, _ellipse(98, 138, 46, 24), (120, 44, 36))  # wing
    for left in (112, 136):
        _fill(canvas, _polygon((left, 192), (left + 6, 192), (left + 6, 218), (left, 218)), (80, 60, 40))
    return _reduced(canvas)


def _ship() -> Picture:
    canvas = _gradient((236, 196, 148), (176, 204, 228))
    _fill(canvas, _ellipse(204, 52, 22, 22), (250, 232, 170))  # sun
    waves = (_DOWN >= 168) & ((_DOWN + (_RIGHT // 16 % 2) * 6) // 10 % 2 == 0)
    _fill(canvas, _DOWN >= 168, (36, 84, 136))
    _fill(canvas, waves, (60, 116, 168))
    _fill(canvas, _polygon((40, 156), (220, 156), (188, 202), (72, 202)), (70, 50, 46))  # hull
    _fill(canvas, _polygon((40, 156), (220, 156), (216, 166), (46, 166)), (214, 206, 196))
    _fill(canvas, _polygon((124, 24), (130, 24), (130, 156), (124, 156)), (60, 44, 36))  # mast
    _fill(canvas, _polygon((134, 30), (206, 148), (134, 148)), (244, 240, 230))
    _fill(canvas, _polygon((120, 44), (120, 148), (60, 148)), (206, 74, 62))
    return _reduced(canvas)


def _tiles() -> Picture:
    canvas = _gradient((40, 60, 92), (40, 60, 92))
    down, right = _DOWN % 64 - 32, _RIGHT % 64 - 32
    _fill(canvas, np.abs(down) + np.abs(right) <= 30, (226, 150, 60))
    _fill(canvas, down**2 + right**2 <= 13**2, (60, 150, 140))
    _fill(canvas, (_DOWN % 64 < 6) | (_RIGHT % 64 < 6), (220, 220, 214))
    clean = _reduced(canvas).astype(np.int64)
    # Raw output of PCG64, which numpy promises never to change.
    draws = np.random.PCG64(0).random_raw(clean.size) % np.uint64(2 * NOISE + 1)
    return np.clip(clean + draws.astype(np.int64).reshape(clean.shape) - NOISE, 0, 255).astype(np.uint8)


def _gradient(top: tuple[int, int, int], bottom: tuple[int, int, int]) -> NDArray[np.int64]:
    last = SIDE * FINE - 1
    rows = [(a * (last - _DOWN) + b * _DOWN) // last for a, b in zip(top, bottom, strict=True)]
    return np.stack(rows)


def _fill(canvas: NDArray[np.int64], where: NDArray[Any], color: tuple[int, int, int]) -> None:
    canvas[:, where] = np.array(color)[:, None]


def _ellipse(right: int, down: int, wide: int, high: int) -> NDArray[Any]:
    return ((_RIGHT - right) * high) ** 2 + ((_DOWN - down) * wide) ** 2 <= (wide * high) ** 2


def _polygon(*corners: tuple[int, int]) -> NDArray[Any]:
    """The points inside a convex polygon with corners (right, down)."""
    sides = [
        (x1 - x0) * (_DOWN - y0) - (y1 - y0) * (_RIGHT - x0)
        for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0]), strict=True)
    ]
    return np.all([side >= 0 for side in sides], axis=0) | np.all([side <= 0 for side in sides], axis=0)


def _reduced(canvas: NDArray[np.int64]) -> Picture:
    sums = canvas.reshape(3, SIDE, FINE, SIDE, FINE).sum((2, 4))
    return ((sums + FINE * FINE // 2) // FINE**2).astype(np.uint8)
