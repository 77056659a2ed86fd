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


def test_the_training_mean_is_subtracted_from_both_splits():
    data = Dataset("tiny", two_images(100, 140), two_images(120, 184), ("a", "b"))
    task = Classification(tiny_recipe(augment=False, pixel_scale=64), data, "cpu")
    train, labels = task.train_batch(torch.tensor([1, 0]), step_generator(0, 0, 0))
    [(test, _)] = task.test_batches(10)
    assert train[:, 0, 0, 0].tolist() == [20 / 64, -20 / 64]
    assert labels.tolist() == [1, 0]
    assert test[:, 0, 0, 0].tolist() == [0.0, 1.0]


def test_the_scale_std_is_the_deviation_of_the_training_images():
    data = Dataset("tiny", two_images(100, 140), two_images(120, 184), ("a", "b"))
    task = Classification(tiny_recipe(augment=False, pixel_scale="std"), data, "cpu")
    train, _ = task.train_batch(torch.tensor([0, 1]), step_generator(0, 0, 0))
    assert train[:, 1, 2, 3].tolist() == [-1.0, 1.0]


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


def test_too_many_images_are_refused_with_the_number_there_is():
    with pytest.raises(ValueError, match="train_images=41, but data='tiny' has 40"):
        Classification(tiny_recipe(train_images=41), tiny_data(), "cpu")


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


def test_training_noise_differs_from_step_to_step():
    task = restoration(augment=False)
    first, _ = task.train_batch(torch.arange(4), step_generator(0, 0, 0))
    second, _ = task.train_batch(torch.arange(4), step_generator(0, 0, 1))
    assert not first.equal(second)


def test_the_test_noise_is_the_same_for_every_seed_and_batch_size():
    one = torch.cat([inputs for inputs, _ in restoration(seed=0).test_batches(24)])
    other = torch.cat([inputs for inputs, _ in restoration(seed=9).test_batches(5)])
    assert one.equal(other)


def test_the_noise_of_an_image_does_not_depend_on_how_many_there_are():
    assert fixed_noise(torch.Size([3, 3, 8, 8])).equal(fixed_noise(torch.Size([9, 3, 8, 8]))[:3])


def test_the_noise_does_not_follow_the_defaults_of_its_caller():
    shape = torch.Size([2, 3, 8, 8])
    usual = fixed_noise(shape)
    with unusual_defaults():
        noise = fixed_noise(shape)
    assert noise.dtype == torch.float32
    assert noise.equal(usual)


def test_the_test_noise_is_standard_normal_and_new_for_each_image():
    noise = fixed_noise(torch.Size([200, 3, 8, 8]))
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert noise.flatten(1).unique(dim=0).shape[0] == 200


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
