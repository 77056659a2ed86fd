"""Network and optimizer as flat tensors, there and back."""

import copy

import pytest
import torch
from torch import nn

from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.checkpoint import (
    capture,
    has_finite_parameters,
    restore_model,
    restore_optimizer,
    weights_sha256,
    without_trace,
)
from nonloc_paper.training.step import make_optimizer

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


@pytest.mark.parametrize("recipe", RECIPES, ids=["sgd", "no momentum", "nesterov", "adam"])
@pytest.mark.parametrize("steps", [0, 2], ids=["at the start", "later"])
def test_training_without_a_trace(recipe, steps):
    model, other = small_model(), small_model()
    optimizer, other_optimizer = make_optimizer(model, recipe), make_optimizer(other, recipe)
    train(model, optimizer, steps, seed=1)
    train(other, other_optimizer, steps, seed=1)
    places = [value.data_ptr() for value in model.state_dict().values()]
    with without_trace(model, optimizer):
        train(model, optimizer, 3, seed=9)
        assert weights_sha256(model) != weights_sha256(other)
    assert [value.data_ptr() for value in model.state_dict().values()] == places
    assert weights_sha256(model) == weights_sha256(other)
    train(model, optimizer, 2, seed=2)
    train(other, other_optimizer, 2, seed=2)
    assert weights_sha256(model) == weights_sha256(other)


def test_there_is_no_trace_of_what_failed_either():
    model = small_model()
    before = weights_sha256(model)
    optimizer = make_optimizer(model, Recipe())

    def train_and_fail():
        with without_trace(model, optimizer):
            train(model, optimizer, 1, seed=1)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        train_and_fail()
    assert weights_sha256(model) == before


def test_restored_state_has_the_layout_of_its_parameters():
    model = small_model().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, Recipe())
    train(model, optimizer, 1, seed=1)
    tensors = capture(model, optimizer)
    assert tensors["optimizer.0.weight.momentum_buffer"].is_contiguous()
    other = small_model().to(memory_format=torch.channels_last)
    restored = make_optimizer(other, Recipe())
    restore_optimizer(restored, other, tensors)
    buffer = restored.state[other[0].weight]["momentum_buffer"]
    assert buffer.stride() == other[0].weight.stride()
    assert torch.equal(buffer, tensors["optimizer.0.weight.momentum_buffer"])
