"""fit_many: runs that take turns end as they would alone, whatever happens to the others."""

import gc
import signal
import weakref
from contextlib import nullcontext

import pytest
import torch
from tiny import (
    after_step,
    assert_same_run,
    before_method,
    outcomes,
    saved_steps,
    send_sigterm,
    tiny_data,
    tiny_recipe,
    train_each,
    train_together,
)

from nonloc_paper.runs import Run
from nonloc_paper.training import scheduler, stopping
from nonloc_paper.training.scheduler import SharedData, fit_many
from nonloc_paper.training.session import Session

CPU = torch.device("cpu")
RECIPES = [
    tiny_recipe(spectrum_epochs=(1,)),
    tiny_recipe(seed=1, epochs=2, optimizer="adam", learning_rate=0.01),
    tiny_recipe(seed=2, batch_size=20, network="preresnet8-basic/baseline"),
    tiny_recipe(seed=3, epochs=1),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of each recipe, made by `fit`."""
    return train_each(RECIPES, tmp_path_factory.mktemp("alone"))


def go(folder, recipes=RECIPES, side_by_side=2, **options):
    return train_together(recipes, folder, side_by_side, **options)


def assert_as_alone(runs, alone):
    for run, expected in zip(runs, alone, strict=True):
        assert_same_run(run, expected)


def fail(session):
    raise OSError("no space left")


def test_one_data_set_without_its_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="data must be a dict of data sets by name; give data={'tiny"):
        go(tmp_path, data=tiny_data())


@pytest.mark.parametrize("side_by_side", [1, 3, 9])
def test_every_run_is_what_it_is_alone_to_the_bit(tmp_path, alone, side_by_side):
    runs, endings = go(tmp_path, side_by_side=side_by_side)
    assert outcomes(endings) == ["finished"] * 4
    assert (endings.reason, endings.signal) == ("", None)
    assert_as_alone(runs, alone)
    before = [run.result_path.stat().st_mtime_ns for run in runs]
    _, endings = go(tmp_path, data=None)
    assert outcomes(endings) == ["finished"] * 4
    assert [run.result_path.stat().st_mtime_ns for run in runs] == before, "finished runs are not touched"


@pytest.mark.parametrize(
    ("side_by_side", "order"), [(None, [0] * 5 + [1] * 5 + [2] * 10), (2, [0, 1] * 5 + [2] * 10)]
)
def test_runs_take_turns_and_the_next_begins_when_one_ends(tmp_path, monkeypatch, side_by_side, order):
    """One at a time is the default on the CPU."""
    seeds = []
    before_method(monkeypatch, Session, "take_step", lambda session: seeds.append(session.recipe.seed))
    recipes = [tiny_recipe(seed=seed, epochs=1 + seed // 2) for seed in (0, 1, 2)]
    go(tmp_path, recipes, side_by_side)
    assert seeds == order


@pytest.mark.parametrize(
    ("how", "changes", "outcome", "message"),
    [
        ("fails", {}, None, "no space left"),
        ("cannot start", {"train_images": 41}, None, "train_images=41"),
        ("diverges", {"optimizer": "sgd", "learning_rate": 1e30, "momentum": 0.0}, "diverged", "None"),
        ("is locked", {}, None, "is in use"),
    ],
)
def test_a_run_that_ends_badly_does_not_affect_the_others(
    tmp_path, alone, monkeypatch, how, changes, outcome, message
):
    recipes = [RECIPES[0], RECIPES[1].with_(**changes), *RECIPES[2:]]
    if how == "fails":
        after_step(monkeypatch, 7, fail, seed=1)
    with Run(tmp_path / "1").lock() if how == "is locked" else nullcontext():
        runs, endings = go(tmp_path, recipes)
    assert outcomes(endings) == ["finished", outcome, "finished", "finished"]
    assert endings.reason == ""
    assert message in str(endings.all[1].error)
    assert_as_alone([runs[0], *runs[2:]], [alone[0], *alone[2:]])
    if how == "fails":
        monkeypatch.undo()
        assert outcomes(go(tmp_path)[1]) == ["finished"] * 4
        assert_as_alone(runs, alone)


def test_a_failed_run_frees_its_memory(tmp_path, monkeypatch):
    seen = []
    after_step(monkeypatch, 2, lambda session: (seen.append(weakref.ref(session)), fail(session)), seed=1)
    _, endings = go(tmp_path, RECIPES[1:3])
    assert endings.all[0].error is not None
    gc.collect()
    assert seen[0]() is None


@pytest.mark.parametrize("reason", ["SIGTERM", "budget"])
def test_a_reason_to_stop_saves_all_runs_under_way_and_begins_no_other(tmp_path, alone, monkeypatch, reason):
    def spend(session):
        now = stopping.time.monotonic
        monkeypatch.setattr(stopping.time, "monotonic", lambda: now() + 2000)

    after_step(monkeypatch, 7, send_sigterm if reason == "SIGTERM" else spend, seed=1)
    runs, endings = go(tmp_path, stop_after=1000.0)
    assert outcomes(endings) == ["interrupted", "interrupted", None, None]
    assert endings.signal == (signal.SIGTERM if reason == "SIGTERM" else None)
    assert reason in endings.reason
    assert [ending.outcome.step for ending in endings.all[:2]] == [7, 7], "no step after the one under way"
    assert not runs[2].exists
    monkeypatch.undo()
    go(tmp_path)
    assert_as_alone(runs, alone)


def test_a_late_signal_is_reported_but_cuts_nothing_short(tmp_path, monkeypatch):
    before_method(monkeypatch, Session, "finish_epoch", lambda session, _: send_sigterm(session))
    _, endings = go(tmp_path, RECIPES[3:])
    assert outcomes(endings) == ["finished"]
    assert (endings.reason, endings.signal) == ("", signal.SIGTERM)


def test_without_a_budget_nothing_is_begun(tmp_path):
    runs, endings = go(tmp_path, stop_after=0.0)
    assert outcomes(endings) == [None] * 4
    assert not any(run.exists for run in runs)


def raise_at(call):
    """A callback that fails when it is called for the `call`th time, counted from 1."""
    calls = []

    def callback(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise ZeroDivisionError("of the caller")
        return arguments[0][0] if isinstance(arguments[0], tuple) else None

    return callback


@pytest.mark.parametrize("which", ["choose", "begun", "ended"])
def test_an_error_of_the_caller_saves_all_runs_under_way(tmp_path, alone, which):
    """The second run, of 10 steps, ends while the first has done 10 or 11 of its 15."""
    run = Run(tmp_path / "0")
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, checkpoint_every=100, **{which: raise_at(1 if which == "ended" else 3)})
    assert not run.is_finished
    assert saved_steps(run) in ([10], [11])
    go(tmp_path, RECIPES[:2])
    assert_as_alone([run], alone[:1])


def test_an_error_of_the_caller_at_the_beginning_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, begun=raise_at(2))
    assert not any((tmp_path / str(number)).exists() for number in range(4))


@pytest.mark.filterwarnings("error")
def test_a_run_that_has_diverged_meanwhile_is_not_saved(tmp_path, monkeypatch):
    def set_bad_loss(session):
        session.losses.at(session.step_in_epoch - 1).fill_(float("inf"))

    after_step(monkeypatch, 11, set_bad_loss, seed=0)
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, RECIPES[:2], checkpoint_every=100, ended=raise_at(1))
    assert saved_steps(Run(tmp_path / "0")) == []


def test_a_run_that_cannot_be_saved_is_named_and_the_others_are_saved(tmp_path, monkeypatch):
    before_method(monkeypatch, Session, "save", lambda session: session.recipe.seed or fail(session))
    runs = [Run(tmp_path / str(number)) for number in range(3)]
    with (
        pytest.warns(RuntimeWarning, match=rf"{runs[0].path} could not be saved \(no space left\)"),
        pytest.raises(ZeroDivisionError, match="of the caller"),
    ):
        go(tmp_path, RECIPES[:3], side_by_side=3, checkpoint_every=100, ended=raise_at(1))
    assert saved_steps(runs[0]) == []
    assert saved_steps(runs[2]) != []


def test_the_next_run_can_be_chosen_and_callers_hear_of_each(tmp_path):
    heard, asked = [], []

    def choose(left, seconds):
        asked.append((left, seconds))
        return left[-1]

    go(
        tmp_path,
        RECIPES[2:],
        side_by_side=1,
        choose=choose,
        begun=lambda number: heard.append(("begun", number)),
        ended=lambda number, ending: heard.append((ending.outcome.ending, number)),
    )
    assert heard == [("begun", 1), ("finished", 1), ("begun", 0), ("finished", 0)]
    assert asked == [((0, 1), None), ((0,), None)]


def test_wrong_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="recipes and runs must be as many, got 4 and 1"):
        fit_many(RECIPES, ["somewhere"], device="cpu")
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="side_by_side"):
            go(tmp_path, side_by_side=wrong)
    assert fit_many([], [], device="cpu").all == ()


def test_a_watch_sees_every_step_of_every_run_and_changes_nothing(tmp_path, alone):
    seen = {}

    def watch(session):
        loss = float(session.losses.at(session.step_in_epoch - 1))
        seen.setdefault(session.run.name, []).append((session.step, loss))

    runs, _ = go(tmp_path, RECIPES[:2], watch=watch)
    assert_as_alone(runs, alone[:2])
    for run, steps in zip(runs, (15, 10), strict=True):
        assert [step for step, _ in seen[run.name]] == list(range(1, steps + 1))
        losses = [loss for _, loss in seen[run.name][:5]]
        mean = sum(size * loss for size, loss in zip([9, 9, 9, 9, 4], losses, strict=True)) / 40
        assert run.read_metrics()[0]["train_loss"] == pytest.approx(mean, rel=1e-6)


def test_shared_data_are_loaded_once_and_only_when_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(scheduler, "load", lambda *arguments: calls.append(arguments) or tiny_data())
    shared = SharedData(CPU, data_dir="somewhere")
    assert shared.loaded("tiny") is None
    assert calls == []
    assert shared.load("tiny") is shared.load("tiny") is shared.loaded("tiny")
    assert calls == [("tiny", "somewhere")]


def test_shared_data_are_not_copied_on_the_same_device_and_keep_their_name():
    data = tiny_data()
    same = SharedData(CPU, {"tiny": data}).load("tiny")
    assert same.train.images.data_ptr() == data.train.images.data_ptr()
    with pytest.raises(ValueError, match="data\\['cifar10'\\] is 'tiny'"):
        SharedData(CPU, {"cifar10": data}).load("cifar10")
