"""CIFAR-10 and CIFAR-100 from the official binary files: checked, and without pickle."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.data.download import (
    Member,
    Source,
    corrupt,
    data_folder,
    fault,
    files_folder,
    missing,
    source_of,
)


def read_cifar(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Read "cifar10" or "cifar100" (fine labels): 50,000 training and 10,000 test images [N, 3, 32, 32].

    `folder` holds cifar-10-batches-bin/ or cifar-100-binary/, or is that folder; None is the environment's NONLOC_DATA,
    or else the user's cache. The size and the SHA-1 of every file are checked.
    """
    return read_source(source_of(name), data_folder(folder))


def read_source(source: Source, folder: Path) -> Dataset:
    """Read the data set that `source` describes from `folder`."""
    place = files_folder(source, folder)
    absent = [member.file for member in source.members if not (place / member.file).is_file()]
    if absent:
        raise missing(source, folder, absent)
    train = _read_split(source, source.train, folder, place)
    test = _read_split(source, source.test, folder, place)
    return Dataset(source.name, train, test, source.classes)


def _read_split(source: Source, members: tuple[Member, ...], folder: Path, place: Path) -> Split:
    total = sum(member.records for member in members)
    images = np.empty((total, 3, source.size, source.size), np.uint8)
    labels = np.empty(total, np.int64)
    start = 0
    for member in members:
        path = place / member.file
        what = fault(source, member, path)
        if what:
            raise corrupt(source, folder, path, what)
        records = np.fromfile(path, np.uint8).reshape(member.records, source.record_bytes)
        here = slice(start, start + member.records)
        labels[here] = records[:, source.label_bytes - 1]
        images[here].reshape(member.records, -1)[:] = records[:, source.label_bytes :]
        start += member.records
    return Split(torch.from_numpy(images), torch.from_numpy(labels))
