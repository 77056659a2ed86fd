"""Pad, crop, flip: each image its own draw, and the values of a plain loop."""

import pytest
import torch

from nonloc_paper.training.augment import augment, crop_and_flip


def crop_and_flip_by_loop(images, offsets, flips, pad):
    """One pixel at a time, as the definition reads."""
    batch, _, height, width = images.shape
    out = torch.zeros_like(images)
    for b in range(batch):
        top, left = offsets[b].tolist()
        for y in range(height):
            for x in range(width):
                source_y = y + top - pad
                source_x = (width - 1 - x if flips[b] else x) + left - pad
                if 0 <= source_y < height and 0 <= source_x < width:
                    out[b, :, y, x] = images[b, :, source_y, source_x]
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_it_agrees_with_a_plain_loop(dtype):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 255, (20, 3, 5, 7), generator=generator).to(dtype)
    offsets = torch.randint(0, 5, (20, 2), generator=generator)
    flips = torch.arange(20) % 2 == 0
    assert crop_and_flip(images, offsets, flips, 2).equal(crop_and_flip_by_loop(images, offsets, flips, 2))


def test_the_middle_window_without_flip_is_the_image():
    images = torch.randn(2, 3, 6, 6)
    same = crop_and_flip(images, torch.full((2, 2), 4), torch.zeros(2, dtype=torch.bool), 4)
    assert same.equal(images)


def test_interior_pixels_are_preserved_for_every_offset():
    # A bright pixel further from the border than the padding can never be cropped away.
    images = torch.zeros(300, 1, 9, 9)
    images[:, :, 4, 4] = 7.0
    moved = augment(images, torch.Generator().manual_seed(3), pad=4)
    assert moved.sum(dim=(1, 2, 3)).equal(torch.full((300,), 7.0))


def where_the_pixel_went(count, seed=0):
    images = torch.zeros(count, 1, 9, 9)
    images[:, :, 4, 4] = 1.0
    return augment(images, torch.Generator().manual_seed(seed), pad=4).flatten(1).argmax(1)


def test_offsets_differ_within_a_batch():
    assert where_the_pixel_went(64).unique().numel() > 30


def test_every_offset_is_reached():
    assert where_the_pixel_went(4000).unique().numel() == 81


def test_about_half_of_the_images_are_mirrored():
    # Along a ramp that rises to the right, a window falls exactly when it is mirrored.
    ramp = torch.arange(1.0, 17.0).expand(1000, 1, 16, 16)
    windows = augment(ramp, torch.Generator().manual_seed(1), pad=4)
    falls = windows[:, 0, 8, 7] > windows[:, 0, 8, 8]
    assert 450 < int(falls.sum()) < 550


def test_the_draw_comes_from_the_generator_alone():
    images = torch.randn(8, 3, 8, 8)
    first = augment(images, torch.Generator().manual_seed(5))
    torch.manual_seed(9)
    assert augment(images, torch.Generator().manual_seed(5)).equal(first)
