"""fit: endings, interruptions, and that a resumed run is the run that was never interrupted."""

import json
import math
import os
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch
from tiny import (
    after_step,
    assert_same_run,
    before_method,
    make_older,
    saved_steps,
    send_sigterm,
    spoil,
    timeless_metrics,
    tiny_data,
    tiny_recipe,
    train,
)

from nonloc.outcomes import CorruptDataError, DivergedError
from nonloc_paper.runs import Run
from nonloc_paper.training import machine
from nonloc_paper.training import session as session_module
from nonloc_paper.training.fit import SECONDS_UNSAVED, Options
from nonloc_paper.training.observe import observe
from nonloc_paper.training.progress import Progress
from nonloc_paper.training.session import Losses, Session
from nonloc_paper.training.tasks import Classification
from nonloc_paper.training.trained import trained_network

RECIPE = tiny_recipe(spectrum_epochs=(1,))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny run, never interrupted."""
    run = Run(tmp_path_factory.mktemp("whole") / "run")
    train(RECIPE, run)
    return run


def interrupt(run, step, recipe=RECIPE):
    """Train until SIGTERM comes during step `step`."""
    with pytest.MonkeyPatch.context() as patched:
        after_step(patched, step, send_sigterm)
        outcome = train(recipe, run)
    assert (outcome.ending, outcome.step, outcome.metrics["signal"]) == ("interrupted", step, signal.SIGTERM)
    assert "SIGTERM" in outcome.message
    assert not run.is_finished


def files_of(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_finished_run_records_its_epochs_and_what_it_is(whole):
    lines, result = whole.read_metrics(), whole.read_result()
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 5), (2, 10), (3, 15)]
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.05, 0.05, 0.005])
    assert list(lines[0]) == ["epoch", "step", "train_loss", "test_loss", "error", "learning_rate", "seconds"]
    assert [line["epoch"] for line in whole.read_spectra()] == [0, 1, 3]
    assert result["outcome"]["ending"] == "converged"
    assert (result["outcome"]["epoch"], result["outcome"]["step"]) == (3, 15)
    assert result["metrics"] == lines[-1]
    assert result["parameters"] > 0
    assert result["seconds"] >= result["metrics"]["seconds"] > 0
    assert set(result["machine"]) == {"cpu", "cores", "threads", "device", "platform"}
    assert result["data_sha256"] == tiny_data().sha256
    assert result["versions"]["torch"] == torch.__version__
    assert "earlier" not in result, "it ran on one machine"


def test_a_finished_run_is_not_touched_again(whole, monkeypatch):
    before = files_of(whole)
    monkeypatch.setattr(Session, "__init__", None)
    outcome = train(RECIPE, whole)
    assert outcome.ending == "finished"
    assert outcome.metrics == whole.read_metrics()[-1]
    assert files_of(whole) == before


def test_a_run_neither_depends_on_the_global_generator_nor_disturbs_it(whole, run):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(RECIPE, run)
    assert_same_run(run, whole)
    assert torch.rand(2).equal(expected)


def test_another_seed_gives_another_run(whole, run):
    train(RECIPE.with_(seed=1), run)
    assert run.read_result()["weights_sha256"] != whole.read_result()["weights_sha256"]


@pytest.mark.parametrize("step", [1, 7, 10, 15])
def test_a_run_interrupted_after_any_step_ends_identically(whole, run, step):
    interrupt(run, step)
    assert train(RECIPE, run).ending == "finished"
    assert_same_run(run, whole)


SHORT = {"steps_per_epoch": 2, "test_images": 2}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "learning_rate": 0.01, "schedule": "onecycle"},
        {"network": "restorer8/diffusive-1@1", "learning_rate": 0.01, "nesterov": True},
        {"precision": "bfloat16", "channels_last": True, "batch_size": 2} | SHORT,
    ],
    ids=["adam", "restoration", "bfloat16"],
)
def test_other_recipes_resume_identically_too(tmp_path, run, changes):
    recipe = tiny_recipe(epochs=2, **changes)
    train(recipe, tmp_path / "whole")
    interrupt(run, 3, recipe)
    train(recipe, run)
    assert_same_run(run, Run(tmp_path / "whole"))


def test_a_spent_budget_interrupts_after_one_step_or_evaluation_each(whole, run):
    endings = [train(RECIPE, run, stop_after=0) for _ in range(7)]
    assert [(outcome.epoch, outcome.step) for outcome in endings] == [
        *[(0, step) for step in (1, 2, 3, 4, 5)],
        (1, 5),
        (1, 6),
    ]
    assert {outcome.ending for outcome in endings} == {"interrupted"}
    assert "budget" in endings[0].message
    train(RECIPE, run)
    assert_same_run(run, whole)


def test_every_epoch_is_told_once_over_interruptions_and_an_error_in_the_listener_loses_nothing(whole, run):
    heard = []

    def listen(metrics):
        heard.append(metrics)
        if len(heard) == 2:
            raise OSError("no connection")

    with pytest.raises(OSError, match="no connection"):
        train(RECIPE, run, on_epoch=listen)
    train(RECIPE, run, on_epoch=listen)
    assert heard == run.read_metrics()
    assert_same_run(run, whole)
    with pytest.raises(ValueError, match="on_epoch must be a function"):
        train(RECIPE, run, on_epoch="wandb")


def test_a_signal_that_comes_too_late_to_interrupt_is_passed_on(run, monkeypatch):
    before_method(monkeypatch, Session, "finish_epoch", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(epochs=1), run)
    assert run.read_result()["outcome"]["ending"] == "converged"


def test_an_interrupted_evaluation_is_done_again(whole, run, monkeypatch):
    before_method(monkeypatch, Classification, "measure", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    outcome = train(RECIPE, run)
    assert (outcome.step, outcome.metrics) == (5, {"signal": signal.SIGINT})
    assert run.read_metrics() == []
    monkeypatch.undo()
    train(RECIPE, run)
    assert_same_run(run, whole)


def test_a_damaged_newest_checkpoint_costs_only_time(whole, run):
    """It is removed when the run resumes; else the next save would keep it and remove the good one."""
    interrupt(run, 12)
    newest = run.checkpoints_path / "00000012.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="damaged"):
        interrupt(run, 13)
    assert saved_steps(run) == [10, 13]
    train(RECIPE, run)
    assert_same_run(run, whole)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("look", [trained_network, observe])
def test_a_finished_run_without_its_last_checkpoint_is_one_error_whose_advice_leads_to_the_same_end(
    whole, run, look, is_missing
):
    """No look at an earlier network, and no warning that announces one."""
    shutil.copytree(whole.path, run.path)
    before = files_of(run)
    for path in run.checkpoints_path.glob("00000015.*"):
        if is_missing:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptDataError, match=r"00000015, the last.*delete .*from step 10") as caught:
        look(run)
    assert f"delete {run.result_path} and train again" in str(caught.value)
    assert files_of(run).keys() <= before.keys()
    run.result_path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        train(RECIPE, run)
    assert_same_run(run, whole)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_run_whose_checkpoints_are_all_damaged_begins_again_by_the_advice_of_its_error_alone(
    whole, run, is_finished
):
    if is_finished:
        shutil.copytree(whole.path, run.path)
    else:
        interrupt(run, 12)
    for path in run.checkpoints_path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    before = files_of(run)
    with pytest.raises(CorruptDataError, match="bring the files back, or delete that folder") as caught:
        trained_network(run) if is_finished else train(RECIPE, run)
    assert f"that folder{f' and {run.result_path}' if is_finished else ''} to begin" in str(caught.value)
    assert files_of(run) == before
    shutil.rmtree(run.checkpoints_path)
    run.result_path.unlink(missing_ok=True)
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl describes a run.*no checkpoint"):
        train(RECIPE, run)
    assert_same_run(run, whole)


def assert_refused(run, message):
    before = files_of(run)
    with pytest.raises(CorruptDataError, match=message):
        train(RECIPE, run)
    assert files_of(run) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "spectra.jsonl"])
def test_a_run_that_lost_or_changed_its_records_does_not_go_on(run, name):
    interrupt(run, 12)
    path = run.path / name
    whole = path.read_bytes()
    first, second = whole.splitlines(keepends=True)
    for content in (None, first, second, first + first + second, whole.replace(b"0.", b"1.", 1)):
        path.unlink() if content is None else path.write_bytes(content)
        assert_refused(run, rf"{name} is damaged.*or delete .*checkpoints to begin")


def test_an_older_checkpoint_goes_on_unverified(whole, run):
    interrupt(run, 12)
    make_older(run, 12)
    with pytest.warns(RuntimeWarning, match="goes on unverified"):
        train(RECIPE, run)
    assert_same_run(run, whole)


def test_an_older_checkpoint_must_agree_with_the_epochs(run):
    interrupt(run, 12)
    make_older(run, 12)
    whole = run.metrics_path.read_bytes()
    first, second = whole.splitlines(keepends=True)
    for content in (b"", first, second, first + first + second):
        run.metrics_path.write_bytes(content)
        assert_refused(run, r"metrics\.jsonl does not have one line .* 2 epochs.*or delete")
    run.metrics_path.write_bytes(whole)
    path = run.checkpoints_path / "00000012.json"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 1'))
    assert_refused(run, "step 12 .* is damaged: it says 1 epochs and 2 steps")


def test_a_folder_of_checkpoints_that_cannot_be_read_is_not_taken_for_none(run, monkeypatch):
    interrupt(run, 12)
    iterdir = Path.iterdir

    def refuse(path):
        if path == run.checkpoints_path:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        with pytest.raises(CorruptDataError, match=r"checkpoints cannot be read \(Permission denied\)"):
            train(RECIPE, run)
    assert len(run.read_metrics()) == 2
    run.checkpoints_path.rename(run.path / "elsewhere")
    run.checkpoints_path.symlink_to("nowhere")
    assert_refused(run, "checkpoints cannot be read")


def test_records_without_a_checkpoint_stay_until_there_is_one(whole, run, monkeypatch):
    interrupt(run, 12)
    shutil.rmtree(run.checkpoints_path)
    before = {path.name: path.read_bytes() for path in run.record_paths}

    def crash(session):
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched:
            before_method(patched, Session, "save", crash)
            with pytest.raises(KeyboardInterrupt), pytest.warns(RuntimeWarning, match=r"in \*\.old"):
                train(RECIPE, run)
        assert {name: (run.path / f"{name}.old").read_bytes() for name in before} == before
    with pytest.warns(RuntimeWarning, match="beginning again"):
        train(RECIPE, run)
    assert_same_run(run, whole)
    assert not list(run.path.glob("*.old"))


def test_another_recipe_in_the_place_of_a_finished_runs_is_noticed(whole, run):
    shutil.copytree(whole.path, run.path)
    run.write_recipe(RECIPE.with_(seed=1).to_dict())
    assert_refused(run, r"recipe\.json is damaged.*result\.json was made with another")


def test_a_run_that_moved_tells_the_machines_of_its_earlier_parts(whole, run):
    here, spent = whole.read_result(), []
    for name, step in (("one GPU", 3), ("another GPU", 7), ("one GPU", 12)):
        with pytest.MonkeyPatch.context() as patched:
            of = machine.machine
            patched.setattr(
                machine, "machine", lambda device, of=of, name=name: of(device) | {"device": name}
            )
            interrupt(run, step)
        spent.append(json.loads((run.checkpoints_path / f"{step:08d}.json").read_text())["seconds"])
    train(RECIPE, run)
    assert_same_run(run, whole)
    result = run.read_result()
    assert (result["machine"], result["versions"]) == (here["machine"], here["versions"])
    another, one = result["earlier"]
    assert one == {
        "machine": here["machine"] | {"device": "one GPU"},
        "versions": here["versions"],
        "seconds": pytest.approx(spent[0] + spent[2] - spent[1], abs=1e-3),
    }
    assert another["machine"]["device"] == "another GPU"
    assert another["seconds"] == pytest.approx(spent[1] - spent[0], abs=1e-3)
    assert result["seconds"] > spent[2]
    seconds = [line["seconds"] for line in run.read_metrics()]
    assert seconds == sorted(seconds)
    assert seconds[2] > spent[2], "seconds are summed over resumptions"


def test_checkpoints_come_when_asked_for(tmp_path, monkeypatch):
    saved, save = [], session_module.save_checkpoint
    monkeypatch.setattr(
        session_module, "save_checkpoint", lambda *all: (saved.append(all[2].step), save(*all))
    )
    train(tiny_recipe(), tmp_path / "epochs", checkpoint_every=2)
    assert saved == [10, 15]
    saved.clear()
    train(tiny_recipe(epochs=2), tmp_path / "steps", checkpoint_steps=3)
    assert saved == [3, 5, 6, 9, 10]


@pytest.mark.parametrize(
    ("device", "every", "seconds", "saved"),
    [
        ("cpu", None, 0.0, [1, 2, 3, 4]),
        ("cuda", None, 0.4, []),
        ("cuda", None, SECONDS_UNSAVED, [1, 2, 3, 4]),
        ("cpu", 2, 100.0, [2, 4]),
        ("cuda", 2, 0.0, [2, 4]),
    ],
)
def test_by_default_cuda_saves_only_after_a_while(device, every, seconds, saved):
    options = Options(torch.device(device), checkpoint_every=every)
    assert [epoch for epoch in (1, 2, 3, 4) if options.saves_epoch(epoch, seconds)] == saved


DIVERGING = tiny_recipe(learning_rate=1e30, momentum=0.0)


def test_a_run_that_is_no_longer_finite_diverges_at_its_step_also_if_resumed(tmp_path, run):
    outcome = train(DIVERGING, run, throw=False)
    assert outcome.ending == "diverged"
    assert 1 <= outcome.step < 5
    assert outcome.epoch == 1
    assert run.read_result()["outcome"] == outcome.to_dict()
    assert run.read_result()["weights_sha256"] is None
    assert [line["epoch"] for line in run.read_spectra()] == [0]
    resumed = Run(tmp_path / "resumed")
    interrupt(resumed, 1, DIVERGING)
    for _ in range(2):
        with pytest.raises(DivergedError) as caught:
            train(DIVERGING, resumed)
        assert caught.value.outcome == outcome


def poison(monkeypatch, step):
    """Make the loss of the step after `step` steps NaN, as overflowing features would."""
    before_method(
        monkeypatch, Session, "take_step", lambda session: session.step == step and spoil(session, math.nan)
    )


def test_records_before_divergence_stay(whole, run, monkeypatch):
    poison(monkeypatch, 12)
    outcome = train(RECIPE, run, throw=False)
    assert (outcome.ending, outcome.epoch, outcome.step) == ("diverged", 3, 12)
    assert timeless_metrics(run) == timeless_metrics(whole)[:2]
    assert outcome.metrics == run.read_metrics()[-1]
    assert saved_steps(run) == [5, 10]


def test_a_bad_loss_is_named_even_if_the_device_ran_ahead(run, monkeypatch):
    """On a GPU the losses are read only now and then; the first bad step must be named all the same."""
    poison(monkeypatch, 6)
    read = Losses.read
    monkeypatch.setattr(Losses, "read", lambda self: read(self) if self._arrived == 5 else [0.0])
    outcome = train(tiny_recipe(), run, throw=False)
    assert (outcome.ending, outcome.step) == ("diverged", 6)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_weights_that_are_not_finite_are_never_saved(run, monkeypatch, value):
    after_step(monkeypatch, 15, lambda session: spoil(session, value))
    outcome = train(tiny_recipe(), run, throw=False)
    assert (outcome.ending, outcome.step) == ("diverged", 14)
    assert saved_steps(run) == [5, 10]
    assert run.read_metrics()[-1]["test_loss"] is None


def test_the_train_loss_weighs_images_alike(run, monkeypatch):
    """40 images in batches of 9: the last batch has 4, and counts as 4 images."""
    losses = iter([1.0, 2.0, 3.0, 4.0, 14.0])

    def fake_step(self):
        self.losses.at(self.step_in_epoch).fill_(next(losses))
        self.step_in_epoch += 1

    monkeypatch.setattr(Session, "take_step", fake_step)
    train(tiny_recipe(epochs=1), run)
    [line] = run.read_metrics()
    assert line["train_loss"] == (9 * (1 + 2 + 3 + 4) + 4 * 14) / 40


def test_a_recipe_that_fails_at_the_start_does_not_occupy_the_folder(run):
    network = "preresnet11/diffusive-1@1"
    for changes, name in (
        ({"train_images": 41}, "train_images=41"),
        ({"steps_per_epoch": 6}, "steps_per_epoch=6"),
        ({"network": network, "stage": {"normalize": "sinkhorn"}}, "sinkhorn"),
    ):
        with pytest.raises(ValueError, match=name):
            train(tiny_recipe(epochs=1, **changes), run)
    assert train(tiny_recipe(epochs=1, network=network), run).ending == "finished"
    assert run.read_recipe()["stage"]["normalize"] is None


def test_another_recipe_and_other_data_are_refused_and_named(whole, run):
    with pytest.raises(ValueError, match=r"another recipe: seed is 9, was 0"):
        train(RECIPE.with_(seed=9), whole)
    with pytest.raises(ValueError, match="data is 'tiny', but the recipe says data='cifar10'"):
        train(tiny_recipe(data="cifar10"), run)
    interrupt(run, 3)
    other = tiny_data()
    other.train.images[7, 0, 0, 0] ^= 1
    with pytest.raises(ValueError, match="was begun on other data called 'tiny'.*a new folder"):
        train(RECIPE, run, data=other)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint_every", 0),
        ("checkpoint_steps", 1.5),
        ("stop_after", -1),
        ("stop_after", math.nan),
        ("device", "foo"),
        ("device", "cuda"),
        ("captured", True),
    ],
)
def test_wrong_options_are_named(run, monkeypatch, option, value):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=option):
        train(tiny_recipe(), run, **{option: value})
    assert not run.path.exists()


def test_an_epoch_is_saved_before_it_is_shown(run, monkeypatch):
    def break_pipe(shown, metrics):
        raise BrokenPipeError

    monkeypatch.setattr(Progress, "epoch", break_pipe)
    with pytest.raises(BrokenPipeError):
        train(tiny_recipe(), run)
    assert saved_steps(run) == [5]
