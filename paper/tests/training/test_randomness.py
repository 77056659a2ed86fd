"""Order and chance as functions of the place in a run."""

import hashlib

import torch
from tiny import unusual_defaults

from nonloc_paper.training.plan import epoch_order, initialization, mix, step_generator, step_seed


def test_mix_is_the_documented_hash():
    expected = int(hashlib.sha256(b"step/3/1/4").hexdigest()[:16], 16) // 2
    assert mix("step", 3, 1, 4) == expected


def test_an_order_is_a_permutation():
    assert epoch_order(0, 0, 1000).sort().values.equal(torch.arange(1000))


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else():
    torch.manual_seed(1)
    first = epoch_order(2, 3, 100)
    torch.manual_seed(2)
    epoch_order(2, 2, 100)
    assert epoch_order(2, 3, 100).equal(first)
    assert not epoch_order(2, 4, 100).equal(first)
    assert not epoch_order(3, 3, 100).equal(first)


def test_seed_and_epoch_cannot_be_exchanged():
    assert not epoch_order(1, 2, 100).equal(epoch_order(2, 1, 100))


def test_a_step_has_its_own_chance():
    draws = [
        torch.rand(4, generator=step_generator(*place))
        for place in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    ]
    assert torch.stack(draws).unique(dim=0).shape[0] == 4
    assert torch.rand(4, generator=step_generator(0, 0, 1)).equal(draws[1])


def test_a_generator_seeded_again_is_the_generator_of_the_step():
    generator = torch.Generator()
    for place in [(0, 0, 0), (3, 1, 4), (0, 0, 0)]:
        torch.randn(3, generator=generator)
        generator.manual_seed(step_seed(*place))
        assert torch.randn(5, generator=generator).equal(torch.randn(5, generator=step_generator(*place)))


def test_initialization_is_a_function_of_the_seed():
    def weight(seed):
        with initialization(seed):
            return torch.nn.Linear(3, 3).weight

    torch.manual_seed(0)
    first = weight(7)
    torch.manual_seed(1)
    assert weight(7).equal(first)
    assert not weight(8).equal(first)


def test_initialization_does_not_depend_on_the_caller_s_defaults():
    with unusual_defaults(), initialization(7):
        weight = torch.nn.Linear(3, 3).weight
    assert (weight.dtype, weight.device.type) == (torch.float32, "cpu")


def test_initialization_does_not_disturb_the_global_generator():
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    with initialization(0):
        torch.rand(5)
    assert torch.rand(3).equal(expected)
