"""fit_many: runs that take turns end as they would alone, whatever happens to the others."""

import gc
import os
import signal
import weakref

import pytest
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc.outcomes import LockedRunError
from nonloc_paper.runs import Run
from nonloc_paper.training import stopping
from nonloc_paper.training.loop import fit
from nonloc_paper.training.scheduler import fit_many
from nonloc_paper.training.session import Session

RECIPES = [
    tiny_recipe(spectrum_epochs=(1,)),
    tiny_recipe(seed=1, epochs=2, optimizer="adam", learning_rate=0.01),
    tiny_recipe(seed=2, batch_size=20, network="preresnet8-basic/baseline"),
    tiny_recipe(seed=3, epochs=1),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each recipe's run, made by `fit`."""
    runs = [Run(tmp_path_factory.mktemp("alone") / str(number)) for number in range(len(RECIPES))]
    for recipe, run in zip(RECIPES, runs, strict=True):
        fit(recipe, run, data=tiny_data(), device="cpu", progress=False)
    return runs


def go(folder, recipes=RECIPES, side_by_side=2, **options):
    """(the runs, how they ended)"""
    runs = [Run(folder / str(number)) for number in range(len(recipes))]
    data = {"tiny": tiny_data()}
    options = {"data": data, "device": "cpu", "progress": False} | options
    return runs, fit_many(recipes, runs, side_by_side=side_by_side, **options)


def outcomes(endings):
    return [ending.outcome and ending.outcome.ending for ending in endings.all]


def order_of_steps(monkeypatch):
    """[the seed of the recipe of each step], filled while runs are under way."""
    seeds, take_step = [], Session.take_step

    def take_step_and_note(self):
        seeds.append(self.recipe.seed)
        take_step(self)

    monkeypatch.setattr(Session, "take_step", take_step_and_note)
    return seeds


def hit(monkeypatch, seed, step, act):
    """Do something after step `step` (counted from 1) of the run with `seed`."""
    take_step = Session.take_step

    def take_step_and_be_hit(self):
        take_step(self)
        if (self.recipe.seed, self.step) == (seed, step):
            act(self)

    monkeypatch.setattr(Session, "take_step", take_step_and_be_hit)


def fail(session):
    raise OSError("no space left")


def send_sigterm(session):
    os.kill(os.getpid(), signal.SIGTERM)


def assert_as_alone(runs, alone):
    for run, expected in zip(runs, alone, strict=True):
        assert run.read_result()["weights_sha256"] == expected.read_result()["weights_sha256"]
        assert timeless_metrics(run) == timeless_metrics(expected)
        assert run.read_spectra() == expected.read_spectra()


@pytest.mark.parametrize("side_by_side", [1, 2, 3, 4, 9])
def test_every_run_is_what_it_is_alone_to_the_bit(tmp_path, alone, side_by_side):
    runs, endings = go(tmp_path, side_by_side=side_by_side)
    assert outcomes(endings) == ["finished"] * 4
    assert (endings.reason, endings.signal) == ("", None)
    assert_as_alone(runs, alone)


def test_they_take_turns_and_the_next_begins_when_one_ends(tmp_path, monkeypatch):
    seeds = order_of_steps(monkeypatch)
    recipes = [tiny_recipe(seed=0, epochs=1), tiny_recipe(seed=1), tiny_recipe(seed=2, epochs=1)]
    go(tmp_path, recipes)
    assert seeds[:10] == [0, 1] * 5
    assert sorted(seeds[10:20]) == [1] * 5 + [2] * 5
    assert seeds[20:] == [1] * 5


def test_one_at_a_time_is_the_default_on_the_cpu(tmp_path, monkeypatch):
    seeds = order_of_steps(monkeypatch)
    go(tmp_path, [tiny_recipe(seed=seed, epochs=1) for seed in (0, 1)], side_by_side=None)
    assert seeds == [0] * 5 + [1] * 5


def test_a_failing_run_hurts_nobody(tmp_path, alone, monkeypatch):
    hit(monkeypatch, 1, 7, fail)
    runs, endings = go(tmp_path)
    assert outcomes(endings) == ["finished", None, "finished", "finished"]
    assert "no space left" in str(endings.all[1].error)
    assert endings.reason == ""
    assert_as_alone([runs[0], *runs[2:]], [alone[0], *alone[2:]])
    monkeypatch.undo()
    _, endings = go(tmp_path)
    assert outcomes(endings) == ["finished"] * 4
    assert_as_alone(runs, alone)


def test_a_failed_run_frees_its_memory(tmp_path, monkeypatch):
    seen = []
    hit(monkeypatch, 1, 7, lambda session: (seen.append(weakref.ref(session)), fail(session)))
    _, endings = go(tmp_path)
    assert endings.all[1].error is not None
    gc.collect()
    assert seen[0]() is None


def test_a_recipe_that_cannot_start_hurts_nobody(tmp_path, alone):
    recipes = [RECIPES[0], RECIPES[1].with_(train_images=41), *RECIPES[2:]]
    runs, endings = go(tmp_path, recipes)
    assert outcomes(endings) == ["finished", None, "finished", "finished"]
    assert "train_images=41" in str(endings.all[1].error)
    assert_as_alone([runs[0], *runs[2:]], [alone[0], *alone[2:]])


def test_a_diverging_run_hurts_nobody(tmp_path, alone):
    recipes = [RECIPES[0], tiny_recipe(learning_rate=1e30, momentum=0.0), *RECIPES[2:]]
    runs, endings = go(tmp_path, recipes)
    assert outcomes(endings) == ["finished", "diverged", "finished", "finished"]
    assert_as_alone([runs[0], *runs[2:]], [alone[0], *alone[2:]])


def test_a_held_run_is_named(tmp_path):
    with Run(tmp_path / "1").lock():
        _, endings = go(tmp_path)
    assert outcomes(endings) == ["finished", None, "finished", "finished"]
    assert isinstance(endings.all[1].error, LockedRunError)


def test_a_signal_saves_all_that_are_under_way_and_begins_no_other(tmp_path, alone, monkeypatch):
    hit(monkeypatch, 1, 7, send_sigterm)
    runs, endings = go(tmp_path)
    assert outcomes(endings) == ["interrupted", "interrupted", None, None]
    assert endings.signal == signal.SIGTERM
    assert "SIGTERM" in endings.reason
    assert [ending.outcome.step for ending in endings.all[:2]] == [7, 7], "no step after the one under way"
    assert not runs[2].exists
    monkeypatch.undo()
    go(tmp_path)
    assert_as_alone(runs, alone)


def test_a_signal_that_comes_too_late_is_told_but_cuts_nothing_short(tmp_path, monkeypatch):
    finish_epoch = Session.finish_epoch

    def finish_epoch_and_be_hit(self, measured):
        send_sigterm(self)
        return finish_epoch(self, measured)

    monkeypatch.setattr(Session, "finish_epoch", finish_epoch_and_be_hit)
    _, endings = go(tmp_path, RECIPES[3:])
    assert outcomes(endings) == ["finished"]
    assert (endings.reason, endings.signal) == ("", signal.SIGTERM)


def test_a_spent_budget_saves_all_that_are_under_way(tmp_path, alone, monkeypatch):
    hit(monkeypatch, 1, 3, lambda session: spend(monkeypatch))
    runs, endings = go(tmp_path, stop_after=1000.0)
    assert outcomes(endings) == ["interrupted", "interrupted", None, None]
    assert "budget" in endings.reason
    assert endings.signal is None
    monkeypatch.undo()
    go(tmp_path)
    assert_as_alone(runs, alone)


def spend(monkeypatch):
    now = stopping.time.monotonic
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now() + 2000)


