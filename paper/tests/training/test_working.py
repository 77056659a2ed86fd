"""Options: when an epoch's end is saved."""

import pytest
import torch

from nonloc_paper.training.loop import SECONDS_UNSAVED, Options

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_every_epoch_is_saved_on_the_cpu():
    assert all(Options(CPU).saves_epoch(epoch, 0.0) for epoch in (1, 2, 3))


@pytest.mark.parametrize(("seconds", "is_saved"), [(0.4, False), (SECONDS_UNSAVED, True)])
def test_on_cuda_only_what_took_a_while_is_saved(seconds, is_saved):
    assert Options(CUDA).saves_epoch(3, seconds) == is_saved


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_the_caller_decides_if_he_wants_to(device):
    options = Options(device, checkpoint_every=2)
    assert [options.saves_epoch(epoch, 100.0) for epoch in (1, 2, 3, 4)] == [False, True, False, True]
    assert options.saves_epoch(2, 0.0)
