"""Split and Dataset: images and labels as unscaled tensors in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images with or without labels, as tensors or numpy arrays.

    images  [N, 3, H, W]  uint8
    labels  [N]           int64, or None
    """

    images: Tensor
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("images", "labels"):
            if isinstance(getattr(self, name), np.ndarray):
                object.__setattr__(self, name, torch.from_numpy(getattr(self, name)))
        shape = list(self.images.shape)
        if self.images.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3 or 0 in shape:
            raise ValueError(
                f"images must be uint8 [N, 3, H, W], N, H and W ≥ 1, got {self.images.dtype} {shape}; `fit` scales "
                "them itself, and images.permute(0, 3, 1, 2) brings channels first"
            )
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 [{len(self)}], one for each image, got {self.labels.dtype} "
                f"{list(self.labels.shape)}; use labels.long(), or None for images without labels"
            )

    def __len__(self) -> int:
        return self.images.shape[0]

    def to(self, device: torch.device | str) -> Split:
        labels = None if self.labels is None else self.labels.to(device)
        return Split(self.images.to(device), labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split of the same kind; `classes` names the labels, None without labels."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        shapes = [list(split.images.shape[1:]) for split in (self.train, self.test)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"train and test must have images of one shape, got {shapes[0]} and {shapes[1]}")
        labelled = [split.labels is not None for split in (self.train, self.test)]
        if labelled != [self.classes is not None] * 2:
            raise ValueError(
                f"train {'has' if labelled[0] else 'lacks'} labels, test {'has' if labelled[1] else 'lacks'} "
                f"labels, and classes is {self.classes}; give all three, or none"
            )

    @property
    def num_classes(self) -> int:
        """The number of classes; 0 without labels."""
        return len(self.classes) if self.classes is not None else 0

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 over all images and labels."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            for tensor in (split.images, split.labels):
                if tensor is not None:
                    digest.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
                    digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device | str) -> Dataset:
        return Dataset(self.name, self.train.to(device), self.test.to(device), self.classes)
