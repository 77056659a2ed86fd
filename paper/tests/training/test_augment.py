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


def test_each_image_has_its_own_offset_and_every_offset_is_reached():
    images = torch.zeros(4000, 1, 9, 9)
    images[:, :, 4, 4] = 1.0
    windows = augment(images, torch.Generator().manual_seed(0))
    assert windows.flatten(1).argmax(1).unique().numel() == 81


def test_about_half_of_the_images_are_mirrored():
    # Along a ramp that rises to the right, a window falls exactly when it is mirrored.
    ramp = torch.arange(1.0, 17.0).expand(1000, 1, 16, 16)
    windows = augment(ramp, torch.Generator().manual_seed(1))
    falls = windows[:, 0, 8, 7] > windows[:, 0, 8, 8]
    assert 450 < int(falls.sum()) < 550


def test_the_draw_comes_from_the_generator_alone():
    images = torch.randn(8, 3, 8, 8)
    first = augment(images, torch.Generator().manual_seed(5))
    torch.manual_seed(9)
    assert augment(images, torch.Generator().manual_seed(5)).equal(first)
