"""fit: endings, interruptions, and that a resumed run is the run that was never interrupted."""

import json
import math
import os
import shutil
import signal
import threading

import pytest
import torch
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc.outcomes import CorruptDataError, DivergedError, LockedRunError
from nonloc_paper.runs import Run
from nonloc_paper.training import parts as parts_module
from nonloc_paper.training import session as session_module
from nonloc_paper.training import working as working_module
from nonloc_paper.training.loop import fit
from nonloc_paper.training.progress import Silence
from nonloc_paper.training.session import Session
from nonloc_paper.training.tasks import Classification


def train(recipe, path, **options):
    data = tiny_data(labels=recipe.task == "classification")
    return fit(recipe, path, data=data, device="cpu", progress=False, **options)


def signal_after_step(monkeypatch, step, number=signal.SIGTERM):
    """Send the signal during step `step` (counted from 1) of the next run."""
    take_step = Session.take_step

    def take_step_and_be_hit(self):
        take_step(self)
        if self.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Session, "take_step", take_step_and_be_hit)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny run, never interrupted."""
    run = Run(tmp_path_factory.mktemp("whole") / "run")
    train(tiny_recipe(spectrum_epochs=(1,)), run)
    return run


def saved_steps(run):
    return sorted(int(path.stem) for path in run.checkpoints_path.glob("*.json"))


def assert_same_run(run, whole):
    assert run.read_result()["weights_sha256"] == whole.read_result()["weights_sha256"]
    assert timeless_metrics(run) == timeless_metrics(whole)
    assert run.read_spectra() == whole.read_spectra()


def test_a_finished_run_has_one_line_an_epoch(whole):
    lines = whole.read_metrics()
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in lines] == [5, 10, 15]
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.05, 0.05, 0.005])
    assert list(lines[0]) == ["epoch", "step", "train_loss", "test_loss", "error", "learning_rate", "seconds"]


def test_a_finished_run_says_what_it_is(whole):
    result = whole.read_result()
    assert result["outcome"]["ending"] == "converged"
    assert (result["outcome"]["epoch"], result["outcome"]["step"]) == (3, 15)
    assert result["metrics"] == whole.read_metrics()[-1]
    assert result["parameters"] > 0
    assert result["seconds"] >= result["metrics"]["seconds"] > 0
    assert set(result["machine"]) == {"cpu", "cores", "threads", "device", "platform"}
    assert result["data_sha256"] == tiny_data().sha256
    assert result["versions"]["torch"] == torch.__version__
    assert "earlier" not in result, "it ran on one machine"


def test_spectra_are_recorded_before_at_the_chosen_epochs_and_at_the_end(whole):
    assert [line["epoch"] for line in whole.read_spectra()] == [0, 1, 3]
    [stage] = whole.read_spectra()[0]["stages"]
    assert len(stage["weights"]) == 1


def test_a_finished_run_is_not_touched_again(whole, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in whole.path.iterdir() if path.name != "lock"}
    monkeypatch.setattr(Session, "__init__", None)
    outcome = train(tiny_recipe(spectrum_epochs=(1,)), whole)
    assert outcome.ending == "finished"
    assert outcome.metrics == whole.read_metrics()[-1]
    assert {path: path.stat().st_mtime_ns for path in whole.path.iterdir() if path.name != "lock"} == before


def test_the_same_recipe_gives_the_same_run_whatever_the_global_generator(whole, tmp_path):
    torch.manual_seed(12345)
    train(tiny_recipe(spectrum_epochs=(1,)), tmp_path / "run")
    assert_same_run(Run(tmp_path / "run"), whole)


def test_the_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(tiny_recipe(epochs=1), tmp_path / "run")
    assert torch.rand(2).equal(expected)


def test_another_seed_gives_another_run(whole, tmp_path):
    train(tiny_recipe(seed=1, spectrum_epochs=(1,)), tmp_path / "run")
    assert Run(tmp_path / "run").read_result()["weights_sha256"] != whole.read_result()["weights_sha256"]


@pytest.mark.parametrize("step", [1, 7, 10, 14, 15])
def test_a_run_interrupted_after_any_step_ends_identically(whole, tmp_path, monkeypatch, step):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    signal_after_step(monkeypatch, step)
    outcome = train(recipe, run)
    assert (outcome.ending, outcome.step, outcome.metrics["signal"]) == ("interrupted", step, signal.SIGTERM)
    assert "SIGTERM" in outcome.message
    assert not run.is_finished
    monkeypatch.undo()
    assert train(recipe, run).ending == "finished"
    assert_same_run(run, whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "learning_rate": 0.01, "schedule": "onecycle"},
        {"network": "restorer8/diffusive-1@1", "learning_rate": 0.01, "nesterov": True},
        {"precision": "bfloat16", "channels_last": True, "steps_per_epoch": 4},
    ],
    ids=["adam", "restoration", "bfloat16"],
)
def test_other_recipes_resume_identically_too(tmp_path, monkeypatch, changes):
    recipe = tiny_recipe(epochs=2, **changes)
    train(recipe, tmp_path / "whole")
    signal_after_step(monkeypatch, 3)
    assert train(recipe, tmp_path / "run").ending == "interrupted"
    monkeypatch.undo()
    train(recipe, tmp_path / "run")
    assert_same_run(Run(tmp_path / "run"), Run(tmp_path / "whole"))


def test_a_spent_budget_interrupts_after_one_step_or_evaluation_each(whole, tmp_path):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    endings = [train(recipe, run, stop_after=0) for _ in range(7)]
    assert [(outcome.epoch, outcome.step) for outcome in endings] == [
        *[(0, step) for step in (1, 2, 3, 4, 5)],
        (1, 5),
        (1, 6),
    ]
    assert {outcome.ending for outcome in endings} == {"interrupted"}
    assert "budget" in endings[0].message
    train(recipe, run)
    assert_same_run(run, whole)


def test_a_signal_that_comes_too_late_to_interrupt_is_passed_on(tmp_path, monkeypatch):
    finish_epoch = Session.finish_epoch

    def finish_epoch_and_be_hit(self, measured):
        os.kill(os.getpid(), signal.SIGINT)
        return finish_epoch(self, measured)

    monkeypatch.setattr(Session, "finish_epoch", finish_epoch_and_be_hit)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(epochs=1), tmp_path / "run")
    assert Run(tmp_path / "run").read_result()["outcome"]["ending"] == "converged"


def test_seconds_are_summed_over_resumptions(tmp_path, monkeypatch):
    signal_after_step(monkeypatch, 7)
    train(tiny_recipe(), tmp_path / "run")
    monkeypatch.undo()
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "00000007.json").read_text())
    train(tiny_recipe(), tmp_path / "run")
    seconds = [line["seconds"] for line in Run(tmp_path / "run").read_metrics()]
    assert seconds == sorted(seconds)
    assert seconds[1] > manifest["seconds"]


def test_an_interrupted_evaluation_is_done_again(whole, tmp_path, monkeypatch):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    measure = Classification.measure

    def measure_and_be_hit(self, outputs, targets):
        os.kill(os.getpid(), signal.SIGINT)
        return measure(self, outputs, targets)

    monkeypatch.setattr(Classification, "measure", measure_and_be_hit)
    outcome = train(recipe, run)
    assert (outcome.step, outcome.metrics) == (5, {"signal": signal.SIGINT})
    assert run.read_metrics() == []
    monkeypatch.undo()
    train(recipe, run)
    assert_same_run(run, whole)


def test_metrics_after_the_checkpoint_are_measured_again(whole, tmp_path, monkeypatch):
    """A crash between writing the metrics of an epoch and saving it must not count the epoch twice."""
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    save = Session.save

    def crash_in_second_epoch(self):
        if self.epoch == 2:
            raise KeyboardInterrupt
        save(self)

    monkeypatch.setattr(Session, "save", crash_in_second_epoch)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run)
    assert [line["epoch"] for line in run.read_metrics()] == [1, 2]
    monkeypatch.undo()
    train(recipe, run)
    assert_same_run(run, whole)


def test_a_damaged_newest_checkpoint_costs_only_time(whole, tmp_path, monkeypatch):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    signal_after_step(monkeypatch, 12)
    train(recipe, run)
    monkeypatch.undo()
    newest = run.checkpoints_path / "00000012.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.warns(RuntimeWarning, match="damaged"):
        train(recipe, run)
    assert_same_run(run, whole)


def test_a_damaged_checkpoint_is_gone_once_the_run_went_on_from_the_one_before(tmp_path, monkeypatch):
    """Else the next save would keep it as the one before, and remove the good one."""
    run = Run(tmp_path / "run")
    signal_after_step(monkeypatch, 12)
    train(tiny_recipe(), run)
    monkeypatch.undo()
    (run.checkpoints_path / "00000012.safetensors").write_bytes(b"")
    signal_after_step(monkeypatch, 13)
    with pytest.warns(RuntimeWarning, match="damaged"):
        train(tiny_recipe(), run)
    assert saved_steps(run) == [10, 13]


def files_of(run):
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew(tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    signal_after_step(monkeypatch, 12)
    train(tiny_recipe(), run)
    monkeypatch.undo()
    for path in run.checkpoints_path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    before = files_of(run)
    with pytest.raises(CorruptDataError, match="bring the files back, or delete that folder to begin anew"):
        train(tiny_recipe(), run)
    assert files_of(run) == before


def test_the_way_out_of_damage_is_to_delete_the_checkpoints(whole, tmp_path, monkeypatch):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    signal_after_step(monkeypatch, 12)
    train(recipe, run)
    monkeypatch.undo()
    shutil.rmtree(run.checkpoints_path)
    with pytest.warns(RuntimeWarning, match=r"metrics\.jsonl tells of a run.*no checkpoint.*beginning anew"):
        train(recipe, run)
    assert_same_run(run, whole)


def remove(path):
    path.unlink()


def keep_first_line(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def drop_first_line(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])


def double_first_line(path):
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + first + second)


@pytest.mark.parametrize("change", [remove, keep_first_line, drop_first_line, double_first_line])
def test_a_run_that_lost_its_metrics_does_not_go_on_without_them(tmp_path, monkeypatch, change):
    run = Run(tmp_path / "run")
    signal_after_step(monkeypatch, 12)
    train(tiny_recipe(), run)
    monkeypatch.undo()
    change(run.metrics_path)
    before = files_of(run)
    with pytest.raises(
        CorruptDataError, match=r"metrics\.jsonl does not have one line .* 2 epochs.*or delete"
    ):
        train(tiny_recipe(), run)
    assert files_of(run) == before


def test_a_carried_run_tells_what_its_earlier_parts_ran_on(whole, tmp_path, monkeypatch):
    recipe, run = tiny_recipe(spectrum_epochs=(1,)), Run(tmp_path / "run")
    here = whole.read_result()
    spent = []
    for name, step in (("one GPU", 3), ("another GPU", 7), ("one GPU", 12)):
        with monkeypatch.context() as patched:
            machine = parts_module.machine
            patched.setattr(
                parts_module, "machine", lambda device, of=machine, name=name: of(device) | {"device": name}
            )
            signal_after_step(patched, step)
            train(recipe, run)
        manifest = json.loads((run.checkpoints_path / f"{step:08d}.json").read_text())
        spent.append(manifest["seconds"])
    train(recipe, run)
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


def test_checkpoints_come_when_asked_for(tmp_path, monkeypatch):
    saved = []
    save = session_module.save_checkpoint
    monkeypatch.setattr(
        session_module, "save_checkpoint", lambda *all: (saved.append(all[2].step), save(*all))
    )
    train(tiny_recipe(), tmp_path / "epochs", checkpoint_every=2)
    assert saved == [10, 15]
    saved.clear()
    train(tiny_recipe(epochs=2), tmp_path / "steps", checkpoint_steps=3)
    assert saved == [3, 5, 6, 9, 10]


def diverging_recipe(**changes):
    return tiny_recipe(learning_rate=1e30, momentum=0.0, **changes)


def test_a_run_that_is_no_longer_finite_diverges_at_its_step(tmp_path):
    run = Run(tmp_path / "run")
    outcome = train(diverging_recipe(), run, throw=False)
    assert outcome.ending == "diverged"
    assert 1 <= outcome.step < 5
    assert outcome.epoch == 1
    assert run.read_result()["outcome"] == outcome.to_dict()
    assert run.read_result()["weights_sha256"] is None
    assert [line["epoch"] for line in run.read_spectra()] == [0]


def test_throw_raises_with_the_outcome_at_first_and_from_the_stored_result(tmp_path):
    for _ in range(2):
        with pytest.raises(DivergedError) as caught:
            train(diverging_recipe(), tmp_path / "run")
        assert caught.value.outcome.ending == "diverged"
    assert train(diverging_recipe(), tmp_path / "run", throw=False) == caught.value.outcome


def poison(monkeypatch, step):
    """Make the loss of step `step` (counted from 0 in the whole run) NaN, as overflowing features would."""
    take_step = Session.take_step

    def take_poisoned_step(self):
        if self.step == step:
            with torch.no_grad():
                next(self.model.parameters()).fill_(math.nan)
        take_step(self)

    monkeypatch.setattr(Session, "take_step", take_poisoned_step)


def test_what_was_there_before_divergence_is_kept(whole, tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    poison(monkeypatch, 12)
    outcome = train(tiny_recipe(spectrum_epochs=(1,)), run, throw=False)
    assert (outcome.ending, outcome.epoch, outcome.step) == ("diverged", 3, 12)
    assert timeless_metrics(run) == timeless_metrics(whole)[:2]
    assert outcome.metrics == run.read_metrics()[-1]
    assert sorted(path.name for path in run.checkpoints_path.glob("*.json")) == [
        "00000005.json",
        "00000010.json",
    ]


def test_a_bad_loss_is_named_even_if_the_device_ran_ahead(tmp_path, monkeypatch):
    """On a GPU the losses are read only now and then; the first bad step must be named all the same."""
    poison(monkeypatch, 6)
    monkeypatch.setattr(Session, "read_losses", read_at_the_end_of_the_epoch)
    outcome = train(tiny_recipe(), tmp_path / "run", throw=False)
    assert (outcome.ending, outcome.step) == ("diverged", 6)


read_losses = Session.read_losses


def read_at_the_end_of_the_epoch(self):
    return read_losses(self) if self.step_in_epoch == self.steps_per_epoch else [0.0]


def test_a_resumed_run_diverges_at_the_same_step(tmp_path, monkeypatch):
    whole = train(diverging_recipe(), tmp_path / "whole", throw=False)
    signal_after_step(monkeypatch, 1)
    assert train(diverging_recipe(), tmp_path / "run").ending == "interrupted"
    monkeypatch.undo()
    assert train(diverging_recipe(), tmp_path / "run", throw=False) == whole


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    take_step = Session.take_step

    def spoil_the_update(self):
        take_step(self)
        if self.step == 15:
            with torch.no_grad():
                next(self.model.parameters())[0] = math.inf

    monkeypatch.setattr(Session, "take_step", spoil_the_update)
    run = Run(tmp_path / "run")
    outcome = train(tiny_recipe(), run, throw=False)
    assert (outcome.ending, outcome.step) == ("diverged", 14)
    assert [path.name for path in sorted(run.checkpoints_path.glob("*.json"))] == [
        "00000005.json",
        "00000010.json",
    ]
    assert run.read_metrics()[-1]["test_loss"] is None


def test_training_lowers_the_loss(tmp_path):
    recipe = tiny_recipe(epochs=8, batch_size=20, milestones=(6,), augment=False)
    train(recipe, tmp_path / "run")
    lines = Run(tmp_path / "run").read_metrics()
    assert lines[-1]["train_loss"] < 0.5 * lines[0]["train_loss"]


def test_the_train_loss_weighs_images_alike(tmp_path, monkeypatch):
    """40 images in batches of 9: the last batch has 4, and counts as 4 images."""
    losses = iter([1.0, 2.0, 3.0, 4.0, 14.0])

    def fake_step(self):
        self._losses.place(self.step_in_epoch).fill_(next(losses))
        self.step_in_epoch += 1

    monkeypatch.setattr(Session, "take_step", fake_step)
    train(tiny_recipe(epochs=1), tmp_path / "run")
    [line] = Run(tmp_path / "run").read_metrics()
    assert line["train_loss"] == (9 * (1 + 2 + 3 + 4) + 4 * 14) / 40


def test_a_run_in_use_is_refused(tmp_path):
    run = Run(tmp_path / "run")
    with run.lock(), pytest.raises(LockedRunError, match=str(os.getpid())):
        train(tiny_recipe(), run)


def test_a_recipe_that_cannot_start_does_not_take_the_folder(tmp_path):
    with pytest.raises(ValueError, match="train_images=41"):
        train(tiny_recipe(train_images=41), tmp_path / "run")
    assert train(tiny_recipe(epochs=1, train_images=40), tmp_path / "run").ending == "finished"


def test_a_recipe_that_fails_in_its_first_step_does_not_take_the_folder(tmp_path):
    network = "preresnet11/diffusive-1@1"
    with pytest.raises(ValueError, match="sinkhorn"):
        train(tiny_recipe(epochs=1, network=network, stage={"normalize": "sinkhorn"}), tmp_path / "run")
    assert train(tiny_recipe(epochs=1, network=network), tmp_path / "run").ending == "finished"
    assert Run(tmp_path / "run").read_recipe()["stage"]["normalize"] is None


def test_a_folder_with_another_recipe_is_refused_and_named(whole):
    with pytest.raises(ValueError, match=r"another recipe: seed is 9, was 0"):
        train(tiny_recipe(seed=9, spectrum_epochs=(1,)), whole)


def test_data_of_another_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="data is 'tiny', but the recipe says data='cifar10'"):
        train(tiny_recipe(data="cifar10"), tmp_path / "run")


def test_a_run_does_not_go_on_with_other_data(tmp_path, monkeypatch):
    signal_after_step(monkeypatch, 3)
    train(tiny_recipe(), tmp_path / "run")
    monkeypatch.undo()
    other = tiny_data()
    other.train.images[7, 0, 0, 0] ^= 1
    with pytest.raises(ValueError, match="was begun on other data called 'tiny'.*a new folder"):
        fit(tiny_recipe(), tmp_path / "run", data=other, device="cpu", progress=False)


def test_more_steps_than_batches_are_refused(tmp_path):
    with pytest.raises(ValueError, match="steps_per_epoch=6, but 40 images make 5 batches"):
        train(tiny_recipe(steps_per_epoch=6), tmp_path / "run")


@pytest.mark.parametrize(
    "options",
    [{"checkpoint_every": 0}, {"checkpoint_steps": 1.5}, {"stop_after": -1}, {"stop_after": math.nan}],
)
def test_wrong_options_are_named(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        train(tiny_recipe(), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_it_works_outside_the_main_thread(tmp_path):
    endings = []
    thread = threading.Thread(
        target=lambda: endings.append(train(tiny_recipe(epochs=1), tmp_path / "run").ending)
    )
    thread.start()
    thread.join()
    assert endings == ["finished"]


def test_an_epoch_is_saved_before_it_is_told(tmp_path, monkeypatch):
    class Gone(Silence):
        def epoch(self, metrics):
            raise BrokenPipeError

    monkeypatch.setattr(working_module, "make_progress", lambda *_: Gone())
    with pytest.raises(BrokenPipeError):
        train(tiny_recipe(), tmp_path / "run")
    assert saved_steps(Run(tmp_path / "run")) == [5]


@pytest.mark.parametrize("device", ["foo", "cuda"])
def test_a_device_that_is_not_there_is_named(device, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=f"device='{device}'"):
        fit(tiny_recipe(), tmp_path / "run", data=tiny_data(), device=device, progress=False)
    assert not (tmp_path / "run" / "recipe.json").exists()
