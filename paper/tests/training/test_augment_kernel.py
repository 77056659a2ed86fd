"""A batch in one launch, in Triton's interpreter: the numbers of plain torch, in every layout."""

import importlib
import sys

import pytest
import torch

from nonloc_paper.training.augment import crop_and_flip

IMAGES, HEIGHT, WIDTH = 30, 11, 33  # more than one block of numbers, and not a whole one
PAD = 4
INVERSE = float(torch.tensor(1.0) / torch.tensor(61.3))


@pytest.fixture(scope="module")
def make_batch():
    """With an interpreted kernel: Triton decides that when it is imported, so it is imported once more, for here."""
    pytest.importorskip("triton")

    def is_concerned(name):
        mine = name.startswith("triton") or name == "nonloc_paper.training.augment_kernel"
        return mine and not name.startswith("triton._C")

    before = {name: sys.modules.pop(name) for name in list(sys.modules) if is_concerned(name)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.import_module("nonloc_paper.training.augment_kernel").make_batch
    for name in list(sys.modules):
        if is_concerned(name):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """What is allocated is NaN, or the largest whole number, until it is written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (IMAGES, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    mean = 255 * torch.rand(3, HEIGHT, WIDTH, generator=generator)
    labels = torch.randint(0, 10, (IMAGES,), generator=generator)
    indices = torch.randint(0, IMAGES, (13,), generator=generator)
    indices[0], indices[1] = IMAGES - 1, 0
    offsets = torch.randint(0, 2 * PAD + 1, (13, 2), generator=generator)
    offsets[0], offsets[1] = torch.tensor([0, 2 * PAD]), torch.tensor([2 * PAD, 0])
    return images, labels, indices, mean, offsets, torch.arange(13) % 2


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_augmented_images_are_those_of_plain_torch_to_the_bit(make_batch, channels_last, seed):
    images, labels, indices, mean, offsets, flips = problem(seed)
    found, targets = make_batch(
        images,
        labels,
        indices,
        mean,
        INVERSE,
        dtype=torch.float32,
        channels_last=channels_last,
        offsets=offsets,
        flips=flips,
        pad=PAD,
    )
    normalized = (images[indices].float() - mean) * INVERSE
    assert torch.equal(found, crop_and_flip(normalized, offsets, flips.bool(), PAD))
    assert torch.equal(targets, labels[indices])
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("channels_last", [False, True])
def test_without_offsets_they_are_as_they_are(make_batch, channels_last):
    images, labels, indices, mean, _, _ = problem()
    found, targets = make_batch(
        images, labels, indices, mean, INVERSE, dtype=torch.float32, channels_last=channels_last
    )
    assert torch.equal(found, (images[indices].float() - mean) * INVERSE)
    assert torch.equal(targets, labels[indices])


def philox(seed, counter):
    """Philox 4x32-10 in whole numbers: the first of the four."""
    low = 2**32 - 1
    keys, c = [seed & low, seed >> 32], list(counter)
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ keys[0], second & low, first >> 32 ^ c[3] ^ keys[1], first & low]
        keys = [keys[0] + 0x9E3779B9 & low, keys[1] + 0xBB67AE85 & low]
    return c[0]


@pytest.mark.parametrize("seed", [0, 2**40 + 3, 2**63 - 1])
def test_a_seed_draws_what_torchs_generator_draws_on_cuda(make_batch, seed):
    assert philox(0, (0, 0, 0, 0)) == 0x6627E8D5, "the published answer"
    images, labels, indices, mean, _, _ = problem()
    common = {"dtype": torch.float32, "channels_last": True, "pad": PAD}
    offsets = [[philox(seed, (0, 0, 2 * n + axis, 0)) % (2 * PAD + 1) for axis in (0, 1)] for n in range(13)]
    flips = [philox(seed, (1, 0, n, 0)) % 2 for n in range(13)]
    expected, _ = make_batch(
        images,
        labels,
        indices,
        mean,
        INVERSE,
        offsets=torch.tensor(offsets),
        flips=torch.tensor(flips),
        **common,
    )
    found, _ = make_batch(images, labels, indices, mean, INVERSE, seed=torch.tensor([seed]), **common)
    assert torch.equal(found, expected)


def test_half_precision_is_rounded_at_the_end(make_batch):
    images, labels, indices, mean, _, _ = problem()
    found, _ = make_batch(images, labels, indices, mean, INVERSE, dtype=torch.bfloat16, channels_last=True)
    assert found.dtype == torch.bfloat16
    exact = (images[indices].float() - mean) * INVERSE
    # The interpreter cuts bfloat16 off where the device rounds: 16 of the 32 bits are zero.
    cut_off = (exact.view(torch.int32) & -(2**16)).view(torch.float32)
    assert torch.equal(found.float(), cut_off)


def test_an_empty_border_is_the_mean_image(make_batch):
    images, labels, _, mean, _, _ = problem()
    corner, mirrored = torch.tensor([[0, 0]]), torch.tensor([0])
    found, _ = make_batch(
        images,
        labels,
        torch.tensor([5]),
        mean,
        INVERSE,
        dtype=torch.float32,
        channels_last=True,
        offsets=corner,
        flips=mirrored,
        pad=PAD,
    )
    assert not found[:, :, :PAD].any()
    assert not found[:, :, :, :PAD].any()
    assert found[:, :, PAD:, PAD:].abs().min() > 0
