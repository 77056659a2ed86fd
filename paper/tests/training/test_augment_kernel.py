"""A batch in one launch, in Triton's interpreter: the numbers of plain torch, in every layout."""

import pytest
import torch

from interpreted import interpreted
from nonloc_paper.training.augment import crop_and_flip

pytestmark = pytest.mark.usefixtures("poisoned_memory")

IMAGES, HEIGHT, WIDTH = 30, 11, 33  # more than one block of numbers, and not a whole one
PAD = 4
INVERSE = float(torch.tensor(1.0) / torch.tensor(61.3))


@pytest.fixture(scope="module")
def make_batch():
    """`make_batch`, in the interpreter, of a problem's arguments."""
    with interpreted("nonloc_paper.training.augment_kernel") as module:

        def make(images, labels, indices, mean, dtype=torch.float32, channels_last=True, **draws):
            options = {"dtype": dtype, "channels_last": channels_last, "pad": PAD, **draws}
            return module.make_batch(images, labels, indices, mean, INVERSE, **options)

        yield make


def problem(seed=0):
    """(images, labels, indices, mean), (offsets, flips), the normalised images"""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (IMAGES, 3, HEIGHT, WIDTH), dtype=torch.uint8, generator=generator)
    mean = 255 * torch.rand(3, HEIGHT, WIDTH, generator=generator)
    labels = torch.randint(0, 10, (IMAGES,), generator=generator)
    indices = torch.randint(0, IMAGES, (13,), generator=generator)
    indices[0], indices[1] = IMAGES - 1, 0
    offsets = torch.randint(0, 2 * PAD + 1, (13, 2), generator=generator)
    offsets[0], offsets[1] = torch.tensor([0, 2 * PAD]), torch.tensor([2 * PAD, 0])
    normalized = (images[indices].float() - mean) * INVERSE
    return (images, labels, indices, mean), (offsets, torch.arange(13) % 2), normalized


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("augmented", [False, True])
def test_batches_are_those_of_plain_torch_to_the_bit(make_batch, channels_last, augmented):
    arguments, (offsets, flips), expected = problem()
    draws = {}
    if augmented:
        draws = {"offsets": offsets, "flips": flips}
        expected = crop_and_flip(expected, offsets, flips.bool(), PAD)
    batch, targets = make_batch(*arguments, channels_last=channels_last, **draws)
    assert torch.equal(batch, expected)
    assert torch.equal(targets, arguments[1][arguments[2]])
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert batch.is_contiguous(memory_format=layout)


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
    arguments, _, _ = problem()
    offsets = [[philox(seed, (0, 0, 2 * n + axis, 0)) % (2 * PAD + 1) for axis in (0, 1)] for n in range(13)]
    flips = [philox(seed, (1, 0, n, 0)) % 2 for n in range(13)]
    expected, _ = make_batch(*arguments, offsets=torch.tensor(offsets), flips=torch.tensor(flips))
    batch, _ = make_batch(*arguments, seed=torch.tensor([seed]))
    assert torch.equal(batch, expected)


def test_half_precision_is_rounded_at_the_end(make_batch):
    arguments, _, exact = problem()
    batch, _ = make_batch(*arguments, dtype=torch.bfloat16)
    assert batch.dtype == torch.bfloat16
    # The interpreter cuts bfloat16 off where the device rounds: 16 of the 32 bits are zero.
    cut_off = (exact.view(torch.int32) & -(2**16)).view(torch.float32)
    assert torch.equal(batch.float(), cut_off)
