"""The learning rate, held to torch's schedulers."""

import pytest
import torch

from nonloc_paper.training.recipe import Recipe
from nonloc_paper.training.plan import learning_rate


def rates_of(make_scheduler, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_steps_are_those_of_torch():
    recipe = Recipe(epochs=12, milestones=(3, 7), gamma=0.2, learning_rate=0.1)
    expected = rates_of(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3 * 5, 7 * 5], 0.2), 60)
    assert [learning_rate(recipe, step, 5) for step in range(60)] == pytest.approx(expected, rel=1e-12)


def test_the_papers_rate_falls_around_32_and_48_thousand_steps():
    recipe = Recipe()
    rates = [learning_rate(recipe, step, 391) for step in (0, 31670, 31671, 47701, 47702, 64123)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(("epochs", "per_epoch"), [(10, 10), (7, 13), (1, 4)])
def test_one_cycle_is_that_of_torch(epochs, per_epoch):
    recipe = Recipe(schedule="onecycle", epochs=epochs, learning_rate=0.4)
    total = epochs * per_epoch
    expected = rates_of(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=total, cycle_momentum=False),
        total - 1,
    )
    assert [learning_rate(recipe, step, per_epoch) for step in range(total - 1)] == pytest.approx(
        expected, rel=1e-9
    )


def test_one_cycle_ends_at_its_lowest_rate():
    recipe = Recipe(schedule="onecycle", epochs=5, learning_rate=1.0)
    assert learning_rate(recipe, 49, 10) == pytest.approx(1.0 / 25 / 1e4)


def test_constant_is_constant():
    recipe = Recipe(schedule="constant", learning_rate=0.3)
    assert {learning_rate(recipe, step, 7) for step in range(0, 2000, 13)} == {0.3}
