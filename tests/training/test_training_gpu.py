"""Training on a CUDA device: the first bad step is named, interruption and resumption work."""

import math
import os
import signal

import pytest
import torch
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc.runs import Run
from nonloc.training.augment import crop_and_flip
from nonloc.training.loop import STEPS_AHEAD, fit
from nonloc.training.session import Session

pytestmark = pytest.mark.gpu


def train(recipe, path, **options):
    data = tiny_data(labels=recipe.task == "classification", train=40)
    return fit(recipe, path, data=data, device="cuda", progress=False, **options)


def before_step(monkeypatch, step, act):
    take_step = Session.take_step

    def act_and_take_step(self):
        if self.step == step:
            act(self)
        take_step(self)

    monkeypatch.setattr(Session, "take_step", act_and_take_step)


def test_the_first_bad_step_is_named_although_the_device_runs_ahead(tmp_path, monkeypatch):
    recipe = tiny_recipe(epochs=2, batch_size=1)
    assert STEPS_AHEAD > 40, "the epoch must be read only at its end for the test to mean something"

    def poison(session):
        with torch.no_grad():
            next(session.model.parameters()).fill_(math.nan)

    before_step(monkeypatch, 53, poison)
    outcome = train(recipe, tmp_path / "run", throw=False)
    assert (outcome.ending, outcome.epoch, outcome.step) == ("diverged", 2, 53)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"precision": "bfloat16", "channels_last": True},
        {"network": "restorer8/diffusive-2@1", "learning_rate": 0.01},
    ],
    ids=["sgd", "adam", "bfloat16", "restoration"],
)
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, changes):
    recipe, run = tiny_recipe(**changes), Run(tmp_path / "run")
    before_step(monkeypatch, 7, lambda session: os.kill(os.getpid(), signal.SIGTERM))
    assert train(recipe, run).step == 8
    first_epoch = timeless_metrics(run)
    monkeypatch.undo()
    assert train(recipe, run).ending == "converged"
    assert timeless_metrics(run)[:1] == first_epoch
    assert [line["step"] for line in run.read_metrics()] == [5, 10, 15]
    assert [line["epoch"] for line in run.read_spectra()] == [0, 3]


def test_training_lowers_the_loss(tmp_path):
    train(tiny_recipe(epochs=8, batch_size=20, milestones=(6,), augment=False), tmp_path / "run")
    lines = Run(tmp_path / "run").read_metrics()
    assert lines[-1]["train_loss"] < 0.5 * lines[0]["train_loss"]


def test_crops_are_those_of_the_cpu():
    images = torch.randn(16, 3, 8, 8)
    offsets, flips = torch.randint(0, 9, (16, 2)), torch.arange(16) % 2 == 0
    on_device = crop_and_flip(images.cuda(), offsets.cuda(), flips.cuda(), 4)
    assert on_device.cpu().equal(crop_and_flip(images, offsets, flips, 4))
