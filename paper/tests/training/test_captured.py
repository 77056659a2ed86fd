"""Capturing without a device: warm-up, seeds, rates and batch sizes are handled so that nothing differs."""

import copy
import os
import signal

import pytest
import torch
from replayed import without_a_device
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc_paper.runs import Run
from nonloc_paper.training import captured as captured_module
from nonloc_paper.training import graphs
from nonloc_paper.training.evaluate import CapturedEvaluation
from nonloc_paper.training.graph_group import Convoy
from nonloc_paper.training.evaluate import evaluate
from nonloc_paper.training.graph_group import CaptureError
from nonloc_paper.training.loop import fit
from nonloc_paper.training.session import Session
from nonloc_paper.training.stopping import Stopping
from nonloc_paper.training.loop import Options, work

CPU = torch.device("cpu")


def data_of(recipe):
    return tiny_data(labels=recipe.task == "classification")


def train_captured(recipe, run):
    """`fit` refuses to capture on the CPU; the work itself does not know what a graph is."""
    stopping = Stopping()
    options = Options(CPU, Convoy(CPU), progress=False)
    steps = work(recipe, run, lambda: data_of(recipe), stopping, options, stopping)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        options.convoy.depart()


def assert_same_run(run, expected):
    assert run.read_result()["weights_sha256"] == expected.read_result()["weights_sha256"]
    lines = zip(timeless_metrics(run), timeless_metrics(expected), strict=True)
    for line, other in lines:
        assert line["train_loss"] == other["train_loss"]
        # The batches of the evaluation are larger, so that its sums are rounded in another order.
        assert line["test_loss"] == pytest.approx(other["test_loss"], rel=1e-5)


CHANGES = {
    "sgd": {},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "schedule": "onecycle"},
    "restoration": {"network": "restorer8/diffusive-1@1", "learning_rate": 0.01, "nesterov": True},
    "bfloat16": {"precision": "bfloat16", "channels_last": True},
    "no momentum": {"momentum": 0.0},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_a_captured_run_is_the_plain_run(tmp_path, monkeypatch, changes):
    recipe = tiny_recipe(**changes)
    plain, run = Run(tmp_path / "plain"), Run(tmp_path / "run")
    fit(recipe, plain, data=data_of(recipe), device="cpu", progress=False)
    generators = without_a_device(monkeypatch)
    assert train_captured(recipe, run).ending == "finished"
    assert_same_run(run, plain)
    assert len(generators) == 3, "one graph for each size of a batch, and one for the evaluation"
    assert generators[0] == generators[1] != ()
    assert generators[2] == ()


@pytest.mark.parametrize("step", [8, 10], ids=["within an epoch", "before an evaluation"])
def test_a_captured_run_resumes_where_it_was(tmp_path, monkeypatch, step):
    recipe = tiny_recipe(channels_last=True)
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    without_a_device(monkeypatch)
    train_captured(recipe, whole)
    take_step = Session.take_step

    def take_step_and_be_hit(self):
        take_step(self)
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "take_step", take_step_and_be_hit)
        assert train_captured(recipe, run).step == step
    assert train_captured(recipe, run).ending == "finished"
    assert_same_run(run, whole)


@pytest.mark.parametrize("changes", [{}, CHANGES["adam"]], ids=["sgd", "adam"])
def test_recording_leaves_no_trace(tmp_path, monkeypatch, changes):
    without_a_device(monkeypatch)
    convoy = Convoy(CPU)
    session = Session(tiny_recipe(**changes), Run(tmp_path / "run"), tiny_data(), CPU, convoy=convoy)
    before = copy.deepcopy(session.model.state_dict())
    session.take_step()
    assert all(torch.equal(value, before[name]) for name, value in session.model.state_dict().items())
    states = list(session.train_step.optimizer.state.values())
    assert len(states) == len(list(session.model.parameters()))
    assert not any(value.any() for state in states for value in state.values())


