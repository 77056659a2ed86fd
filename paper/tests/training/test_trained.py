"""The trained network out of its run folder."""

import shutil

import pytest
import torch
from tiny import tiny_data, tiny_recipe, train, train_together, unusual_defaults

from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import weights_sha256
from nonloc_paper.training.trained import trained_network


def test_it_is_the_network_at_the_end_of_the_run(tmp_path):
    train(tiny_recipe(epochs=1), tmp_path / "run")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    model = trained_network(tmp_path / "run")
    assert weights_sha256(model) == Run(tmp_path / "run").read_result()["weights_sha256"]
    assert not model.training
    assert torch.rand(1).equal(expected)


@pytest.mark.parametrize("together", [False, True])
def test_runs_and_their_networks_do_not_depend_on_the_caller_s_defaults(tmp_path, together):
    # Noise and Adam's numbers would be float64 and elsewhere, too.
    recipe = tiny_recipe(network="restorer4/diffusive-1@2", epochs=1, optimizer="adam")
    train(recipe, tmp_path / "usual")
    data = tiny_data(labels=False)
    with unusual_defaults():
        if together:
            train_together([recipe], tmp_path, 1, data={"tiny": data})
        else:
            train(recipe, tmp_path / "0", data=data)
        model = trained_network(tmp_path / "0")
    usual = Run(tmp_path / "usual").read_result()["weights_sha256"]
    assert Run(tmp_path / "0").read_result()["weights_sha256"] == usual
    assert weights_sha256(model) == usual


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    run = Run(tmp_path / "run")
    run.write_recipe(tiny_recipe().to_dict())
    with pytest.raises(ValueError, match="no checkpoint yet"):
        trained_network(run)


@pytest.fixture
def row(tmp_path):
    """A finished run in row/0; in row/1 the same with another seed, in row/2 with another rate as well."""
    train(tiny_recipe(epochs=1), tmp_path / "0")
    for place, changes in (("1", {"seed": 1}), ("2", {"seed": 2, "learning_rate": 0.02})):
        shutil.copytree(tmp_path / "0", tmp_path / place)
        Run(tmp_path / place).write_recipe(tiny_recipe(epochs=1, **changes).to_dict())
    return tmp_path


def test_a_finished_run_whose_weights_were_not_kept_names_other_seeds_and_the_way_to_train_it(row):
    shutil.rmtree(row / "0" / "checkpoints")
    (row / "2" / "recipe.json").write_text("damaged")
    with pytest.raises(ValueError, match=r"is finished, but its weights were not kept") as caught:
        trained_network(row / "0")
    assert f"those of like runs are in {row / '1'}; " in str(caught.value)
    assert f"nonloc train --config {row / '0' / 'recipe.json'} --run DIR" in str(caught.value)
    shutil.rmtree(row / "1" / "checkpoints")
    with pytest.raises(ValueError, match="no like run next to it has any"):
        trained_network(row / "0")


def test_a_diverged_run_without_weights_says_that_it_diverged(row):
    run = Run(row / "0")
    shutil.rmtree(run.checkpoints_path)
    result = run.read_result()
    run.write_result(result | {"outcome": result["outcome"] | {"ending": "diverged", "step": 2888}})
    with pytest.raises(ValueError, match="diverged, at step 2,888, and has no weights"):
        trained_network(run)
