"""Evaluation: means over images, in eval mode, leaving the network as it was."""

import copy

import pytest
import torch
from tiny import tiny_data, tiny_recipe
from torch import nn

from nonloc_paper.runs import Run
from nonloc_paper.training.evaluate import evaluate
from nonloc_paper.training.session import Session
from nonloc_paper.training.tasks import Classification


class Constant(nn.Module):
    """Says class 0 with the same outputs, and counts in which mode it was asked."""

    def __init__(self):
        super().__init__()
        self.modes = []

    def forward(self, x):
        self.modes.append(self.training)
        return torch.tensor([1.0, 0.0, 0.0]).expand(len(x), 3)


@pytest.mark.parametrize("batch_size", [1, 7, 24, 100])
def test_the_error_of_a_constant_answer_is_exact_for_every_batch_size(batch_size):
    recipe = tiny_recipe(batch_size=batch_size)
    measured = evaluate(Constant(), Classification(recipe, tiny_data(), "cpu"), recipe)
    # A third of the 24 labels is 0.
    assert measured["error"] == pytest.approx(100 * 2 / 3, rel=1e-12)


def test_it_is_in_eval_mode_and_puts_the_mode_back():
    model = Constant().train()
    recipe = tiny_recipe()
    evaluate(model, Classification(recipe, tiny_data(), "cpu"), recipe)
    assert model.modes == [False, False, False]
    assert model.training


def test_it_can_be_stopped_between_batches():
    model = Constant()
    recipe = tiny_recipe()
    task = Classification(recipe, tiny_data(), "cpu")
    assert evaluate(model, task, recipe, should_stop=lambda: len(model.modes) == 2) is None
    assert len(model.modes) == 2
    assert model.training


def test_running_statistics_agree_with_batch_statistics_after_training(tmp_path):
    """What a flag shared between two models, or statistics that are not kept, would break."""
    recipe = tiny_recipe(epochs=12, batch_size=20, milestones=(8,), augment=False)
    data = tiny_data(train=60, test=60)
    session = Session(recipe, Run(tmp_path / "run"), data, torch.device("cpu"))
    for _ in range(12):
        while session.step_in_epoch < session.steps_per_epoch:
            session.take_step()
        session.epoch, session.step_in_epoch = session.epoch + 1, 0
    running = evaluate(session.model, session.task, recipe)

    on_batches = copy.deepcopy(session.model).train()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for inputs, targets in session.task.test_batches(60):
            sums += session.task.measure(on_batches(inputs), targets)
    loss, error = (sums / 60).tolist()
    assert running["error"] < 40, "the network has not learned enough for the comparison to mean something"
    assert running["error"] == pytest.approx(error, abs=10)
    assert running["test_loss"] == pytest.approx(loss, rel=0.5, abs=0.1)
