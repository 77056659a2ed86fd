"""The captured step on a CUDA device: the plain loop's numbers, draws and checkpoints, in one launch.

Plain and captured launch the same kernels in the same order, and cuDNN is told to be deterministic, so equal numbers
are expected. The tolerances leave room for a library that chooses another algorithm in one of the two cases: rounding
errors of 1e-7 then grow with the steps. A wrong draw, rate, order or batch changes the losses by more than 1e-2.
"""

import copy

import pytest
import torch
from tiny import after_step, send_sigterm, timeless_metrics, tiny_data, tiny_recipe

from nonloc_paper.runs import Run
from nonloc_paper.training import evaluate as evaluate_module
from nonloc_paper.training.evaluate import CapturedEvaluation, evaluate
from nonloc_paper.training.fit import fit
from nonloc_paper.training.graph_group import GraphGroup, capture_graph
from nonloc_paper.training.plan import Batch, step_generator, step_seed
from nonloc_paper.training.session import Session
from nonloc_paper.training.step import TrainingStep, on_stream
from nonloc_paper.training.tasks import TASKS, Classification
from nonloc_paper.training.trained import trained_network

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("deterministic")]

DEVICE = torch.device("cuda")
LOSS = {"rel": 1e-5, "abs": 1e-6}
WEIGHTS = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture(autouse=True)
def group():
    """A capture must not be on the default stream; `fit` sees to that itself."""
    made = GraphGroup(DEVICE)
    with on_stream(made.stream):
        yield made
    torch.cuda.synchronize()


def recipe_of(**changes):
    """50 steps: ten epochs of five, the last batch smaller, two changes of rate."""
    stage = {"backend": "reference"}
    return tiny_recipe(
        network="preresnet11/diffusive-2@2", epochs=10, batch_size=32, milestones=(3, 6), stage=stage
    ).with_(**changes)


def data_of(recipe):
    return tiny_data(labels=recipe.task == "classification", train=4 * 32 + 16, test=24, size=16)


def train(recipe, path, **options):
    return fit(recipe, path, data=data_of(recipe), device="cuda", progress=False, **options)


def session_of(recipe, tmp_path, group=None):
    return Session(recipe, Run(tmp_path / "run"), data_of(recipe), DEVICE, group=group)


def losses_of(session, steps):
    for _ in range(steps):
        session.take_step()
        if session._group is not None:
            session._group.step()
    torch.cuda.synchronize()
    return session.losses._on_device[:steps].tolist()


def assert_same_learning(run, other):
    for line, expected in zip(timeless_metrics(run), timeless_metrics(other), strict=True):
        assert line["train_loss"] == pytest.approx(expected["train_loss"], **LOSS)
        assert line["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-4, abs=1e-6)
    weights, expected = trained_network(run).state_dict(), trained_network(other).state_dict()
    assert weights.keys() == expected.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], expected[name], **WEIGHTS, msg=name)


CHANGES = {
    "sgd": {},
    "nesterov": {"nesterov": True},
    "no momentum": {"momentum": 0.0},
    "adam": {"optimizer": "adam", "learning_rate": 0.003, "schedule": "onecycle"},
    "channels last": {"channels_last": True},
    "restoration": {"network": "restorer8/diffusive-2@1", "learning_rate": 0.01},
    "stable": {"stage": {"weight": "stable", "init_std": 0.3}},
}


@pytest.mark.filterwarnings("error:.*cannot be captured")
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_fifty_steps_are_those_of_the_plain_loop(tmp_path, changes):
    recipe = recipe_of(**changes)
    runs = {captured: Run(tmp_path / str(captured)) for captured in (False, True)}
    for captured, run in runs.items():
        assert train(recipe, run, captured=captured).step == 50
    assert_same_learning(runs[True], runs[False])