def test_a_rate_is_not_a_reason_to_record_again(tmp_path, monkeypatch):
    generators = without_a_device(monkeypatch)
    recipe = tiny_recipe(schedule="onecycle", batch_size=8)
    convoy = Convoy(CPU)
    session = Session(recipe, Run(tmp_path / "run"), tiny_data(), CPU, convoy=convoy)
    for _ in range(5):
        session.take_step()
        convoy.depart()
    assert len(generators) == 1


def refuse(monkeypatch, message):
    without_a_device(monkeypatch)

    def record(work, pool, generators=()):
        raise CaptureError(message)

    monkeypatch.setattr(graphs, "record", record)


def test_what_cannot_be_captured_goes_the_plain_way_with_one_warning(tmp_path, monkeypatch):
    recipe = tiny_recipe()
    plain, run = Run(tmp_path / "plain"), Run(tmp_path / "run")
    fit(recipe, plain, data=tiny_data(), device="cpu", progress=False)
    refuse(monkeypatch, "ValueError: it looks at its numbers")
    with pytest.warns(
        RuntimeWarning, match=r"cannot be captured.*looks at its numbers.*plain loop"
    ) as warned:
        assert train_captured(recipe, run).ending == "finished"
    assert len(warned) == 1
    assert run.read_result()["weights_sha256"] == plain.read_result()["weights_sha256"]
    assert timeless_metrics(run) == timeless_metrics(plain)


def test_an_error_in_the_step_itself_is_not_hidden(tmp_path, monkeypatch):
    without_a_device(monkeypatch)
    session = Session(tiny_recipe(), Run(tmp_path / "run"), tiny_data(), CPU, convoy=Convoy(CPU))

    def fail(outputs, targets):
        raise ValueError("the affinity has negative entries")

    monkeypatch.setattr(session.task, "loss", fail)
    with pytest.raises(ValueError, match="negative entries"):
        session.take_step()


def test_a_diverging_run_is_named_at_the_same_step(tmp_path, monkeypatch):
    recipe = tiny_recipe(learning_rate=1e30, momentum=0.0)
    plain = fit(recipe, tmp_path / "plain", data=tiny_data(), device="cpu", progress=False, throw=False)
    without_a_device(monkeypatch)
    assert train_captured(recipe, Run(tmp_path / "run")) == plain


@pytest.mark.parametrize("size", [5, 10, 24, 1000])
def test_evaluation_covers_every_image_once(tmp_path, monkeypatch, size):
    """24 images, in batches of each size and a smaller last one."""
    generators = without_a_device(monkeypatch)
    monkeypatch.setattr(captured_module, "EVALUATION_BATCH", size)
    recipe = tiny_recipe()
    session = Session(recipe, Run(tmp_path / "run"), tiny_data(), CPU)
    evaluation = CapturedEvaluation(session.model, session.task, recipe)
    for _ in range(2):
        session.take_step()
        evaluation.launch()
        measured = evaluation.read()
        expected = evaluate(session.model, session.task, recipe)
        assert measured["error"] == pytest.approx(expected["error"], rel=1e-12)
        assert measured["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
    assert len(generators) == 1, "one graph, made once"
    assert session.model.training


def test_an_evaluation_that_needs_too_much_memory_is_done_in_small_batches(tmp_path, monkeypatch):
    without_a_device(monkeypatch)
    session = Session(tiny_recipe(), Run(tmp_path / "run"), tiny_data(), CPU, convoy=Convoy(CPU))

    def fail(self):
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(CapturedEvaluation, "_work", fail)
    with pytest.warns(RuntimeWarning, match=r"the evaluation of .* cannot be captured .*out of memory"):
        session.launch_evaluation()
    assert session.read_evaluation(lambda: False) == evaluate(session.model, session.task, session.recipe)


def test_capturing_on_the_cpu_is_refused(tmp_path):
    with pytest.raises(ValueError, match='captured=True needs device="cuda"'):
        fit(tiny_recipe(), tmp_path / "run", data=tiny_data(), device="cpu", captured=True)
    assert not (tmp_path / "run").exists()
