"""Classification and restoration: exact statistics, exact scores, the right chance."""

import math

import pytest
import torch
from tiny import tiny_data, tiny_recipe, unusual_defaults

from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.training.augment import augment
from nonloc_paper.training.plan import step_generator
from nonloc_paper.training.tasks import Classification, Restoration, fixed_noise, pixel_statistics


def restoration(**changes):
    recipe = tiny_recipe(network="restorer8/baseline", **changes)
    return Restoration(recipe, tiny_data(labels=False), "cpu")


def two_images(low, high):
    images = torch.stack([torch.full((3, 4, 4), low), torch.full((3, 4, 4), high)]).to(torch.uint8)
    return Split(images, torch.tensor([0, 1]))


def test_pixel_statistics_are_exact():
    images = torch.tensor([10, 20, 60], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2).clone()
    images[:, 0, 0, 0] = 5
    mean, deviation = pixel_statistics(images)
    assert mean[0, 0, 0] == 5
    assert mean[1, 1, 1] == 30
    # One pixel of twelve never varies, the others have variance (400 + 100 + 900) / 3.
    assert deviation == pytest.approx(math.sqrt(1400 / 3 * 11 / 12), rel=1e-12)


def test_white_images_do_not_vary_however_many_they_are():
    """255² · 2047 is odd and above 2²⁴, so float32 cannot hold it."""
    mean, deviation = pixel_statistics(torch.full((2047, 3, 1, 1), 255, dtype=torch.uint8))
    assert (mean.flatten().tolist(), deviation) == ([255, 255, 255], 0)


@pytest.mark.parametrize("pixel_scale", [64, "std"])
def test_the_training_mean_is_subtracted_from_both_splits_which_are_scaled(pixel_scale):
    """Of images with the values 100 and 140, the mean is 120 and the deviation 20."""
    data = Dataset("tiny", two_images(100, 140), two_images(120, 184), ("a", "b"))
    task = Classification(tiny_recipe(augment=False, pixel_scale=pixel_scale), data, "cpu")
    train, labels = task.train_batch(torch.tensor([1, 0]), step_generator(0, 0, 0))
    [(test, _)] = task.test_batches(10)
    scale = 20 if pixel_scale == "std" else 64
    assert train[:, 1, 2, 3].tolist() == pytest.approx([20 / scale, -20 / scale])
    assert labels.tolist() == [1, 0]
    assert test[:, 0, 0, 0].tolist() == pytest.approx([0.0, 64 / scale])


def test_crops_are_padded_with_the_mean_image():
    task = Classification(tiny_recipe(), tiny_data(), "cpu")
    plain = Classification(tiny_recipe(augment=False), tiny_data(), "cpu")
    indices = torch.arange(8)
    normalized, _ = plain.train_batch(indices, step_generator(0, 0, 0))
    augmented, _ = task.train_batch(indices, step_generator(0, 0, 0))
    assert augmented.equal(augment(normalized, step_generator(0, 0, 0)))


def test_error_and_cross_entropy_are_sums_over_images():
    task = Classification(tiny_recipe(), tiny_data(), "cpu")
    outputs = torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, math.nan]])
    sums = task.measure(outputs[:2], torch.tensor([0, 1]))
    assert sums.dtype == torch.float64
    expected = math.log(3) + math.log(math.exp(9) + 2)
    assert sums.tolist() == pytest.approx([expected, 100.0], rel=1e-12)
    assert task.measure(outputs[2:], torch.tensor([2]))[1] == 100.0


def test_classification_without_labels_says_what_to_do():
    with pytest.raises(ValueError, match=r"has no labels; choose labelled data"):
        Classification(tiny_recipe(), tiny_data(labels=False), "cpu")


def test_a_subset_is_the_first_images_and_has_its_own_mean():
    task = Classification(tiny_recipe(train_images=1, test_images=5, augment=False), tiny_data(), "cpu")
    images, _ = task.train_batch(torch.tensor([0]), step_generator(0, 0, 0))
    assert images.abs().max() == 0
    assert sum(len(labels) for _, labels in task.test_batches(2)) == 5


def test_restoration_scales_to_minus_one_and_one_and_adds_noise():
    task = restoration(augment=False, noise=0.4)
    indices = torch.arange(9)
    inputs, targets = task.train_batch(indices, step_generator(0, 1, 2))
    assert targets.equal(task.train.images[indices].float() / 127.5 - 1)
    noise = torch.randn(targets.shape, generator=step_generator(0, 1, 2))
    torch.testing.assert_close(inputs - targets, 0.4 * noise)


def test_the_test_noise_is_the_same_for_every_seed_and_batch_size():
    one = torch.cat([inputs for inputs, _ in restoration(seed=0).test_batches(24)])
    other = torch.cat([inputs for inputs, _ in restoration(seed=9).test_batches(5)])
    assert one.equal(other)


def test_the_test_noise_is_standard_normal_and_new_for_each_image():
    """It depends neither on how many images there are nor on the caller's default dtype and device."""
    noise = fixed_noise(torch.Size([200, 3, 8, 8]))
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert noise.flatten(1).unique(dim=0).shape[0] == 200
    with unusual_defaults():
        assert fixed_noise(torch.Size([3, 3, 8, 8])).equal(noise[:3])


def test_psnr_is_the_mean_of_each_images_own():
    task = restoration()
    targets = torch.zeros(2, 3, 4, 4)
    outputs = torch.stack([torch.full((3, 4, 4), 0.2), torch.full((3, 4, 4), 0.02)])
    loss, psnr = (task.measure(outputs, targets) / 2).tolist()
    assert loss == pytest.approx((0.04 + 0.0004) / 2, rel=1e-6)
    # Errors of a tenth and a hundredth of the peak 2 are 20 and 40 dB.
    assert psnr == pytest.approx(30.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["classification", "restoration"])
def test_test_images_by_number_are_those_in_order(kind):
    task = restoration() if kind == "restoration" else Classification(tiny_recipe(), tiny_data(), "cpu")
    [(inputs, targets)] = task.test_batches(24)
    indices = torch.tensor([7, 0, 23])
    some_inputs, some_targets = task.test_batch(indices)
    assert torch.equal(some_inputs, inputs[indices])
    assert torch.equal(some_targets, targets[indices])
