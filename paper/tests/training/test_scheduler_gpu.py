"""Several runs on one CUDA device: each ends as it would alone."""

import signal

import pytest
from tiny import after_step, outcomes, send_sigterm, timeless_metrics, tiny_data, tiny_recipe, train_together

from nonloc_paper.runs import Run
from nonloc_paper.training.fit import fit
from nonloc_paper.training.tasks import Classification

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("deterministic")]

RECIPES = [
    tiny_recipe(network="preresnet11/diffusive-2@2", stage={"backend": "reference"}, batch_size=32, epochs=4),
    tiny_recipe(network="preresnet11/baseline", seed=1, batch_size=16, epochs=3),
    tiny_recipe(network="preresnet11/baseline", seed=2, batch_size=32, epochs=5),
]


def data():
    return tiny_data(train=144, size=16)


def go(folder, recipes=RECIPES, side_by_side=2, **options):
    return train_together(recipes, folder, side_by_side, data={"tiny": data()}, device="cuda", **options)


def assert_as_alone(recipes, runs, folder):
    for number, (recipe, run) in enumerate(zip(recipes, runs, strict=True)):
        alone = Run(folder / f"alone-{number}")
        fit(recipe, alone, data=data(), device="cuda", progress=False)
        assert timeless_metrics(run) == timeless_metrics(alone)
        assert run.read_result()["weights_sha256"] == alone.read_result()["weights_sha256"]


@pytest.mark.parametrize("side_by_side", [2, 3])
def test_runs_side_by_side_equal_the_same_runs_alone(tmp_path, side_by_side):
    """Deterministic kernels in the same order in each branch: equal to the bit, whatever the other members."""
    runs, endings = go(tmp_path, side_by_side=side_by_side)
    assert outcomes(endings) == ["finished"] * 3
    assert_as_alone(RECIPES, runs, tmp_path)


def test_runs_in_bfloat16_equal_the_same_runs_alone(tmp_path):
    recipes = [
        tiny_recipe(
            network="preresnet20/baseline", seed=seed, batch_size=32, precision="bfloat16", channels_last=True
        )
        for seed in range(4)
    ]
    runs, _ = go(tmp_path, recipes, side_by_side=4)
    assert_as_alone(recipes, runs, tmp_path)


def test_a_run_that_cannot_be_captured_is_trained_plainly_with_its_warning(tmp_path, monkeypatch):
    loss = Classification.loss

    def loss_and_look(self, outputs, targets):
        value = loss(self, outputs, targets)
        if self.recipe.seed == 1:
            assert float(value) >= 0
        return value

    monkeypatch.setattr(Classification, "loss", loss_and_look)
    with pytest.warns(RuntimeWarning, match="cannot be captured") as warned:
        runs, endings = go(tmp_path, side_by_side=3)
    assert sum("cannot be captured" in str(each.message) for each in warned) == 1
    assert outcomes(endings) == ["finished"] * 3
    monkeypatch.undo()
    for number in (0, 2):
        alone = Run(tmp_path / f"alone-{number}")
        fit(RECIPES[number], alone, data=data(), device="cuda", progress=False)
        assert timeless_metrics(runs[number]) == timeless_metrics(alone)


def test_one_copy_of_the_images_serves_all(tmp_path, monkeypatch):
    seen = set()
    train_batch = Classification.train_batch

    def train_batch_and_look(self, indices, generator):
        seen.add(self.train.images.data_ptr())
        return train_batch(self, indices, generator)

    monkeypatch.setattr(Classification, "train_batch", train_batch_and_look)
    go(tmp_path, side_by_side=3)
    assert len(seen) == 1


def test_divergence_and_failure_do_not_affect_the_others(tmp_path):
    recipes = [*RECIPES[:2], RECIPES[2].with_(learning_rate=1e30), RECIPES[2].with_(train_images=10_000)]
    _, endings = go(tmp_path, recipes, side_by_side=4)
    assert outcomes(endings) == ["finished", "finished", "diverged", None]
    assert "train_images=10000" in str(endings.all[3].error)


def test_a_signal_saves_all_and_they_resume_to_the_same_end(tmp_path, monkeypatch):
    after_step(monkeypatch, 7, send_sigterm, seed=RECIPES[0].seed)
    runs, endings = go(tmp_path / "stopped")
    assert endings.signal == signal.SIGTERM
    assert outcomes(endings) == ["interrupted", "interrupted", None]
    monkeypatch.undo()
    go(tmp_path / "stopped")
    whole, _ = go(tmp_path / "whole")
    for run, expected in zip(runs, whole, strict=True):
        assert timeless_metrics(run) == timeless_metrics(expected)


def test_an_error_of_the_caller_saves_all_and_they_resume_to_the_same_end(tmp_path):
    """The second run ends first; the first, on its way, has not been saved by then."""

    def fail(number, ending):
        raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        go(tmp_path / "stopped", checkpoint_every=100, ended=fail)
    assert any((tmp_path / "stopped" / "0" / "checkpoints").glob("*.json"))
    runs, _ = go(tmp_path / "stopped")
    whole, _ = go(tmp_path / "whole")
    for run, expected in zip(runs, whole, strict=True):
        assert timeless_metrics(run) == timeless_metrics(expected)
