"""Batches on a CUDA device: one launch gives the numbers of plain torch, with the same draws."""

import pytest
import torch
from tiny import tiny_data, tiny_recipe

from nonloc_paper.training.plan import step_generator, step_seed
from nonloc_paper.training.tasks import Classification

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned_memory")]

DEVICE = torch.device("cuda")


def tasks_of(**changes):
    """(in one launch, plainly)"""
    recipe = tiny_recipe(**{"pixel_scale": "std"} | changes)
    data = tiny_data(train=144, size=32)
    fused, plain = Classification(recipe, data, DEVICE), Classification(recipe, data, DEVICE)
    plain.draws_by_seed = False
    return fused, plain


def as_the_network_wants(inputs, recipe):
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    return inputs.to(dtype).contiguous(memory_format=layout)


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_batches_are_equal_to_the_bit(precision, channels_last, augment):
    fused, plain = tasks_of(precision=precision, channels_last=channels_last, augment=augment)
    for step, size in enumerate((128, 16, 1)):
        indices = torch.randperm(144, device=DEVICE)[:size]
        expected, labels = plain.train_batch(indices, step_generator(0, 0, step, DEVICE))
        expected = as_the_network_wants(expected, fused.recipe)
        seed = torch.tensor([step_seed(0, 0, step)], device=DEVICE)
        for chance in (step_generator(0, 0, step, DEVICE), seed):
            found, targets = fused.train_batch(indices, chance)
            assert torch.equal(found, expected)
            assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
            assert torch.equal(targets, labels)


def test_draws_by_seed_are_torchs_own_for_large_batches_too():
    fused, plain = tasks_of()
    indices = torch.randint(0, 144, (5000,), device=DEVICE)
    for seed in (0, 2**40 + 3, 2**63 - 1):
        expected, _ = plain.train_batch(indices, torch.Generator(DEVICE).manual_seed(seed))
        found, _ = fused.train_batch(indices, torch.tensor([seed], device=DEVICE))
        assert torch.equal(found, expected)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_test_batches_are_equal_to_the_bit(precision):
    fused, plain = tasks_of(precision=precision, channels_last=True)
    indices = torch.arange(20, device=DEVICE)
    found, targets = fused.test_batch(indices)
    expected, labels = plain.test_batch(indices)
    assert torch.equal(found, as_the_network_wants(expected, fused.recipe))
    assert torch.equal(targets, labels)


def test_a_batch_is_one_launch():
    fused, _ = tasks_of(precision="bfloat16", channels_last=True)
    indices, seed = torch.arange(128, device=DEVICE), torch.tensor([7], device=DEVICE)
    torch.use_deterministic_algorithms(False)
    fused.train_batch(indices, seed)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        fused.train_batch(indices, seed)
        torch.cuda.synchronize()
    kernels = [event.name for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels
