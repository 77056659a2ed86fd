"""How long a run will take: from the same recipe with another seed, or from its own beginning."""

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.training.scheduler import seconds_to_go
from nonloc_paper.training.recipe import Recipe

RECIPE = Recipe(epochs=10)


def finished(path, seconds, ending="converged", device="cpu", **more):
    run = Run(path)
    run.write_recipe(RECIPE.to_dict())
    result = {"outcome": {"ending": ending}, "seconds": seconds, "machine": {"device": device}}
    run.write_result(result | more)
    return run


def begun(path, epoch, seconds):
    run = Run(path)
    run.write_recipe(RECIPE.to_dict())
    run.append_metrics({"epoch": epoch, "seconds": seconds})
    return run


def estimate(run, others=(), recipe=RECIPE):
    return seconds_to_go(recipe, run, others, "cpu")


def test_nothing_is_known_of_the_first(tmp_path):
    assert estimate(Run(tmp_path / "new")) is None


def test_a_finished_run_takes_no_time(tmp_path):
    assert estimate(finished(tmp_path / "run", 100.0)) == 0


def test_other_seeds_tell(tmp_path):
    others = [
        (RECIPE.with_(seed=1), finished(tmp_path / "1", 100.0)),
        (RECIPE.with_(seed=2), finished(tmp_path / "2", 120.0)),
    ]
    assert estimate(Run(tmp_path / "new"), others) == pytest.approx(110)


def test_a_result_that_does_not_say_how_long_it_took_is_corrupt(tmp_path):
    others = [(RECIPE.with_(seed=1), finished(tmp_path / "1", None))]
    with pytest.raises(CorruptDataError, match=r"1.result\.json lacks seconds; restore it"):
        estimate(Run(tmp_path / "new"), others)


def test_what_is_done_already_counts(tmp_path):
    others = [(RECIPE.with_(seed=1), finished(tmp_path / "1", 100.0))]
    assert estimate(begun(tmp_path / "run", 4, 1.0), others) == pytest.approx(60)


def test_its_own_beginning_tells_if_nothing_else_does(tmp_path):
    assert estimate(begun(tmp_path / "run", 4, 20.0)) == pytest.approx(30)


@pytest.mark.parametrize(
    "how",
    [{"ending": "diverged"}, {"device": "another"}, {"earlier": [{"machine": None, "seconds": 50.0}]}],
    ids=["diverged", "another device", "partly elsewhere"],
)
def test_what_does_not_compare_does_not_count(tmp_path, how):
    others = [(RECIPE.with_(seed=1), finished(tmp_path / "1", 100.0, **how))]
    assert estimate(Run(tmp_path / "new"), others) is None


def test_another_network_does_not_count(tmp_path):
    others = [(RECIPE, finished(tmp_path / "1", 100.0))]
    recipe = RECIPE.with_(network="preresnet20/diffusive-5@2")
    assert estimate(Run(tmp_path / "new"), others, recipe) is None
