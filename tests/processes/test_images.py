"""Patches, signals and images: there and back, and distances that mean what they say."""

import pytest
import torch

from nonloc.processes.images import patch_features, psnr, to_image, to_signal


def test_there_and_back():
    image = torch.rand(3, 4, 5)
    signal = to_signal(image)
    assert signal.shape == (1, 20, 3)
    assert signal[0, 7].tolist() == image[:, 1, 2].tolist()
    assert torch.equal(to_image(signal, 4, 5), image)


def test_squared_distances_are_mean_squared_differences_of_patches():
    image = torch.rand(2, 6, 6, dtype=torch.float64)
    features = patch_features(image, 1)
    assert features.shape == (1, 36, 18)
    one, other = image[:, 0:3, 1:4], image[:, 3:6, 2:5]  # the patches around (1, 2) and (4, 3)
    truth = (one - other).square().mean()
    actual = (features[0, 1 * 6 + 2] - features[0, 4 * 6 + 3]).square().sum()
    assert float((actual - truth).abs()) <= 1e-15


def test_the_border_is_mirrored():
    image = torch.arange(9.0).view(1, 3, 3)
    corner = patch_features(image, 1)[0, 0] * 3
    assert corner.tolist() == [4.0, 3.0, 4.0, 1.0, 0.0, 1.0, 4.0, 3.0, 4.0]


def test_without_a_radius_the_feature_is_the_pixel():
    image = torch.rand(1, 3, 3)
    assert torch.equal(patch_features(image, 0), to_signal(image))


@pytest.mark.parametrize(
    ("image", "radius", "message"),
    [
        (torch.rand(3, 3), 1, r"\[3, 3\] torch.float32; a grey image becomes one by image\[None\]"),
        (torch.rand(3, 4, 4).numpy(), 1, "image must be a floating point tensor .*, got ndarray"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), 1, "floating point"),
        (torch.rand(3, 4, 4), -1, "radius must be a whole number"),
        (torch.rand(3, 4, 4), 4, "does not fit an image of 4 × 4 pixels; use radius=3 or less"),
        (torch.rand(3, 0, 9), 0, "with pixels"),
    ],
)
def test_wrong_arguments(image, radius, message):
    with pytest.raises(ValueError, match=message):
        patch_features(image, radius)


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5)])
def test_a_signal_is_made_of_one_image_with_channels(shape):
    """Of a grey image [H, W] the rows would be channels."""
    with pytest.raises(ValueError, match=r"image must be .* \[C, H, W\]"):
        to_signal(torch.rand(shape))


def test_psnr_of_a_known_error():
    assert psnr(torch.full((1, 2, 2), 0.1), torch.zeros(1, 2, 2)) == pytest.approx(20.0, abs=1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 2), (1, 4, 3)])
def test_psnr_takes_no_images_of_two_shapes(shape):
    """Two of these would be broadcast."""
    with pytest.raises(ValueError, match=r"image \[3, 2, 2\] and truth .* must have one shape"):
        psnr(torch.zeros(3, 2, 2), torch.zeros(shape))
