"""One step: the update that the optimizer's definition gives, in the precision that the recipe says."""

import pytest
import torch
from tiny import tiny_data, tiny_recipe
from torch import nn

from nonloc_paper.training.plan import step_generator
from nonloc_paper.training.step import TrainingStep, forward
from nonloc_paper.training.tasks import Classification


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
