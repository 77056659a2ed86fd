"""Graph groups without a device: a member's numbers do not depend on the others, nor on being captured."""

from types import SimpleNamespace

import pytest
import torch
from replayed import without_a_device
from tiny import (
    after_step,
    before_method,
    outcomes,
    saved_steps,
    send_sigterm,
    timeless_metrics,
    tiny_data,
    tiny_recipe,
    train,
    train_each,
    train_together,
)

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.training import evaluate as evaluate_module
from nonloc_paper.training import graph_group, scheduler
from nonloc_paper.training.evaluate import CapturedEvaluation, evaluate
from nonloc_paper.training.fit import Options
from nonloc_paper.training.graph_group import CaptureError, GraphGroup
from nonloc_paper.training.session import Session
from nonloc_paper.training.tasks import Classification

CPU = torch.device("cpu")
BASELINE = "preresnet8-basic/baseline"
RECIPES = [
    tiny_recipe(network=BASELINE),
    tiny_recipe(network=BASELINE, seed=1),
    tiny_recipe(seed=2, epochs=2, optimizer="adam", learning_rate=0.01, schedule="onecycle"),
    tiny_recipe(network=BASELINE, seed=3, batch_size=20, epochs=4, momentum=0.0),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of each recipe, made by `fit`."""
    return train_each(RECIPES, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def captures(monkeypatch):
    """The generators of every capture; `fit_many` gets a group, which on the CPU it would not make itself."""
    generators = without_a_device(monkeypatch)
    monkeypatch.setattr(
        scheduler, "make_options", lambda *arguments: Options(CPU, GraphGroup(CPU), progress=False)
    )
    return generators


def go(folder, recipes=RECIPES, side_by_side=4, **options):
    return train_together(recipes, folder, side_by_side, **options)


def assert_as_alone(runs, alone):
    for run, expected in zip(runs, alone, strict=True):
        assert run.read_result()["weights_sha256"] == expected.read_result()["weights_sha256"]
        for line, other in zip(timeless_metrics(run), timeless_metrics(expected), strict=True):
            # The batches of the captured evaluation are larger, so that its sums are rounded in another order.
            for name in line.keys() & {"test_loss", "psnr"}:
                assert line.pop(name) == pytest.approx(other.pop(name), rel=1e-5)
            assert line == other


def members_of(work):
    """The members whose steps `work` captures."""
    cells = [cell.cell_contents for cell in work.__closure__ or ()]
    return [member for cell in cells if isinstance(cell, tuple) for member, _ in cell]


def refuse_optimizer(monkeypatch, optimizer):
    """Let no step with this optimizer be captured."""
    capture = graph_group.capture_graph

    def capture_some(work, pool, generators=()):
        if any(member.step.recipe.optimizer == optimizer for member in members_of(work)):
            assert len(generators) == 1, "a member is captured alone before it is captured with others"
            raise CaptureError("it looks at its numbers")
        return capture(work, pool, generators)

    monkeypatch.setattr(graph_group, "capture_graph", capture_some)


@pytest.mark.parametrize("side_by_side", [1, 4])
def test_every_run_is_what_it_is_alone_to_the_bit(tmp_path, alone, captures, side_by_side):
    """With other lengths, batch sizes and optimizers, so that the members change several times."""
    runs, endings = go(tmp_path, side_by_side=side_by_side)
    assert outcomes(endings) == ["finished"] * 4
    assert_as_alone(runs, alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "restorer8/diffusive-1@1", "learning_rate": 0.01, "nesterov": True},
        {"precision": "bfloat16", "channels_last": True},
    ],
    ids=["restoration", "bfloat16"],
)
def test_other_recipes_are_captured_exactly_too(tmp_path, captures, changes):
    recipe = tiny_recipe(epochs=1, batch_size=2, train_images=3, test_images=2, **changes)
    train(recipe, tmp_path / "plain")
    runs, _ = go(tmp_path, [recipe])
    assert_as_alone(runs, [Run(tmp_path / "plain")])
    assert [len(generators) for generators in captures] == [1, 1, 0], "two batch sizes, and the evaluation"


def test_runs_in_step_are_captured_together_once(tmp_path, captures):
    go(tmp_path, RECIPES[:2])
    # A whole and a last batch: each run alone, then both together; and the evaluation of each run.
    assert sorted(len(generators) for generators in captures) == [0, 0, 1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("step", [3, 10], ids=["within an epoch", "before an evaluation"])
def test_a_resumed_run_joins_a_new_one(tmp_path, alone, captures, monkeypatch, step):
    """In the first case, their last batches do not come at the same time."""
    with monkeypatch.context() as patched:
        after_step(patched, step, send_sigterm)
        _, endings = go(tmp_path, RECIPES[:1])
    assert endings.all[0].outcome.step == step
    captures.clear()
    runs, _ = go(tmp_path, RECIPES[:2])
    assert_as_alone(runs, alone[:2])
    pairs = [generators for generators in captures if len(generators) == 2]
    assert len(pairs) == (3 if step == 3 else 2)


def test_a_diverging_run_ends_at_the_same_step_and_affects_no_other(tmp_path, alone, captures):
    recipes = [RECIPES[0], RECIPES[1].with_(learning_rate=1e30, momentum=0.0)]
    expected = train(recipes[1], tmp_path / "plain", throw=False)
    runs, endings = go(tmp_path, recipes)
    assert endings.all[1].outcome == expected
    assert expected.ending == "diverged"
    assert_as_alone(runs[:1], alone[:1])


def test_a_step_that_cannot_be_captured_is_done_plainly_with_one_warning(
    tmp_path, alone, captures, monkeypatch
):
    refuse_optimizer(monkeypatch, "adam")
    with pytest.warns(
        RuntimeWarning, match=r"steps of .* cannot be captured .*at its numbers.*plain"
    ) as warned:
        runs, endings = go(tmp_path, RECIPES[1:3])
    assert len(warned) == 1
    assert outcomes(endings) == ["finished"] * 2
    assert_as_alone(runs, alone[1:3])


def test_an_error_in_a_step_concerns_its_run_alone(tmp_path, alone, captures, monkeypatch):
    def fail_for_adam(task, outputs, targets):
        if task.recipe.optimizer == "adam":
            raise ValueError("the affinity has negative entries")

    before_method(monkeypatch, Classification, "loss", fail_for_adam)
    runs, endings = go(tmp_path, RECIPES[1:3])
    assert outcomes(endings) == ["finished", None]
    assert "negative entries" in str(endings.all[1].error)
    assert_as_alone(runs[:1], alone[1:2])


@pytest.mark.parametrize(("number", "saved"), [(0, []), (1, [4])])
def test_a_group_step_that_fails_saves_all_runs_before_it(
    tmp_path, alone, captures, monkeypatch, number, saved
):
    """They are captured together at their first step, and again at the smaller, last batch of the epoch."""
    capture = graph_group.capture_graph

    def refuse_one_pair(work, pool, generators=()):
        if len(generators) == 2 and sum(len(pair) == 2 for pair in captures) == number:
            raise CaptureError("no memory left")
        return capture(work, pool, generators)

    monkeypatch.setattr(graph_group, "capture_graph", refuse_one_pair)
    runs = [Run(tmp_path / str(number)) for number in range(2)]
    with pytest.raises(CaptureError, match="2 runs cannot be captured in one CUDA graph"):
        go(tmp_path, RECIPES[:2])
    assert [saved_steps(run) for run in runs] == [saved, saved]
    monkeypatch.setattr(graph_group, "capture_graph", capture)
    go(tmp_path, RECIPES[:2])
    assert_as_alone(runs, alone[:2])


def test_an_error_of_the_caller_meets_a_requested_step_and_a_plain_one(
    tmp_path, alone, captures, monkeypatch
):
    """The requested step was not done when the group does not step; the plain one was."""
    recipes = [RECIPES[0], RECIPES[2].with_(epochs=3), RECIPES[1].with_(epochs=2)]

    def fail(number, ending):
        raise ZeroDivisionError("of the caller")

    runs = [Run(tmp_path / str(number)) for number in range(3)]
    with monkeypatch.context() as patched:
        refuse_optimizer(patched, "adam")
        with pytest.warns(RuntimeWarning, match="cannot be captured"), pytest.raises(ZeroDivisionError):
            go(tmp_path, recipes, ended=fail)
    assert [run.is_finished for run in runs] == [False, False, True]
    # The third run ends when it should take its 11th step, which the others have asked for before.
    assert [saved_steps(run)[-1] for run in runs[:2]] == [10, 11]
    go(tmp_path, recipes[:1])
    assert_as_alone(runs[:1], alone[:1])


def test_a_run_that_cannot_be_resumed_leaves_the_group(tmp_path, captures, monkeypatch):
    group = GraphGroup(CPU)
    monkeypatch.setattr(scheduler, "make_options", lambda *arguments: Options(CPU, group, progress=False))
    run = Run(tmp_path / "0")
    run.write_recipe(RECIPES[0].to_dict())
    run.checkpoints_path.mkdir()
    (run.checkpoints_path / "00000005.json").write_text("{")
    _, endings = go(tmp_path, RECIPES[:1])
    assert isinstance(endings.all[0].error, CorruptDataError)
    assert group._members == {}


def session_in(group, folder, seed=0, **changes):
    recipe = tiny_recipe(**({"network": BASELINE, "seed": seed, "batch_size": 8} | changes))
    return Session(recipe, Run(folder / str(seed)), tiny_data(), CPU, group=group)


def test_a_requested_step_is_done_once_by_the_next_group_step(tmp_path, captures):
    group = GraphGroup(CPU)
    session, other = (session_in(group, tmp_path, seed) for seed in (0, 1))
    session.take_step()
    before = [parameter.detach().clone() for parameter in session.model.parameters()]
    assert float(session.losses.at(0)) == 0
    group.step()
    assert float(session.losses.at(0)) > 0
    assert float(other.losses.at(0)) == 0
    after = [parameter.detach().clone() for parameter in session.model.parameters()]
    assert not any(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    group.step()
    assert all(torch.equal(one, two) for one, two in zip(after, session.model.parameters(), strict=True))


def test_neither_the_order_of_requests_nor_a_new_rate_needs_another_capture(tmp_path, captures):
    group = GraphGroup(CPU)
    sessions = [session_in(group, tmp_path, seed, schedule="onecycle") for seed in (0, 1, 2)]
    for order in (sessions, sessions[::-1], sessions[1:] + sessions[:1]):
        for session in order:
            session.take_step()
        group.step()
    assert sorted(len(generators) for generators in captures) == [1, 1, 1, 3]


def test_a_removed_member_frees_its_number_its_graphs_and_its_request(tmp_path, captures):
    group = GraphGroup(CPU)
    sessions = [session_in(group, tmp_path, seed) for seed in (0, 1)]
    for session in sessions:
        session.take_step()
    group.step()
    assert [len(branches) for branches in group._captured] == [1, 1, 2]
    for session in sessions:
        session.take_step()
    sessions[0].close()
    assert [[member.number for member, _ in branches] for branches in group._captured] == [[1]]
    group.step()
    assert float(sessions[0].losses.at(1)) == 0
    assert float(sessions[1].losses.at(1)) > 0
    numbers = [group.add(SimpleNamespace(task=sessions[0].task)).number for _ in range(2)]
    assert numbers == [0, 2]


@pytest.mark.parametrize("size", [5, 24, 1000])
def test_the_captured_evaluation_covers_every_image_once(tmp_path, captures, monkeypatch, size):
    """24 images, in batches of each size and a smaller last one."""
    monkeypatch.setattr(evaluate_module, "CAPTURED_BATCH", size)
    session = session_in(None, tmp_path)
    evaluation = CapturedEvaluation(session.model, session.task, session.recipe)
    for _ in range(2):
        session.take_step()
        evaluation.launch()
        measured = evaluation.read()
        expected = evaluate(session.model, session.task, session.recipe)
        assert measured["error"] == pytest.approx(expected["error"], rel=1e-12)
        assert measured["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)
    assert len(captures) == 1, "one graph, made once"
    assert session.model.training


def test_an_evaluation_that_needs_too_much_memory_is_done_in_small_batches(tmp_path, captures, monkeypatch):
    session = session_in(GraphGroup(CPU), tmp_path)

    def fail(self):
        raise torch.cuda.OutOfMemoryError("out of memory")

    monkeypatch.setattr(CapturedEvaluation, "_compute", fail)
    with pytest.warns(RuntimeWarning, match=r"the evaluation of .* cannot be captured .*out of memory"):
        session.launch_evaluation()
    assert session.read_evaluation(lambda: False) == evaluate(session.model, session.task, session.recipe)
