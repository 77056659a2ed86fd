"""load(name): every data set through one door."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nonloc_paper.data.names import NAMES

if TYPE_CHECKING:
    from nonloc_paper.data.dataset import Dataset


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load "motifs", "cifar10" or "cifar100" into memory.

    `data_dir` is where the CIFAR files are: left out, the environment's NONLOC_DATA or else the user's cache.
    """
    if name not in NAMES:
        raise ValueError(f"name={name!r} is not a data set; choose one of {', '.join(NAMES)}")
    # Not at the top: the package imports this module at once, and must not import torch.
    from nonloc_paper.data.cifar import read_cifar
    from nonloc_paper.data.motifs import load_motifs

    return load_motifs() if name == "motifs" else read_cifar(name, data_dir)
