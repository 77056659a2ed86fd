"""Order, seeds and learning rates as functions of the position in a run."""

import hashlib

import pytest
import torch
from tiny import tiny_recipe, unusual_defaults

from nonloc_paper.training.plan import (
    EpochPlan,
    epoch_order,
    initialization,
    learning_rate,
    mix,
    step_generator,
    step_seed,
)
from nonloc_paper.training.recipe import Recipe

CPU = torch.device("cpu")


def test_the_batches_are_the_order_of_the_epoch_cut_into_pieces():
    plan = EpochPlan.make(tiny_recipe(seed=4), 40, 5, CPU, 2)
    batches = [plan.batch(step) for step in range(5)]
    assert [len(batch.indices) for batch in batches] == [9, 9, 9, 9, 4]
    assert torch.equal(torch.cat([batch.indices for batch in batches]), epoch_order(4, 2, 40))
    assert [batch.seed for batch in batches] == [step_seed(4, 2, step) for step in range(5)]
    assert [batch.seed_on_device.tolist() for batch in batches] == [[batch.seed] for batch in batches]


def test_mix_is_the_documented_hash():
    assert mix("step", 3, 1, 4) == int(hashlib.sha256(b"step/3/1/4").hexdigest()[:16], 16) // 2


def test_an_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = epoch_order(2, 3, 100)
    assert first.sort().values.equal(torch.arange(100))
    torch.manual_seed(2)
    assert epoch_order(2, 3, 100).equal(first)
    for other in [(2, 4), (3, 3), (3, 2)]:
        assert not epoch_order(*other, 100).equal(first)


def test_every_step_has_its_own_generator():
    draws = [
        torch.rand(4, generator=step_generator(*place))
        for place in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    ]
    assert torch.stack(draws).unique(dim=0).shape[0] == 4
    generator = torch.Generator().manual_seed(7)
    assert torch.rand(4, generator=generator.manual_seed(step_seed(0, 0, 1))).equal(draws[1])


def test_initialization_is_a_function_of_the_seed_alone_and_disturbs_no_other_draw():
    def weight(seed):
        with initialization(seed):
            return torch.nn.Linear(3, 3).weight

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first = weight(7)
    torch.manual_seed(1)
    with unusual_defaults():
        assert weight(7).equal(first)
    assert torch.rand(3).equal(expected)
    assert first.dtype == torch.float32
    assert not weight(8).equal(first)


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


@pytest.mark.parametrize(("epochs", "per_epoch"), [(10, 10), (7, 13), (1, 4)])
def test_one_cycle_is_that_of_torch(epochs, per_epoch):
    recipe, total = Recipe(schedule="onecycle", epochs=epochs, learning_rate=0.4), epochs * per_epoch
    expected = rates_of(
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.4, total_steps=total, cycle_momentum=False),
        total - 1,
    )
    rates = [learning_rate(recipe, step, per_epoch) for step in range(total)]
    assert rates[:-1] == pytest.approx(expected, rel=1e-9)
    assert rates[-1] == pytest.approx(0.4 / 25 / 1e4)


def test_constant_is_constant():
    recipe = Recipe(schedule="constant", learning_rate=0.3)
    assert {learning_rate(recipe, step, 7) for step in range(0, 2000, 13)} == {0.3}
