import hashlib

import numpy as np
import pytest
import torch

from nonloc_paper.data.dataset import Dataset
from nonloc_paper.data.motifs import (
    MIN_CONTRAST,
    PHOTOGRAPHS,
    contents,
    cut_motifs,
    load_motifs,
    load_photographs,
    motif_boxes,
)

PHOTOGRAPHS_SHA256 = "99310b92a8963a4b9118f3a93695bf9d2f7c20a03361f1962972901ccd5560da"
MOTIFS_SHA256 = {
    "train": "6ec679b778c1b3f2a5041cec9a52c0b4cb5d310a1997d2d306bf9af5fba871ce",
    "test": "4db20036926ead9ee8b36b34194db7776e2c7ce3b44bd0b7926493fe485222e2",
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load_motifs()


@pytest.fixture(scope="module")
def photographs() -> np.ndarray:
    return load_photographs()


@pytest.fixture(scope="module")
def boxes(photographs: np.ndarray) -> dict[str, np.ndarray]:
    return motif_boxes(photographs)


def both_images(data: Dataset) -> torch.Tensor:
    return torch.cat([data.train.images, data.test.images])


def covered(boxes: np.ndarray, photographs: np.ndarray) -> np.ndarray:
    """Which pixels [2, 427, 640] belong to a motif."""
    pixels = np.zeros(photographs.shape[:3], bool)
    for photograph, top, left in boxes:
        pixels[photograph, top : top + 3, left : left + 3] = True
    return pixels


def test_the_set_has_its_promised_shape_period_and_contrast(data: Dataset) -> None:
    assert data.train.images.shape == (4096, 3, 12, 12)
    assert data.test.images.shape == (512, 3, 12, 12)
    assert (data.name, data.train.labels, data.num_classes) == ("motifs", None, 0)
    images = both_images(data)
    for axis in (2, 3):
        assert torch.equal(images, images.roll(3, axis))
    pixels = images.flatten(2).int()
    assert (pixels.amax(2) - pixels.amin(2)).amax(1).min() >= MIN_CONTRAST


def test_every_image_is_a_shift_of_its_motif(data: Dataset, boxes, photographs) -> None:
    motifs = cut_motifs(photographs, np.concatenate([boxes["train"], boxes["test"]]))
    shown = both_images(data)[:, :, :3, :3].permute(0, 2, 3, 1).contiguous().numpy()
    assert (contents(shown) == contents(motifs)).all()


def test_all_nine_phases_occur_equally_often(data: Dataset, boxes, photographs) -> None:
    motifs = cut_motifs(photographs, boxes["train"])
    shown = data.train.images[:, :, :3, :3].permute(0, 2, 3, 1).numpy()
    shifts = [(down, right) for down in range(3) for right in range(3)]
    counts = [(np.roll(motifs, shift, (1, 2)) == shown).all((1, 2, 3)).sum() for shift in shifts]
    # 4096 / 9 = 455 each, with a standard deviation of 20.
    assert sum(counts) == 4096
    assert max(abs(count - 4096 / 9) for count in counts) < 5 * 20.2


def test_a_gap_of_16_columns_lies_between_training_and_testing(boxes, photographs) -> None:
    train, test = (covered(boxes[part], photographs).any((0, 1)).nonzero()[0] for part in ("train", "test"))
    assert np.abs(train[:, None] - test[None, :]).min() > 16


def test_no_content_serves_training_and_testing_in_any_shift(data: Dataset) -> None:
    corner = both_images(data)[:, :, :3, :3].numpy()
    shifts = [(down, right) for down in range(3) for right in range(3)]
    train = {np.roll(motif, shift, (1, 2)).tobytes() for motif in corner[:4096] for shift in shifts}
    assert [motif for motif in corner[4096:] if motif.tobytes() in train] == []


@pytest.mark.parametrize("part", ["train", "test"])
def test_no_content_occurs_twice_and_both_photographs_give_half(boxes, photographs, part: str) -> None:
    values = contents(cut_motifs(photographs, boxes[part])).tolist()
    assert len(set(values)) == len(values)
    counts = np.bincount(boxes[part][:, 0], minlength=len(PHOTOGRAPHS))
    assert counts.tolist() == [len(boxes[part]) // 2] * 2


def test_copied_photographs_leave_no_test_motif_that_training_has_seen(photographs) -> None:
    """Where the test strips repeat the training strips, only content that is not there remains."""
    copied = photographs.copy()
    for start in range(0, 640, 160):
        copied[:, :, start + 112 : start + 144] = copied[:, :, start : start + 32]
    with pytest.raises(ValueError, match=r"asks for 1 motifs of china\.jpg, which has 0"):
        motif_boxes(copied, train=2, test=2)


def test_the_set_depends_on_its_arguments_alone(data: Dataset) -> None:
    """A smaller set is the beginning of a larger one; the global random state is neither used nor changed."""
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    small = load_motifs(train=7, test=3)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(small.train.images, data.train.images[:7])
    assert torch.equal(small.test.images, data.test.images[:3])


def test_the_bytes_have_not_drifted(data: Dataset, photographs) -> None:
    if hashlib.sha256(photographs.tobytes()).hexdigest() != PHOTOGRAPHS_SHA256:
        pytest.skip("this pillow decodes the two JPEG photographs to other bytes")
    splits = {"train": data.train, "test": data.test}
    hashes = {part: hashlib.sha256(s.images.numpy().tobytes()).hexdigest() for part, s in splits.items()}
    assert hashes == MOTIFS_SHA256


def test_contents_know_a_shift_and_zero_bytes_apart() -> None:
    motif = np.zeros((1, 2, 2, 3), np.uint8)
    motif[0, 0, 1] = (0, 7, 0)
    shifted, other = np.roll(motif, 1, axis=2), motif[..., ::-1].copy()
    other[0, 0, 1] = (7, 0, 0)
    values = contents(np.concatenate([motif, shifted, other]))
    assert values[0] == values[1]
    assert values[0] != values[2]
    assert len(np.unique(values)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 0}, "train must be a whole number ≥ 1, got 0"),
        ({"test": 10**6}, "ask for at most"),
    ],
)
def test_impossible_arguments_are_named(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_motifs(**arguments)
