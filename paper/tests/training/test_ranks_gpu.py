"""Two processes on CUDA, which share one device through gloo, train the run of one process."""

import pytest
from test_ranks import difference
from tiny import tiny_recipe, train

from nonloc_paper.runs import Run
from ranks import in_processes

pytestmark = pytest.mark.gpu

RECIPES = {
    "classifier": tiny_recipe(),
    "restorer": tiny_recipe(network="restorer8/original-1@1", optimizer="adam", learning_rate=0.003),
    "channels last": tiny_recipe(channels_last=True),
}


def train_on_cuda(rank, folder):
    for name, recipe in RECIPES.items():
        assert train(recipe, folder / name, device="cuda").ending == "finished"


def test_two_processes_train_the_run_of_one(tmp_path):
    in_processes(2, train_on_cuda, tmp_path)
    for name, recipe in RECIPES.items():
        train(recipe, tmp_path / f"{name}, alone", device="cuda")
        assert difference(Run(tmp_path / name), Run(tmp_path / f"{name}, alone")) < 1e-4
