"""Network and optimizer as flat tensors, there and back."""

import copy

import pytest
import torch
from torch import nn

from nonloc.training.recipe import Recipe
from nonloc.training.state import (
    capture,
    has_finite_parameters,
    restore_model,
    restore_optimizer,
    weights_sha256,
)
from nonloc.training.step import make_optimizer

RECIPES = [
    Recipe(),
    Recipe(momentum=0),
    Recipe(nesterov=True),
    Recipe(optimizer="adam", learning_rate=0.01),
]


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2))


def train(model, optimizer, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 3, 5, 5, generator=generator)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("recipe", RECIPES, ids=["sgd", "no momentum", "nesterov", "adam"])
def test_a_restored_pair_goes_on_identically(recipe):
    model = small_model()
    optimizer = make_optimizer(model, recipe)
    train(model, optimizer, 3, seed=1)
    tensors = capture(model, optimizer)

    other = small_model()
    other_optimizer = make_optimizer(other, recipe)
    restore_model(other, tensors)
    restore_optimizer(other_optimizer, other, tensors)
    train(model, optimizer, 3, seed=2)
    train(other, other_optimizer, 3, seed=2)
    assert weights_sha256(other) == weights_sha256(model)


def test_what_was_captured_does_not_change_with_the_network():
    model = small_model()
    optimizer = make_optimizer(model, Recipe())
    train(model, optimizer, 1, seed=1)
    tensors = capture(model, optimizer)
    before = copy.deepcopy(tensors)
    train(model, optimizer, 1, seed=2)
    assert all(tensors[name].equal(before[name]) for name in tensors)


def test_missing_tensors_are_an_error():
    tensors = capture(small_model(), make_optimizer(small_model(), Recipe()))
    del tensors["model.0.weight"]
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        restore_model(small_model(), tensors)


def test_the_hash_sees_one_bit_and_the_buffers():
    model = small_model()
    first = weights_sha256(model)
    assert weights_sha256(small_model()) == first
    model[1].running_mean[0] += 1e-7
    assert weights_sha256(model) != first


def test_the_hash_does_not_depend_on_the_memory_layout():
    model = small_model()
    assert weights_sha256(copy.deepcopy(model).to(memory_format=torch.channels_last)) == weights_sha256(model)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_parameter_is_found(bad):
    model = small_model()
    assert has_finite_parameters(model)
    with torch.no_grad():
        model[4].weight[1, 5] = bad
    assert not has_finite_parameters(model)
