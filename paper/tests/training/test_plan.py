"""EpochPlan: every image once, in the order of the epoch, and for each step its own seed."""

import torch
from tiny import tiny_recipe

from nonloc_paper.training.plan import EpochPlan
from nonloc_paper.training.plan import epoch_order, step_seed

CPU = torch.device("cpu")


def test_the_batches_are_the_order_of_the_epoch_cut_into_pieces():
    plan = EpochPlan.make(tiny_recipe(seed=4), 2, 40, 5, CPU)
    batches = [plan.batch(step) for step in range(5)]
    assert [len(batch.indices) for batch in batches] == [9, 9, 9, 9, 4]
    assert torch.equal(torch.cat([batch.indices for batch in batches]), epoch_order(4, 2, 40))


def test_a_step_has_the_seed_of_its_place_at_hand_and_on_the_device():
    plan = EpochPlan.make(tiny_recipe(seed=4), 2, 40, 3, CPU)
    for step in range(3):
        batch = plan.batch(step)
        assert batch.seed == step_seed(4, 2, step)
        assert batch.seed_on_device.tolist() == [batch.seed]


def test_what_the_device_is_given_stays_where_it_is():
    """A batch is a view: nothing is launched to get it."""
    plan = EpochPlan.make(tiny_recipe(), 0, 40, 5, CPU)
    assert plan.batch(1).indices.data_ptr() == plan.order.data_ptr() + 9 * plan.order.element_size()
