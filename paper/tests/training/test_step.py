"""One step: the update that the optimizer's definition gives, in the precision that the recipe says."""

import copy

import pytest
import torch
from tiny import tiny_data, tiny_recipe
from torch import nn

from nonloc_paper.networks.build import build
from nonloc_paper.training import step as step_module
from nonloc_paper.training.plan import step_generator
from nonloc_paper.training.step import TrainingStep, autocast_of, forward, precision_of
from nonloc_paper.training.tasks import TASKS, Classification

CPU = torch.device("cpu")


class Linear(nn.Module):
    """Sees the mean colour of an image."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen = []

    def forward(self, x):
        outputs = self.layer(x.mean((2, 3)))
        self.seen.append((x.stride(), outputs.dtype))
        return outputs


def test_two_steps_are_those_of_momentum_with_weight_decay():
    recipe = tiny_recipe(momentum=0.9, weight_decay=0.1, augment=False)
    task = Classification(recipe, tiny_data(), "cpu")
    model = Linear()
    step = TrainingStep(model, task, recipe)
    weight, velocity = model.layer.weight.detach().clone(), torch.zeros(3, 3)
    indices = torch.arange(9)
    for rate in (0.5, 0.25):
        inputs, targets = task.train_batch(indices, step_generator(0, 0, 0))
        bias = model.layer.bias.detach().clone()
        leaf = weight.clone().requires_grad_()
        expected_loss = nn.functional.cross_entropy(inputs.mean((2, 3)) @ leaf.T + bias, targets)
        expected_loss.backward()
        velocity = 0.9 * velocity + leaf.grad + 0.1 * weight
        weight = weight - rate * velocity
        loss = step(indices, step_generator(0, 0, 0), rate)
        torch.testing.assert_close(loss, expected_loss.detach())
        torch.testing.assert_close(model.layer.weight.detach(), weight)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_network_computes_in_the_recipes_precision_and_answers_in_float32(precision, dtype):
    model = Linear()
    outputs = forward(model, torch.randn(2, 3, 4, 4), tiny_recipe(precision=precision))
    assert model.seen[0][1] == dtype
    assert outputs.dtype == torch.float32


def test_channels_last_reaches_the_network():
    model = Linear()
    forward(model, torch.randn(2, 3, 4, 4), tiny_recipe(channels_last=True))
    assert model.seen[0][0] == (48, 1, 12, 3)


@pytest.mark.parametrize(
    ("network", "precision"),
    [
        ("preresnet8-basic/original-1@1", "bfloat16"),
        ("restorer8/diffusive-2@1", "bfloat16"),
        ("restorer8/diffusive-2@1", "float32"),
    ],
)
def test_weights_that_are_cast_together_give_the_same_step_to_the_bit(network, precision):
    recipe = tiny_recipe(network=network, precision=precision, channels_last=True)
    data = tiny_data(labels=recipe.task == "classification")
    task = TASKS[recipe.task](recipe, data, "cpu")
    torch.manual_seed(0)
    plain = build(network, num_classes=data.num_classes, init_std=0.1).to(memory_format=torch.channels_last)
    together = copy.deepcopy(plain)
    steps = [TrainingStep(plain, task, recipe), TrainingStep(together, task, recipe, cast_together=True)]
    for number in range(2):
        assert torch.equal(*(step(torch.arange(3), step_generator(0, 0, number), 0.1) for step in steps))
    expected = plain.state_dict()
    for name, value in together.state_dict().items():
        assert torch.equal(value, expected[name]), name
    for name, parameter in together.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32, name
        assert parameter.grad.stride() == parameter.stride(), name


def test_a_network_without_convolutions_has_nothing_to_cast():
    recipe = tiny_recipe(precision="bfloat16")
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    step = TrainingStep(model, Classification(recipe, tiny_data(), "cpu"), recipe, cast_together=True)
    before = model[1].weight.detach().clone()
    step(torch.arange(9), step_generator(0, 0, 0), 0.1)
    assert not torch.equal(model[1].weight, before)


@pytest.mark.parametrize(
    ("precision", "has_bfloat16", "inside"),
    [("bfloat16", False, False), ("bfloat16", True, True), ("float32", False, True)],
)
def test_a_cpu_without_bfloat16_avoids_one_dnn(monkeypatch, precision, has_bfloat16, inside):
    monkeypatch.setattr(step_module, "cpu_has_bfloat16", lambda: has_bfloat16)
    with precision_of(tiny_recipe(precision=precision), CPU):
        assert torch.backends.mkldnn.enabled is inside
    assert torch.backends.mkldnn.enabled


def test_a_product_in_bfloat16_leaves_the_process_as_it_was():
    recipe = tiny_recipe(precision="bfloat16")
    with precision_of(recipe, CPU), autocast_of(recipe, CPU):
        torch.nn.functional.linear(torch.randn(512, 64), torch.randn(64, 64))
    assert torch.backends.mkldnn.enabled
