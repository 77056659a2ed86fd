"""Several processes train a list of recipes as one does."""

import pytest
import torch
from test_train_all import RECIPES, go

from nonloc_paper.runs import Run
from nonloc_paper.suites.processes import train_all_by_processes
from nonloc_paper.training.trained import trained_network


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    one = go(tmp_path / "one")
    two = train_all_by_processes(
        RECIPES, tmp_path / "two", processes=2, device="cpu", progress=False, side_by_side=None
    )
    assert (two.done, two.left, two.locked, two.errors) == (one.done, (), (), ())
    for recipe in RECIPES:
        first, second = (
            trained_network(Run(tmp_path / folder / recipe.name)).state_dict() for folder in ("one", "two")
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
