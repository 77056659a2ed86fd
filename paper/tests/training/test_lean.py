"""LeanStep: fewer launches, the same numbers."""

import copy

import pytest
import torch
from tiny import tiny_data, tiny_recipe

from nonloc_paper.networks.build import build
from nonloc_paper.training.step import LeanStep
from nonloc_paper.training.plan import step_generator
from nonloc_paper.training.step import TrainingStep
from nonloc_paper.training.tasks import TASKS


@pytest.mark.parametrize("network", ["preresnet11/original-2@2", "restorer8/diffusive-2@1"])
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_steps_are_equal_to_the_bit(network, precision):
    recipe = tiny_recipe(network=network, precision=precision, channels_last=True)
    data = tiny_data(labels=recipe.task == "classification")
    task = TASKS[recipe.task](recipe, data, "cpu")
    torch.manual_seed(0)
    plain = build(network, num_classes=data.num_classes, init_std=0.1)
    plain = plain.to(memory_format=torch.channels_last)
    lean = copy.deepcopy(plain)
    steps = [TrainingStep(plain, task, recipe), LeanStep(lean, task, recipe)]
    for number in range(3):
        losses = [step(torch.arange(9), step_generator(0, 0, number), 0.1) for step in steps]
        assert torch.equal(*losses)
    expected = plain.state_dict()
    for name, value in lean.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_weights_and_gradients_stay_in_float32():
    recipe = tiny_recipe(precision="bfloat16")
    model = build("preresnet8-basic/baseline", num_classes=3)
    step = LeanStep(model, TASKS["classification"](recipe, tiny_data(), "cpu"), recipe)
    step(torch.arange(9), step_generator(0, 0, 0), 0.1)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name
        assert parameter.grad.stride() == parameter.stride(), name


def test_a_network_without_convolutions_has_nothing_to_cast():
    recipe = tiny_recipe(precision="bfloat16")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 3))
    step = LeanStep(model, TASKS["classification"](recipe, tiny_data(), "cpu"), recipe)
    before = model[1].weight.detach().clone()
    step(torch.arange(9), step_generator(0, 0, 0), 0.1)
    assert not torch.equal(model[1].weight, before)
