"""train_all: what is done, what is left, and who else is at it."""

from contextlib import ExitStack

import pytest
import torch
from test_runs import make_result

from nonloc_paper.runs import Run
from nonloc_paper.suites import train_all as suite
from nonloc_paper.suites.train_all import seconds_of_whole_runs, train_all
from nonloc_paper.training.fit import fit
from nonloc_paper.training.recipe import Recipe

SIZES = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8, "train_images": 64, "test_images": 16}
OPTIMIZER = {"optimizer": "adam", "learning_rate": 0.01, "schedule": "constant"}
BASE = Recipe(network="restorer8/diffusive-1@2", data="motifs", **SIZES, **OPTIMIZER)
RECIPES = [BASE.with_(seed=seed) for seed in range(3)]


def go(folder, recipes=RECIPES, **keywords):
    return train_all(recipes, folder, device="cpu", progress=False, **keywords)


def test_every_run_is_trained_and_observed_once(tmp_path):
    recipes, begun = [*RECIPES, BASE.with_(optimizer="sgd", learning_rate=1e30)], []
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    progress = go(tmp_path, recipes, tell=lambda index, recipe: begun.append((index, recipe.seed)))
    assert torch.equal(torch.rand(1), expected), "torch's own generator is left alone"
    assert (progress.done, progress.left, progress.reason, progress.signal) == (tuple(recipes), (), "", None)
    assert begun == [(0, 0), (1, 1), (2, 2), (3, 0)]
    runs = [Run.open(tmp_path / recipe.name) for recipe in recipes]
    assert [run.read_result()["outcome"]["ending"] for run in runs] == ["converged"] * 3 + ["diverged"]
    assert all((run.path / "observations.json").is_file() for run in runs)
    before = [run.result_path.stat().st_mtime_ns for run in runs]
    assert go(tmp_path, recipes).done == tuple(recipes)
    assert before == [run.result_path.stat().st_mtime_ns for run in runs]


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


def test_a_held_run_that_its_process_has_finished_meanwhile_is_done(tmp_path):
    held = RECIPES[0]
    with ExitStack() as stack:
        stack.enter_context(Run(tmp_path / held.name).lock())

        def finish_the_held(index, recipe):
            if recipe != held:
                stack.close()
                go(tmp_path, [held])

        progress = go(tmp_path, RECIPES[:2], tell=finish_the_held)
    assert (progress.done, progress.left, progress.locked) == (tuple(RECIPES[:2]), (), ())


def test_a_failing_run_does_not_keep_the_others_from_being_run(tmp_path):
    recipes = [RECIPES[0], BASE.with_(train_images=100_000), RECIPES[1]]
    progress = go(tmp_path, recipes)
    assert "train_images=100000" in str(progress.errors[0])
    assert progress.left == (recipes[1],)
    assert all(Run(tmp_path / recipe.name).is_finished for recipe in (recipes[0], recipes[2]))


def test_a_network_that_cannot_be_looked_at_does_not_stop_the_rest(tmp_path, monkeypatch):
    def observe_one(run, *all, **keywords):
        if run.name == RECIPES[0].name:
            raise ValueError("nothing to see")

    monkeypatch.setattr(suite, "observe", observe_one)
    assert [str(error) for error in go(tmp_path, RECIPES[:2]).errors] == ["nothing to see"]
    assert all(Run(tmp_path / recipe.name).is_finished for recipe in RECIPES[:2])


def test_a_damaged_folder_does_not_keep_the_others_from_being_chosen(tmp_path):
    run = Run(tmp_path / RECIPES[0].name)
    run.write_recipe(RECIPES[0].to_dict())
    run.metrics_path.write_text("no line of metrics\n{}\n")
    progress = go(tmp_path, RECIPES[:2], budget=1e5)
    assert (progress.done, progress.left) == ((RECIPES[1],), (RECIPES[0],))
    assert "metrics.jsonl, line 1, is not a JSON object" in str(progress.errors[0])


def test_a_name_that_something_else_has_does_not_stop_the_others(tmp_path):
    (tmp_path / RECIPES[0].name).mkdir(parents=True)
    (tmp_path / RECIPES[0].name / "thesis.tex").write_text("")
    (tmp_path / RECIPES[1].name).write_text("a file")
    progress = go(tmp_path)
    assert (progress.done, progress.left) == ((RECIPES[2],), tuple(RECIPES[:2]))
    assert ["thesis.tex" in str(error) for error in progress.errors] == [True, False]
    assert "is a file, not a run folder" in str(progress.errors[1])


def test_with_a_budget_a_run_that_is_known_not_to_fit_is_begun_last(tmp_path):
    """The long recipe has taken a million seconds elsewhere with another seed; of the short one nothing is known."""
    long, begun = BASE.with_(epochs=2), []
    go(tmp_path / "elsewhere", [long.with_(seed=1)])
    run = Run(tmp_path / "elsewhere" / long.with_(seed=1).name)
    run.write_result(run.read_result() | {"seconds": 1e6})
    others = [(long.with_(seed=1), run)]
    tell = {"tell": lambda index, recipe: begun.append(index)}
    progress = go(tmp_path, [long, BASE], budget=1e5, others=others, **tell)
    assert begun == [1, 0]
    assert progress.left == (), "begun last, but begun"


def test_a_run_that_has_begun_is_brought_to_its_end_before_another_is_begun(tmp_path):
    """Else budgets that are shorter than a run would begin them all before one is done."""
    begun, others = [], [(BASE.with_(seed=1), finished(tmp_path / "elsewhere", 1e6))]
    fit(BASE, tmp_path / "runs" / BASE.name, device="cpu", progress=False, stop_after=0)
    tell = {"tell": lambda index, recipe: begun.append(index)}
    go(tmp_path / "runs", [BASE, BASE.with_(epochs=2)], budget=1e5, others=others, **tell)
    assert begun == [0, 1]


def finished(path, seconds, ending="converged", device="cpu", **more):
    """A finished run that took `seconds`."""
    run, result = Run(path), make_result(ending)
    machine = result["machine"] | {"device": device}
    run.write_result(result | {"seconds": seconds, "machine": machine} | more)
    return run


@pytest.mark.parametrize(
    "difference",
    [{"ending": "diverged"}, {"device": "another"}, {"earlier": [{"machine": None, "seconds": 50.0}]}],
    ids=["diverged", "another device", "partly elsewhere"],
)
def test_only_runs_that_compare_say_how_long_one_takes(tmp_path, difference):
    runs = [
        finished(tmp_path / "1", 100.0),
        finished(tmp_path / "2", 120.0, **difference),
        Run(tmp_path / "3"),
    ]
    assert seconds_of_whole_runs(runs, "cpu") == [100.0]
