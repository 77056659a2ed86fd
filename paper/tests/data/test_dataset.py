from collections.abc import Callable

import pytest
import torch

from nonloc_paper.data.dataset import Dataset, Split


def images(size: int = 2) -> torch.Tensor:
    return torch.arange(4 * 3 * size * size, dtype=torch.uint8).reshape(4, 3, size, size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Split(images().float()), "images must be uint8"),
        (lambda: Split(images()[0]), "images must be uint8"),
        (lambda: Split(images()[:, :1]), "images must be uint8"),
        (lambda: Split(images()[:0]), "N, H and W ≥ 1, got torch.uint8 .0, 3, 2, 2"),
        (lambda: Split(images(), torch.zeros(4)), "labels must be int64"),
        (lambda: Split(images(), torch.zeros(3, dtype=torch.int64)), "labels must be int64"),
        (
            lambda: Dataset("d", Split(images(), torch.arange(4)), Split(images()), tuple("abcd")),
            "test lacks",
        ),
        (lambda: Dataset("d", Split(images(size=2)), Split(images(size=3))), "one shape"),
    ],
)
def test_other_images_and_labels_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_to_moves_images_and_labels_and_missing_labels_stay_missing() -> None:
    split = Split(images(), torch.arange(4))
    data = Dataset("d", split, split, ("a", "b", "c", "d"))
    assert (len(split), data.num_classes) == (4, 4)
    moved = data.to("meta")
    tensors = [x for s in (moved.train, moved.test) for x in (s.images, s.labels)]
    assert [x.device.type for x in tensors if x is not None] == ["meta"] * 4
    unlabelled = Dataset("d", Split(images()), Split(images()))
    assert unlabelled.num_classes == 0
    assert unlabelled.to("meta").train.labels is None


def test_the_hash_sees_every_byte_of_images_and_labels() -> None:
    def made(pixel: int = 0, label: int = 0) -> Dataset:
        images = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
        images[1, 2, 1, 1] = pixel
        split = Split(images, torch.tensor([0, label]))
        return Dataset("any", split, Split(images.clone(), torch.tensor([0, 1])), ("a", "b"))

    assert made().sha256 == made().sha256
    assert len({made().sha256, made(pixel=1).sha256, made(label=1).sha256}) == 3
