"""train_all: what is done, what is left, and who else is at it."""

import pytest
import torch

from nonloc.runs import Run
from nonloc.suite import train_all
from nonloc.training.recipe import Recipe

BASE = Recipe(
    network="restorer8/diffusive-1@2",
    data="motifs",
    epochs=1,
    steps_per_epoch=2,
    batch_size=8,
    optimizer="adam",
    learning_rate=0.01,
    schedule="constant",
    train_images=64,
    test_images=16,
)
RECIPES = [BASE.with_(seed=seed) for seed in range(3)]


def go(folder, recipes=RECIPES, **keywords):
    return train_all(recipes, folder, device="cpu", progress=False, **keywords)


def test_every_run_is_trained_and_observed_once(tmp_path):
    told = []
    progress = go(tmp_path, tell=lambda index, recipe: told.append((index, recipe.seed)))
    assert (progress.done, progress.left, progress.reason, progress.signal) == (tuple(RECIPES), (), "", None)
    assert told == [(0, 0), (1, 1), (2, 2)]
    for recipe in RECIPES:
        run = Run.open(tmp_path / recipe.name)
        assert run.is_finished
        assert (run.path / "observations.json").is_file()
    before = [Run(tmp_path / recipe.name).result_path.stat().st_mtime_ns for recipe in RECIPES]
    assert go(tmp_path).done == tuple(RECIPES)
    assert before == [Run(tmp_path / recipe.name).result_path.stat().st_mtime_ns for recipe in RECIPES]


def test_a_spent_budget_leaves_the_rest_and_counts_what_was_done_before(tmp_path):
    go(tmp_path, RECIPES[2:])
    progress = go(tmp_path, budget=0.0)
    assert progress.done == (RECIPES[2],)
    assert progress.left == tuple(RECIPES[:2])
    assert "budget" in progress.reason
    assert go(tmp_path).left == ()


def test_a_held_run_is_passed_over(tmp_path):
    with Run(tmp_path / RECIPES[1].name).lock():
        progress = go(tmp_path)
    assert progress.locked == progress.left == (RECIPES[1],)
    assert progress.done == (RECIPES[0], RECIPES[2])
    assert progress.reason == ""


def test_a_diverged_run_is_done(tmp_path):
    recipe = BASE.with_(optimizer="sgd", learning_rate=1e30)
    progress = go(tmp_path, [recipe])
    assert progress.done == (recipe,)
    assert Run(tmp_path / recipe.name).read_result()["outcome"]["ending"] == "diverged"


def test_an_error_of_the_user_is_not_swallowed(tmp_path):
    with pytest.raises(ValueError, match="train_images=100000"):
        go(tmp_path, [BASE.with_(train_images=100_000)])


def test_torchs_own_generator_is_left_alone(tmp_path):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    go(tmp_path, RECIPES[:1])
    assert torch.equal(torch.rand(1), expected)
