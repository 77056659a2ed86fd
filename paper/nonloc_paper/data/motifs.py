"""The data set "motifs", without a download: small images tiled from motifs cut out of two photographs.

An image repeats one motif, so the best estimate of a noisy pixel is an average over its far-away copies:
a task that rewards nonlocal operations. The photographs come with scikit-learn.

Nothing of the training set leaks into the test set. The columns of each photograph are dealt out in strips,

    96 for training | 16 unused | 32 for testing | 16 unused | and again,

where the gap is two JPEG blocks wide, so that not even the compression ties a test motif to a training motif;
and a motif whose content occurs in the training strips, in any cyclic shift, is not used for testing. In a
split no content occurs twice, and the two photographs take turns.

Near-constant motifs are left out (`MIN_CONTRAST`): most of both photographs is sky and blurred background,
and on a flat image a local average is as good as a nonlocal one.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nonloc._checks import check_whole
from nonloc_paper.data.dataset import Dataset, Split

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
STRIP_PERIOD = 160
STRIPS = {"train": (0, 96), "test": (112, 144)}  # first and one past the last column within a period
SIZE, MOTIF = 12, 3  # pixels along a side, of an image and of its motif
MIN_CONTRAST = 16  # grey levels: max − min over the motif, in the channel where it is largest

Images = NDArray[np.uint8]
Boxes = NDArray[np.int64]


def load_motifs(train: int = 4096, test: int = 512) -> Dataset:
    """Make `train` and `test` images uint8 [N, 3, SIZE, SIZE] that repeat with period MOTIF; no labels.

    The images depend on the arguments alone, never on a run's seed; a smaller set is the beginning of a
    larger one.
    """
    photographs = load_photographs()
    splits = {}
    for part, boxes in motif_boxes(photographs, train, test).items():
        phases = (_draw(2 * len(boxes), part, "phase") % MOTIF).astype(np.int64).reshape(-1, 2)
        splits[part] = Split(torch.from_numpy(_tile(cut_motifs(photographs, boxes), phases)))
    return Dataset("motifs", splits["train"], splits["test"])


def load_photographs() -> Images:
    """Return the two photographs, [2, 427, 640, 3]."""
    from sklearn.datasets import load_sample_images

    samples = load_sample_images()
    by_name = {str(path).replace("\\", "/").rpartition("/")[2]: i for i, path in enumerate(samples.filenames)}
    return np.stack([samples.images[by_name[name]] for name in PHOTOGRAPHS])


def motif_boxes(photographs: Images, train: int = 4096, test: int = 512) -> dict[str, Boxes]:
    """Return the places of the motifs: {"train": [N, 3], "test": [N, 3]}, rows (photograph, top, left).

    Motif i is photographs[photograph, top : top + MOTIF, left : left + MOTIF].
    """
    check_whole("train", train)
    check_whole("test", test)
    trainable, testable = (_candidates(photographs, part) for part in STRIPS)
    train_contents, test_contents = (
        contents(cut_motifs(photographs, boxes)) for boxes in (trainable, testable)
    )
    trainable = trainable[_first_of_each(train_contents)]
    fresh = ~np.isin(test_contents, train_contents)
    testable = testable[fresh][_first_of_each(test_contents[fresh])]
    return {"train": _pick(trainable, train, "train"), "test": _pick(testable, test, "test")}


def cut_motifs(photographs: Images, boxes: Boxes) -> Images:
    """Return the motifs [N, MOTIF, MOTIF, 3] at `boxes` [N, 3]."""
    offset = np.arange(MOTIF)
    photograph, top, left = (column[:, None, None] for column in boxes.T)
    return photographs[photograph, top + offset[:, None], left + offset]


def contents(motifs: Images) -> NDArray[np.bytes_]:
    """Return one value for each motif [N, m, m, 3]: equal for two motifs iff one is a cyclic shift of the other."""
    count, side = motifs.shape[:2]
    width = 3 * side * side
    # Fixed-width byte strings, because numpy compares, sorts and searches them as single values.
    least = np.full(count, b"\xff" * width, f"S{width}")
    for shift in product(range(side), repeat=2):
        shifted = np.roll(motifs, shift, axis=(1, 2)).reshape(count, width).view(least.dtype)[:, 0]
        least = np.where(shifted < least, shifted, least)
    return least


def _candidates(photographs: Images, part: str) -> Boxes:
    """Return all boxes [N, 3] in a strip of `part` with enough contrast."""
    height, width = (extent - MOTIF + 1 for extent in photographs.shape[1:3])
    high = low = photographs[:, :height, :width]
    for down, right in product(range(MOTIF), repeat=2):
        moved = photographs[:, down : down + height, right : right + width]
        high, low = np.maximum(high, moved), np.minimum(low, moved)
    contrast = (high - low).max(-1)
    first, last = STRIPS[part]
    column = np.arange(width) % STRIP_PERIOD
    inside = (column >= first) & (column + MOTIF <= last)
    return np.argwhere((contrast >= MIN_CONTRAST) & inside)


def _first_of_each(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.sort(np.unique(values, return_index=True)[1])


def _pick(boxes: Boxes, count: int, part: str) -> Boxes:
    """Return `count` of `boxes` in random order, the photographs taking turns."""
    picked = np.empty((count, 3), np.int64)
    for photograph, name in enumerate(PHOTOGRAPHS):
        pool = boxes[boxes[:, 0] == photograph]
        share = len(picked[photograph :: len(PHOTOGRAPHS)])
        if share > len(pool):
            raise ValueError(
                f"{part}={count} asks for {share} motifs of {name}, which has {len(pool)}; "
                f"ask for at most {len(PHOTOGRAPHS) * len(pool)}"
            )
        order = np.argsort(_draw(len(pool), part, name), kind="stable")
        picked[photograph :: len(PHOTOGRAPHS)] = pool[order[:share]]
    return picked


def _draw(count: int, part: str, purpose: str) -> NDArray[np.uint64]:
    """Draw `count` random 64-bit integers.

    Raw PCG64 output: numpy promises that it never changes, but not that of Generator's methods.
    """
    stream = (list(STRIPS).index(part), (*PHOTOGRAPHS, "phase").index(purpose))
    return np.random.PCG64([*stream, 0]).random_raw(count)


def _tile(motifs: Images, phases: NDArray[np.int64]) -> Images:
    """Return images [N, 3, SIZE, SIZE] that repeat motifs, shifted cyclically by `phases` [N, 2]."""
    rows, columns = ((phases[:, axis, None] + np.arange(SIZE)) % MOTIF for axis in (0, 1))
    image = np.arange(len(motifs))[:, None, None]
    tiled = motifs[image, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(tiled.transpose(0, 3, 1, 2))
