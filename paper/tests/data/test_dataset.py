import pytest
import torch

from nonloc_paper.data.dataset import Dataset, Split


def images(count: int = 4, size: int = 2) -> torch.Tensor:
    return torch.arange(count * 3 * size * size, dtype=torch.uint8).reshape(count, 3, size, size)


@pytest.mark.parametrize(
    "wrong", [images().float(), images()[0], images()[:, :1]], ids=["float", "one image", "one channel"]
)
def test_split_refuses_other_images(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="images must be uint8"):
        Split(wrong)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(4), torch.zeros(3, dtype=torch.int64)], ids=["float", "too few"]
)
def test_split_refuses_other_labels(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="labels must be int64"):
        Split(images(4), wrong)


def test_to_moves_images_and_labels() -> None:
    split = Split(images(), torch.arange(4))
    data = Dataset("d", split, split, ("a", "b", "c", "d"))
    assert (len(split), data.num_classes) == (4, 4)
    moved = data.to("meta")
    tensors = [x for s in (moved.train, moved.test) for x in (s.images, s.labels)]
    assert [x.device.type for x in tensors if x is not None] == ["meta"] * 4


def test_missing_labels_stay_missing() -> None:
    data = Dataset("d", Split(images()), Split(images()))
    assert data.num_classes == 0
    assert data.to("meta").train.labels is None


def test_dataset_refuses_classes_without_labels() -> None:
    with pytest.raises(ValueError, match="test lacks labels"):
        Dataset("d", Split(images(), torch.arange(4)), Split(images()), ("a", "b", "c", "d"))


def test_dataset_refuses_two_shapes() -> None:
    with pytest.raises(ValueError, match="one shape"):
        Dataset("d", Split(images(size=2)), Split(images(size=3)))


def test_the_hash_sees_every_byte_of_images_and_labels() -> None:
    def made(pixel: int = 0, label: int = 0) -> Dataset:
        images = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
        images[1, 2, 1, 1] = pixel
        split = Split(images, torch.tensor([0, label]))
        return Dataset("any", split, Split(images.clone(), torch.tensor([0, 1])), ("a", "b"))

    assert made().sha256 == made().sha256
    assert len({made().sha256, made(pixel=1).sha256, made(label=1).sha256}) == 3