@pytest.mark.parametrize("network", ["preresnet11/baseline", "restorer8/diffusive-2@1"])
def test_the_draws_are_those_of_the_plain_loop_to_the_bit(network):
    """Crops, flips and noise, in whatever order the steps come: seed and offset are those of the replay."""
    recipe = recipe_of(network=network, seed=3)
    task = TASKS[recipe.task](recipe, data_of(recipe), DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(1)
    indices = torch.arange(32, device=DEVICE)
    task.train_batch(indices, generator)
    graph, inputs = capture_graph(
        lambda: task.train_batch(indices, generator)[0], torch.cuda.graph_pool_handle(), [generator]
    )
    seen = []
    for epoch, step in [(0, 0), (0, 1), (7, 4), (0, 1)]:
        generator.manual_seed(step_seed(recipe.seed, epoch, step))
        graph.replay()
        expected, _ = task.train_batch(indices, step_generator(recipe.seed, epoch, step, DEVICE))
        assert torch.equal(inputs, expected)
        seen.append(inputs.clone())
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("changes", [{}, CHANGES["adam"]], ids=["sgd", "adam"])
@pytest.mark.parametrize("steps", [0, 2], ids=["at the start", "later"])
def test_a_capture_leaves_no_trace(tmp_path, group, changes, steps):
    session = session_of(recipe_of(**changes), tmp_path, group)
    losses_of(session, steps)
    step, before = session.train_step, copy.deepcopy(session.model.state_dict())
    states = [{key: value.clone() for key, value in state.items()} for state in step.optimizer.state.values()]
    batch = Batch(torch.arange(7, device=DEVICE), 77, torch.tensor([77], device=DEVICE))
    group.request(session._member, batch, session.losses.at(0))
    assert sorted(size for [(_, size)] in group._captured)[0] == 7
    for name, value in session.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    after = list(step.optimizer.state.values())
    assert len(after) == len(list(session.model.parameters()))
    for number, state in enumerate(after):
        for key, value in state.items():
            expected = states[number][key] if steps else torch.zeros_like(value)
            assert torch.equal(value, expected), key


def test_everything_stays_where_it_is_in_memory(tmp_path, group):
    """A graph writes to addresses: a tensor that was replaced would no longer be trained."""
    session = session_of(recipe_of(), tmp_path, group)
    losses_of(session, 5)

    def addresses():
        states = session.train_step.optimizer.state.values()
        tensors = [*session.model.state_dict().values(), *(state["momentum_buffer"] for state in states)]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    session.epoch, session.step_in_epoch = 1, 0
    losses_of(session, 5)
    assert addresses() == before


@pytest.mark.parametrize("step", [7, 10, 13])
@pytest.mark.parametrize("changes", [{"channels_last": True}, CHANGES["adam"]], ids=["channels last", "adam"])
def test_a_run_resumed_in_the_middle_ends_as_if_uninterrupted(tmp_path, monkeypatch, changes, step):
    recipe = recipe_of(epochs=4, **changes)
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(recipe, whole)
    after_step(monkeypatch, step, send_sigterm)
    outcome = train(recipe, run)
    assert (outcome.ending, outcome.step) == ("interrupted", step)
    monkeypatch.undo()
    assert train(recipe, run).ending == "finished"
    assert_same_learning(run, whole)


def test_a_captured_run_goes_on_plainly_and_back(tmp_path):
    """The checkpoints are the same: each call may have another way of stepping."""
    recipe = recipe_of(epochs=2, channels_last=True)
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(recipe, whole)
    ways = [True, False, True, False]
    for captured in ways:
        assert train(recipe, run, captured=captured, stop_after=0).ending == "interrupted"
    train(recipe, run)
    assert_same_learning(run, whole)


def test_weights_that_are_cast_together_give_the_same_step():
    """bfloat16: the same casts of the same weights, so the same numbers."""
    recipe = recipe_of(precision="bfloat16", channels_last=True)
    task = Classification(recipe, data_of(recipe), DEVICE)
    found = []
    for together in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(8),
            torch.nn.Conv2d(8, 8, 1),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 3),
        )
        model = model.to(DEVICE).to(memory_format=torch.channels_last)
        step = TrainingStep(model, task, recipe, cast_together=together)
        for number in range(5):
            step(torch.arange(32, device=DEVICE), step_generator(0, 0, number, DEVICE), 0.1)
        found.append(model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-6, atol=1e-7, msg=name)
    assert int(found[1]["1.num_batches_tracked"]) == 5


def test_evaluation_measures_the_same(tmp_path, group, monkeypatch):
    """24 images as 10, 10 and 4; then again after the weights have changed."""
    monkeypatch.setattr(evaluate_module, "CAPTURED_BATCH", 10)
    recipe = recipe_of()
    session = session_of(recipe, tmp_path, group)
    evaluation = CapturedEvaluation(session.model, session.task, recipe)
    for _ in range(2):
        losses_of(session, 5)
        session.step_in_epoch = 0
        evaluation.launch()
        expected = evaluate(session.model, session.task, recipe)
        measured = evaluation.read()
        assert measured["error"] == pytest.approx(expected["error"], abs=1e-9)
        assert measured["test_loss"] == pytest.approx(expected["test_loss"], **LOSS)
    assert session.model.training


def synchronize_in_loss(monkeypatch):
    loss = Classification.loss

    def loss_and_look(self, outputs, targets):
        value = loss(self, outputs, targets)
        assert float(value) >= 0
        return value

    monkeypatch.setattr(Classification, "loss", loss_and_look)


def test_a_step_that_cannot_be_captured_is_done_plainly_with_one_warning(tmp_path, monkeypatch):
    recipe = recipe_of(epochs=2)
    plain, run, later = Run(tmp_path / "plain"), Run(tmp_path / "run"), Run(tmp_path / "later")
    train(recipe, plain, captured=False)
    synchronize_in_loss(monkeypatch)
    with pytest.warns(RuntimeWarning, match="cannot be captured") as warned:
        assert train(recipe, run).ending == "finished"
    [message] = [str(each.message) for each in warned if "cannot be captured" in str(each.message)]
    assert "captur" in message.partition("(")[2], "the cause must be named"
    assert_same_learning(run, plain)
    monkeypatch.undo()
    # Nothing of the broken capture is left: generators and captures work as before.
    assert torch.rand(2, device=DEVICE).isfinite().all()
    train(recipe, later, captured=True)
    assert_same_learning(later, plain)
