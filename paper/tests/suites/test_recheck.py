"""recheck: the same network on the same images makes the same error."""

import shutil

import pytest
from small_map import CALM, WILD, small_data, small_part

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.suites.recheck import Recheck, recheck
from nonloc_paper.training.checkpoint import latest_valid, save_checkpoint
from nonloc_paper.training.fit import fit
from nonloc_paper.training.recipe import Recipe

DATA = small_data()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recheck") / "run"
    recipe = CALM.recipe(small_part(CALM, channels_last=True).base, 0)
    fit(recipe, folder, data=DATA, device="cpu", progress=False)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may change."""
    return Run(shutil.copytree(trained, tmp_path / "run"))


def change_result(run, **changes):
    run.write_result(run.read_result() | changes)


def test_on_the_same_machine_it_is_the_same_to_the_last_image(run):
    check = recheck(run, DATA, device="cpu")
    assert check.is_same_hardware
    assert (check.tolerance, check.images, check.agrees) == (0.0, 0, True)
    assert check.recomputed == check.stored == run.read_result()["metrics"]["error"]


def test_a_difference_is_counted_in_images(run):
    metrics = run.read_result()["metrics"]
    change_result(run, metrics=metrics | {"error": metrics["error"] - 100 / 16})
    check = recheck(run, DATA, device="cpu")
    assert (check.images, check.agrees) == (1, False)


@pytest.mark.parametrize(
    ("recomputed", "tolerance", "agrees"),
    [(8.69, 0.0, True), (8.70, 0.0, False), (8.74, 0.05, True), (8.75, 0.05, False)],
)
def test_one_image_of_ten_thousand_more_than_is_allowed_does_not_agree(recomputed, tolerance, agrees):
    check = Recheck(
        "error", 8.69, recomputed, None, tolerance == 0, tolerance, "cpu", "cpu", "float32", "float32"
    )
    assert check.agrees is agrees


@pytest.mark.parametrize("other", [{"device": "some GPU"}, {"cpu": "abacus"}])
def test_another_device_may_differ_by_a_little(run, other):
    result = run.read_result()
    change_result(
        run,
        machine=result["machine"] | other,
        metrics=result["metrics"] | {"error": result["metrics"]["error"] + 0.04},
    )
    check = recheck(run, DATA, device="cpu")
    assert (check.is_same_hardware, check.tolerance, check.agrees) == (False, 0.05, True)


@pytest.mark.parametrize(
    ("precision", "has_bfloat16", "count"),
    [("bfloat16", False, 1), ("bfloat16", True, 0), ("float32", False, 0)],
)
def test_a_message_comes_only_if_it_takes_long_and_another_precision_is_other_hardware(
    run, monkeypatch, precision, has_bfloat16, count
):
    monkeypatch.setattr("nonloc_paper.training.step.cpu_has_bfloat16", lambda: has_bfloat16)
    messages = []
    check = recheck(run, DATA, device="cpu", precision=precision, tell=messages.append)
    assert sum("has no bfloat16" in message for message in messages) == len(messages) == count
    assert check.is_same_hardware is (precision == "float32")


def test_other_weights_are_refused(run):
    recipe = Recipe.from_dict(run.read_recipe())
    checkpoint = latest_valid(run)
    next(value for name, value in checkpoint.tensors.items() if name.startswith("model.")).add_(1)
    save_checkpoint(run, recipe, checkpoint)
    with pytest.raises(CorruptDataError, match="are not those of its result"):
        recheck(run, DATA, device="cpu")


def test_other_data_are_refused(run):
    with pytest.raises(ValueError, match="was trained on other data"):
        recheck(run, small_data(train=50), device="cpu")


def test_a_diverged_run_has_nothing_to_evaluate(tmp_path):
    recipe = WILD.recipe(small_part(WILD).base, 0)
    fit(recipe, tmp_path, data=DATA, device="cpu", progress=False, throw=False)
    with pytest.raises(ValueError, match="diverged, so there is no network"):
        recheck(tmp_path, DATA, device="cpu")


def test_a_score_that_is_not_finite_is_nothing_to_compare_with(run):
    change_result(run, metrics=run.read_result()["metrics"] | {"error": None})
    with pytest.raises(ValueError, match="error that is not a finite number"):
        recheck(run, DATA, device="cpu")
