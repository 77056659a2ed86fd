"""Convoys without a device: who rides along changes nothing but how often something is recorded."""

from types import SimpleNamespace

import pytest
import torch
from replayed import without_a_device
from tiny import timeless_metrics, tiny_data, tiny_recipe

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.training import graphs, many
from nonloc_paper.training.graph_group import Convoy
from nonloc_paper.training.graph_group import CaptureError
from nonloc_paper.training.loop import fit
from nonloc_paper.training.scheduler import fit_many
from nonloc_paper.training.session import Session
from nonloc_paper.training.tasks import Classification
from nonloc_paper.training.loop import Options

CPU = torch.device("cpu")
RECIPES = [
    tiny_recipe(network="preresnet8-basic/baseline"),
    tiny_recipe(network="preresnet8-basic/baseline", seed=1),
    tiny_recipe(seed=2, epochs=2, optimizer="adam", learning_rate=0.01),
    tiny_recipe(network="preresnet8-basic/baseline", seed=3, batch_size=20, epochs=4),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    runs = [Run(tmp_path_factory.mktemp("alone") / str(number)) for number in range(len(RECIPES))]
    for recipe, run in zip(RECIPES, runs, strict=True):
        fit(recipe, run, data=tiny_data(), device="cpu", progress=False)
    return runs


@pytest.fixture
def recordings(monkeypatch):
    """The generators of every recording; `fit_many` gets a convoy, which on the CPU it would not make itself."""
    found = without_a_device(monkeypatch)
    monkeypatch.setattr(many, "make_options", lambda *given: Options(CPU, Convoy(CPU), progress=False))
    return found


def go(folder, recipes=RECIPES, side_by_side=4):
    runs = [Run(folder / str(number)) for number in range(len(recipes))]
    return runs, fit_many(recipes, runs, side_by_side=side_by_side, data={"tiny": tiny_data()})


def assert_as_alone(runs, alone):
    for run, expected in zip(runs, alone, strict=True):
        assert run.read_result()["weights_sha256"] == expected.read_result()["weights_sha256"]
        for line, other in zip(timeless_metrics(run), timeless_metrics(expected), strict=True):
            # The batches of the captured evaluation are larger, so that its sums are rounded in another order.
            assert line.pop("test_loss") == pytest.approx(other.pop("test_loss"), rel=1e-5)
            assert line == other


def endings_of(endings):
    return [ending.outcome and ending.outcome.ending for ending in endings.all]


@pytest.mark.parametrize("side_by_side", [1, 2, 4])
def test_every_run_is_what_it_is_alone_to_the_bit(tmp_path, alone, recordings, side_by_side):
    """Of other lengths, batch sizes and optimizers, so that the company changes several times."""
    runs, endings = go(tmp_path, side_by_side=side_by_side)
    assert endings_of(endings) == ["finished"] * 4
    assert_as_alone(runs, alone)


def test_runs_that_keep_step_are_recorded_together_once(tmp_path, recordings):
    go(tmp_path, RECIPES[:2])
    # A whole and a last batch: each run alone, then both together; and each run's evaluation.
    assert sorted(len(generators) for generators in recordings) == [0, 0, 1, 1, 1, 1, 2, 2]


def test_a_run_in_the_middle_of_its_epoch_joins_one_at_the_start(tmp_path, alone, recordings, monkeypatch):
    """Resumed after 3 steps, beside a new one: their last batches do not come at the same time."""
    stops = iter([False] * 3 + [True] * 100)
    with monkeypatch.context() as patched:
        patched.setattr(many.Stopping, "reason", property(lambda self: "Enough." if next(stops) else ""))
        _, endings = go(tmp_path, RECIPES[:1])
    step = endings.all[0].outcome.step
    assert 0 < step < 4
    recordings.clear()
    runs, _ = go(tmp_path, RECIPES[:2])
    assert_as_alone(runs, alone[:2])
    pairs = [generators for generators in recordings if len(generators) == 2]
    assert len(pairs) == 3, "both whole, and each with its last batch"


def test_a_diverging_run_hurts_nobody(tmp_path, alone, recordings):
    recipes = [RECIPES[0], RECIPES[1].with_(learning_rate=1e30, momentum=0.0), RECIPES[3]]
    expected = fit(
        recipes[1], tmp_path / "plain", data=tiny_data(), device="cpu", progress=False, throw=False
    )
    runs, endings = go(tmp_path, recipes)
    assert endings.all[1].outcome == expected
    assert expected.ending == "diverged"
    assert_as_alone([runs[0], runs[2]], [alone[0], alone[3]])


def test_one_that_cannot_be_captured_goes_alone_with_one_warning(tmp_path, alone, recordings, monkeypatch):
    record = graphs.record

    def refuse_adam(work, pool, generators=()):
        cells = [cell.cell_contents for cell in work.__closure__ or ()]
        parties = [cell for cell in cells if isinstance(cell, tuple)]
        if any(rider.step.recipe.optimizer == "adam" for party in parties for rider, _ in party):
            assert len(generators) == 1, "it was to be recorded alone before it rides with others"
            raise CaptureError("it looks at its numbers")
        return record(work, pool, generators)

    monkeypatch.setattr(graphs, "record", refuse_adam)
    with pytest.warns(
        RuntimeWarning, match=r"steps of .* cannot be captured .*looks at its numbers"
    ) as warned:
        runs, endings = go(tmp_path, RECIPES[:3])
    assert len(warned) == 1
    assert endings_of(endings) == ["finished"] * 3
    assert_as_alone(runs, alone[:3])


def test_an_error_in_one_step_is_that_runs_alone(tmp_path, alone, recordings, monkeypatch):
    loss = Classification.loss

    def fail_for_adam(self, outputs, targets):
        if self.recipe.optimizer == "adam":
            raise ValueError("the affinity has negative entries")
        return loss(self, outputs, targets)

    monkeypatch.setattr(Classification, "loss", fail_for_adam)
    runs, endings = go(tmp_path, RECIPES[:3])
    assert endings_of(endings) == ["finished", "finished", None]
    assert "negative entries" in str(endings.all[2].error)
    assert_as_alone(runs[:2], alone[:2])


def saved_steps(run):
    return max((int(path.stem) for path in run.checkpoints_path.glob("*.json")), default=0)


@pytest.mark.parametrize(("number", "saved"), [(0, 0), (1, 4)])
def test_a_departure_that_fails_saves_everybody_before_the_step_that_was_not_done(
    tmp_path, alone, recordings, monkeypatch, number, saved
):
    """They are recorded together at their first step, and again at the last, smaller batch of the first epoch."""
    record = graphs.record

    def refuse_one_pair(work, pool, generators=()):
        if len(generators) == 2 and sum(len(pair) == 2 for pair in recordings) == number:
            raise CaptureError("no memory left")
        return record(work, pool, generators)

    monkeypatch.setattr(graphs, "record", refuse_one_pair)
    runs = [Run(tmp_path / str(number)) for number in range(2)]
    with pytest.raises(CaptureError, match="2 runs cannot be captured in one CUDA graph"):
        go(tmp_path, RECIPES[:2])
    assert [saved_steps(run) for run in runs] == [saved, saved]
    assert all(run.checkpoints_path.exists() == (saved > 0) for run in runs)
    monkeypatch.setattr(graphs, "record", record)
    go(tmp_path, RECIPES[:2])
    assert_as_alone(runs, alone[:2])


def test_an_error_of_the_caller_finds_one_aboard_and_one_that_went_alone(
    tmp_path, alone, recordings, monkeypatch
):
    """Aboard, the last step was not done when the convoy does not depart; alone, it was."""
    record = graphs.record

    def refuse_the_second_recipe(work, pool, generators=()):
        cells = [cell.cell_contents for cell in work.__closure__ or ()]
        parties = [cell for cell in cells if isinstance(cell, tuple)]
        if any(rider.step.recipe == RECIPES[1] for party in parties for rider, _ in party):
            raise CaptureError("it looks at its numbers")
        return record(work, pool, generators)

    def fail(number, ending):
        raise ZeroDivisionError("of the caller")

    monkeypatch.setattr(graphs, "record", refuse_the_second_recipe)
    runs = [Run(tmp_path / str(number)) for number in range(3)]
    with (
        pytest.warns(RuntimeWarning, match="cannot be captured"),
        pytest.raises(ZeroDivisionError, match="of the caller"),
    ):
        fit_many(RECIPES[:3], runs, side_by_side=3, data={"tiny": tiny_data()}, ended=fail)
    assert not any(run.is_finished for run in runs[:2])
    assert runs[2].is_finished
    # The third ends when it should take its 11th step, for which the others were asked before.
    assert [saved_steps(run) for run in runs[:2]] == [10, 11]
    monkeypatch.setattr(graphs, "record", record)
    go(tmp_path, RECIPES[:3])
    assert_as_alone(runs, alone[:3])


def test_a_run_that_cannot_be_resumed_gives_its_seat_back(tmp_path, alone, recordings, monkeypatch):
    convoy = Convoy(CPU)
    monkeypatch.setattr(many, "make_options", lambda *given: Options(CPU, convoy, progress=False))
    run = Run(tmp_path / "0")
    run.write_recipe(RECIPES[0].to_dict())
    run.checkpoints_path.mkdir()
    (run.checkpoints_path / "00000005.json").write_text("{")
    _, endings = go(tmp_path, RECIPES[:1])
    assert isinstance(endings.all[0].error, CorruptDataError)
    assert convoy._riders == {}


def session_in(convoy, folder, seed=0):
    recipe = tiny_recipe(network="preresnet8-basic/baseline", seed=seed, batch_size=8)
    return Session(recipe, Run(folder / str(seed)), tiny_data(), CPU, convoy=convoy)


def test_nothing_is_done_before_the_departure_and_one_step_at_it(tmp_path, recordings):
    convoy = Convoy(CPU)
    session, other = (session_in(convoy, tmp_path, seed) for seed in (0, 1))
    session.take_step()
    before = [parameter.detach().clone() for parameter in session.model.parameters()]
    assert float(session._losses.place(0)) == 0
    convoy.depart()
    assert float(session._losses.place(0)) > 0
    assert float(other._losses.place(0)) == 0
    after = [parameter.detach().clone() for parameter in session.model.parameters()]
    assert not any(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    convoy.depart()
    assert all(torch.equal(one, two) for one, two in zip(after, session.model.parameters(), strict=True))


def test_the_order_of_boarding_is_no_reason_to_record_again(tmp_path, recordings):
    convoy = Convoy(CPU)
    sessions = [session_in(convoy, tmp_path, seed) for seed in (0, 1, 2)]
    for order in (sessions, sessions[::-1], sessions[1:] + sessions[:1]):
        for session in order:
            session.take_step()
        convoy.depart()
    assert sorted(len(generators) for generators in recordings) == [1, 1, 1, 3]


def test_who_leaves_frees_its_seat_and_the_graphs_it_rode_in(tmp_path, recordings):
    convoy = Convoy(CPU)
    sessions = [session_in(convoy, tmp_path, seed) for seed in (0, 1)]
    for session in sessions:
        session.take_step()
    convoy.depart()
    assert [len(party) for party in convoy._recorded] == [1, 1, 2]
    sessions[0].close()
    assert [[rider.seat for rider, _ in party] for party in convoy._recorded] == [[1]]
    assert convoy.join(SimpleNamespace(task=sessions[0].task)).seat == 0
    assert convoy.join(SimpleNamespace(task=sessions[0].task)).seat == 2


def test_who_leaves_while_aboard_stays_behind(tmp_path, recordings):
    convoy = Convoy(CPU)
    session, other = (session_in(convoy, tmp_path, seed) for seed in (0, 1))
    session.take_step()
    other.take_step()
    session.close()
    convoy.depart()
    assert float(session._losses.place(0)) == 0
    assert float(other._losses.place(0)) > 0