def saved_steps(run):
    return max((int(path.stem) for path in run.checkpoints_path.glob("*.json")), default=0)


def raise_at(call):
    """A callback that fails when it is called for the `call`th time, counted from 1."""
    calls = []

    def callback(*given):
        calls.append(given)
        if len(calls) == call:
            raise ZeroDivisionError("of the caller")
        return given[0][0] if isinstance(given[0], tuple) else None

    return callback


@pytest.mark.parametrize("which", ["choose", "begun", "ended"])
def test_an_error_of_the_caller_saves_all_that_are_under_way(tmp_path, alone, monkeypatch, which):
    """The second run, of 10 steps, ends while the first has done 10 or 11 of its 15."""
    runs = [Run(tmp_path / str(number)) for number in range(4)]
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, checkpoint_every=100, **{which: raise_at(1 if which == "ended" else 3)})
    assert not runs[0].is_finished
    assert saved_steps(runs[0]) in (10, 11)
    go(tmp_path)
    assert_as_alone(runs, alone)


def test_an_error_of_the_caller_at_the_very_beginning_is_just_that(tmp_path):
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, begun=raise_at(2))
    assert not any((tmp_path / str(number)).exists() for number in range(4))


@pytest.mark.filterwarnings("error")
def test_what_has_diverged_meanwhile_is_not_saved(tmp_path, monkeypatch):
    hit(monkeypatch, 0, 11, lambda session: session.loss_of(session.step_in_epoch - 1).fill_(float("inf")))
    runs = [Run(tmp_path / str(number)) for number in range(4)]
    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path, checkpoint_every=100, ended=raise_at(1))
    assert saved_steps(runs[0]) == 0


