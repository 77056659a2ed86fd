"""Data sets as uint8 images and labels. Importing this does not import torch, so that `--help` is quick."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nonloc._checks import shown
from nonloc._lazy import lazy

# At once and not lazily: a submodule imported later would replace the function of the same name.
from nonloc_paper.data.download import SOURCES
from nonloc_paper.data.download import download as download

NAMES = ("motifs", *SOURCES)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load "motifs", "cifar10" or "cifar100" into memory.

    `data_dir` holds the CIFAR files; None is the environment's NONLOC_DATA, or else the user's cache.
    """
    if name not in NAMES:
        raise ValueError(
            f"{shown(name)} is not a data set; choose one of {', '.join(NAMES)}. Images of your own are passed in "
            "Python, data="
        )
    from nonloc_paper.data.cifar import read_cifar
    from nonloc_paper.data.motifs import load_motifs

    return load_motifs() if name == "motifs" else read_cifar(name, data_dir)


_WHERE = {
    "Dataset": "nonloc_paper.data.dataset",
    "Split": "nonloc_paper.data.dataset",
    "load_motifs": "nonloc_paper.data.motifs",
    "read_cifar": "nonloc_paper.data.cifar",
}
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc_paper.data.cifar import read_cifar as read_cifar
    from nonloc_paper.data.dataset import Dataset as Dataset
    from nonloc_paper.data.dataset import Split as Split
    from nonloc_paper.data.motifs import load_motifs as load_motifs
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
