"""A data set in the layout of CIFAR-100, for tests: 5 + 5 training and 4 test images of 4 × 4."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nonloc_paper.data.dataset import Dataset
from nonloc_paper.data.download import Member, Source

FOLDER, SIZE, CLASSES = "tiny-bin", 4, ("ant", "bee", "cat")


@dataclass(frozen=True)
class Tiny:
    """`source` describes `files` {path: bytes}, whose records hold `labels` and `images` in reading order."""

    source: Source
    files: dict[str, bytes]
    labels: np.ndarray
    images: np.ndarray

    @staticmethod
    def entry(path: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        info = tarfile.TarInfo(path)
        info.size = len(content)
        return info, content

    def write(self, folder: Path) -> Path:
        for path, content in self.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder

    def archive(self, folder: Path, entries: list[tuple[tarfile.TarInfo, bytes]] | None = None) -> Source:
        """Write the archive, of `entries` or else of the files among others, and return its `Source`."""
        if entries is None:
            entries = [self.entry(path, content) for path, content in self.files.items()]
            entries = [self.entry(f"{FOLDER}/readme.html", b"not asked for"), *entries]
            entries.insert(1, self.entry("../outside", b"never to be written"))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.source.archive
        with tarfile.open(path, "w:gz") as tar:
            for info, content in entries:
                tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
        return replace(self.source, md5=hashlib.md5(path.read_bytes()).hexdigest())

    def is_whole(self, data: Dataset) -> bool:
        """Whether `data` has these images and labels."""
        splits = (data.train, data.test)
        images = np.concatenate([split.images.numpy() for split in splits])
        labels = [label for split in splits if split.labels is not None for label in split.labels.tolist()]
        return np.array_equal(images, self.images) and labels == self.labels.tolist()


def make_tiny(seed: int, label_bytes: int = 2) -> Tiny:
    """With one byte of labels, the layout is that of CIFAR-10."""
    rng = np.random.default_rng(seed)
    files, members, labels, images = {}, [], [], []
    for name, count in {"a.bin": 5, "b.bin": 5, "t.bin": 4}.items():
        fine = rng.integers(0, len(CLASSES), (count, 1), dtype=np.uint8)
        coarse = np.full(
            (count, label_bytes - 1), 250, np.uint8
        )  # out of range: it must not be read as the label
        pixels = rng.integers(0, 256, (count, 3 * SIZE * SIZE), dtype=np.uint8)
        content = np.concatenate([coarse, fine, pixels], 1).tobytes()
        files[f"{FOLDER}/{name}"] = content
        members.append(Member(name, hashlib.sha1(content).hexdigest(), count))
        labels.append(fine[:, 0])
        images.append(pixels.reshape(count, 3, SIZE, SIZE))
    source = Source(
        name="cifar100",
        title="Tiny",
        archive="tiny.tar.gz",
        md5="0" * 32,
        url="http://127.0.0.1:9/tiny.tar.gz",  # the discard port: nothing listens there
        folder=FOLDER,
        train=tuple(members[:2]),
        test=tuple(members[2:]),
        label_bytes=label_bytes,
        classes=CLASSES,
        size=SIZE,
    )
    return Tiny(source, files, np.concatenate(labels), np.concatenate(images))
