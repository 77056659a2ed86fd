"""run_part: one line for every run, whatever becomes of it, and nothing twice."""

import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from small_map import CALM, STABLE, WILD, small_data, small_part

from nonloc_paper.map.run import run_part
from nonloc_paper.map.table import MapTable
from nonloc_paper.map.watcher import Watcher
from nonloc_paper.networks.build import build
from nonloc_paper.runs import Run
from nonloc_paper.training.fit import fit

DATA = small_data()
UNTIMED = {"seconds": 0}


def go(part, folder, **keywords):
    table = MapTable(folder / "one_epoch.jsonl")
    progress = run_part(part, table, folder / "work", data={"cifar10": DATA}, device="cpu", **keywords)
    return progress, table


def folders(path):
    return sorted(each.parent.name for each in path.rglob("recipe.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The row of a calm run that nothing interrupts."""
    (row,) = go(small_part(CALM), tmp_path_factory.mktemp("whole"), side_by_side=8)[1].rows
    return row


def test_a_row_is_what_the_run_measured_and_the_run_is_gone(tmp_path):
    part = small_part(CALM)
    progress, table = go(part, tmp_path)
    assert (progress.total, progress.new, progress.left, progress.reason) == (1, 1, (), "")
    (row,) = table.rows
    alone = fit(CALM.recipe(part.base, 0), tmp_path / "alone", data=DATA, device="cpu", progress=False)
    assert row["ending"] == "converged"
    assert row["step"] is None
    assert row["error"] == alone.metrics["error"]
    assert row["epochs"][0]["train_loss"] == alone.metrics["train_loss"]
    assert row["before"] == []
    (stage,) = row["after"]["stages"]
    assert row["after"]["step"] == 5, "every step up to the tenth is looked at"
    assert 0.5 < stage["amplification"] < 2
    assert 0 < stage["logit_spread"] < 1, "the logits begin with deviation 0.01 of the maps"
    assert stage["logit_spread"] == max(stage["logit_spreads"])
    assert folders(tmp_path / "work") == []


def test_a_diverged_run_says_where_and_what_came_before(tmp_path):
    row = go(small_part(WILD), tmp_path)[1].rows[0]
    assert row["ending"] == "diverged"
    assert row["error"] is None
    assert [each["step"] for each in row["before"]] == list(range(1, row["step"] + 1))
    assert row["last_loss"] is not None
    json.dumps(row, allow_nan=False)


def test_what_came_before_is_seen_every_ten_steps(tmp_path):
    """Calm for an epoch of 115 steps, then a rate that no network bears."""
    changes = {"batch_size": 2, "epochs": 2, "schedule": "step", "milestones": (1,), "gamma": 1e12}
    table = MapTable(tmp_path / "one_epoch.jsonl")
    data = small_data(train=230)
    run_part(small_part(CALM, **changes), table, tmp_path / "work", data={"cifar10": data}, device="cpu")
    (row,) = table.rows
    assert row["ending"] == "diverged"
    assert 115 <= row["step"] < 125
    looked = row["before"]
    assert [each["step"] for each in looked] == [
        step for step in range(row["step"] - 100, row["step"] + 1) if step % 10 == 0
    ]
    assert all(each["loss"] < 10 for each in looked[:9])
    stage = looked[0]["stages"][0]
    assert 0.5 < stage["amplification"] < 2
    assert 0 < stage["logit_spread"] < 10
    assert 0.5 < stage["growth"] < 2
    (weight,) = stage["weights"]
    assert 0 < abs(weight["eigenvalue"]) <= weight["norm"] < 1
    assert len(row["epochs"]) == 1


def test_a_look_that_fails_does_not_lose_the_row(tmp_path, monkeypatch):
    def fail(*anything):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Watcher, "before", fail)
    row = go(small_part(WILD), tmp_path)[1].rows[0]
    assert (row["ending"], row["before"]) == ("diverged", [])
    assert row["before_error"] == "RuntimeError: out of memory"


def test_nothing_is_done_twice_and_the_rest_is_done_later(tmp_path):
    part = small_part(CALM, STABLE)
    assert go(small_part(CALM), tmp_path)[0].new == 1
    begun = []
    progress, table = go(part, tmp_path, tell=lambda index, recipe: begun.append((index, recipe.network)))
    assert begun == [(1, "preresnet20/diffusive-2@2")]
    assert (progress.new, [row["form"] for row in table.rows]) == (1, ["diffusive", "stable"])
    assert go(part, tmp_path)[0].new == 0


def test_a_spent_budget_leaves_folders_that_the_next_call_goes_on_with(tmp_path):
    part = small_part(CALM, STABLE)
    progress, table = go(part, tmp_path, budget=0.0)
    assert [cell for cell, _ in progress.left] == [CALM, STABLE]
    assert "budget" in progress.reason
    assert table.rows == []
    assert go(part, tmp_path)[0].left == ()
    assert folders(tmp_path / "work") == []


def test_a_signal_saves_what_is_under_way_and_the_row_is_the_same_in_the_end(whole, tmp_path):
    part = small_part(CALM)
    stop = {"tell": lambda index, recipe: os.kill(os.getpid(), signal.SIGTERM)}
    progress, table = go(part, tmp_path, **stop)
    assert (progress.signal, len(progress.left), table.rows) == (signal.SIGTERM, 1, [])
    assert len(folders(tmp_path / "work")) == 1
    row = go(part, tmp_path)[1].rows[0]
    assert row | UNTIMED == whole | UNTIMED


def finished_run(part, folder):
    """A run that ended, and whose line was not written before the process was killed."""
    recipe = CALM.recipe(part.base, 0)
    fit(recipe, folder / "work" / "one_epoch" / recipe.name, data=DATA, device="cpu", progress=False)


def test_a_run_that_ended_without_its_line_is_done_again(whole, tmp_path):
    part = small_part(CALM)
    finished_run(part, tmp_path)
    row = go(part, tmp_path)[1].rows[0]
    assert row | UNTIMED == whole | UNTIMED


def test_a_run_whose_last_steps_were_not_watched_is_done_again_in_the_same_call(whole, tmp_path, monkeypatch):
    part = small_part(CALM)
    honest, calls = Watcher.__call__, []

    def blind(self, session):
        calls.append(session.step)
        if len(calls) > 2 * session.steps_per_epoch:
            honest(self, session)

    monkeypatch.setattr(Watcher, "__call__", blind)
    begun = []
    progress, table = go(part, tmp_path, tell=lambda index, recipe: begun.append(index))
    assert (progress.new, progress.left, begun) == (1, (), [0, 0, 0])
    assert table.rows[0] | UNTIMED == whole | UNTIMED


def test_other_settings_under_the_same_name_are_refused(tmp_path):
    go(small_part(CALM), tmp_path)
    with pytest.raises(ValueError, match="by another recipe"):
        go(small_part(CALM, batch_size=4), tmp_path)


def test_a_failing_run_does_not_keep_the_others_from_being_run(tmp_path):
    bad = type(CALM)(0.01, "zero, batch norm", "stable", 1)
    with pytest.raises(ValueError, match='batch_norm=True would break the bound of weight="stable"'):
        go(small_part(bad, CALM), tmp_path)
    assert [row["cell"] for row in MapTable(tmp_path / "one_epoch.jsonl").rows] == [CALM.name]


def test_a_run_that_goes_on_just_before_its_end_is_looked_at_too(tmp_path):
    recipe = CALM.recipe(small_part(CALM).base, 0)
    run = Run(tmp_path)
    session = SimpleNamespace(
        run=run,
        step=13,
        step_in_epoch=1,
        losses=SimpleNamespace(at=lambda step: torch.tensor(1.0)),
        model=build(recipe.network, **recipe.stage.to_dict()),
    )
    watcher = Watcher()
    watcher(session)
    assert watcher.after(run, recipe, DATA, torch.device("cpu"))["step"] == 13