def test_what_cannot_be_saved_is_named_and_the_others_are_saved(tmp_path, monkeypatch):
    save = Session.save

    def save_but_one(self):
        if self.recipe.seed == 0:
            fail(self)
        save(self)

    monkeypatch.setattr(Session, "save", save_but_one)
    runs = [Run(tmp_path / str(number)) for number in range(4)]
    with (
        pytest.warns(RuntimeWarning, match=rf"{runs[0].path} could not be saved \(no space left\)"),
        pytest.raises(ZeroDivisionError, match="of the caller"),
    ):
        go(tmp_path, side_by_side=3, checkpoint_every=100, ended=raise_at(1))
    assert saved_steps(runs[0]) == 0
    assert saved_steps(runs[2]) > 0


def test_without_a_budget_left_nothing_is_begun(tmp_path):
    runs, endings = go(tmp_path, stop_after=0.0)
    assert outcomes(endings) == [None] * 4
    assert not any(run.exists for run in runs)


def test_it_says_what_begins_and_what_has_ended(tmp_path):
    told = []
    go(
        tmp_path,
        RECIPES[2:],
        side_by_side=1,
        begun=lambda number: told.append(("begun", number)),
        ended=lambda number, ending: told.append((ending.outcome.ending, number)),
    )
    assert told == [("begun", 0), ("finished", 0), ("begun", 1), ("finished", 1)]


def test_the_next_one_can_be_chosen(tmp_path):
    begun, asked = [], []

    def choose(left, seconds):
        asked.append((left, seconds))
        return left[-1]

    go(tmp_path, RECIPES[1:], side_by_side=1, choose=choose, begun=begun.append)
    assert begun == [2, 1, 0]
    assert asked == [((0, 1, 2), None), ((0, 1), None), ((0,), None)]


def test_finished_runs_are_not_touched(tmp_path):
    runs, _ = go(tmp_path)
    before = [run.result_path.stat().st_mtime_ns for run in runs]
    _, endings = go(tmp_path, data=None)
    assert outcomes(endings) == ["finished"] * 4
    assert [run.result_path.stat().st_mtime_ns for run in runs] == before


def test_as_many_folders_as_recipes():
    with pytest.raises(ValueError, match="recipes and runs must be as many, got 4 and 1"):
        fit_many(RECIPES, ["somewhere"], device="cpu")


@pytest.mark.parametrize("side_by_side", [0, 1.5, True])
def test_a_wrong_number_is_named(tmp_path, side_by_side):
    with pytest.raises(ValueError, match="side_by_side must be a whole number"):
        go(tmp_path, side_by_side=side_by_side)


def test_nothing_to_do_is_done():
    assert fit_many([], [], device="cpu").all == ()


def test_a_watch_sees_every_step_of_every_run_and_changes_nothing(tmp_path):
    seen = {}

    def watch(session):
        seen.setdefault(session.run.name, []).append(
            (session.step, float(session.loss_of(session.step_in_epoch - 1)))
        )

    recipes = [tiny_recipe(seed=seed) for seed in range(2)]
    for folder, keywords in (("watched", {"watch": watch}), ("alone", {})):
        runs = [tmp_path / folder / str(seed) for seed in range(2)]
        fit_many(
            recipes,
            runs,
            side_by_side=2,
            data={"tiny": tiny_data()},
            device="cpu",
            progress=False,
            **keywords,
        )
    for name in ("0", "1"):
        assert [step for step, _ in seen[name]] == list(range(1, 16))
        watched, alone = (Run(tmp_path / folder / name) for folder in ("watched", "alone"))
        assert watched.read_result()["weights_sha256"] == alone.read_result()["weights_sha256"]
        losses = [loss for _, loss in seen[name][:5]]
        sizes = [9, 9, 9, 9, 4]
        mean = sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / 40
        assert watched.read_metrics()[0]["train_loss"] == pytest.approx(mean, rel=1e-6)
