"""A network and images of one's own in `fit`."""

from dataclasses import replace

import pytest
import torch
from tiny import assert_same_run, tiny_data, tiny_recipe, train
from torch import nn

from nonloc.cli.entry import main
from nonloc_paper.data.dataset import Dataset, Split
from nonloc_paper.runs import Run
from nonloc_paper.training.checkpoint import weights_sha256
from nonloc_paper.training.trained import trained_network

RECIPE = tiny_recipe(network="own-classifier/net", epochs=2)


def net(classes=3, activation=nn.ReLU):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), activation(), nn.Flatten(), nn.Linear(4 * 36, classes)
    )


def test_it_is_resumed_identically_and_comes_back_trained(tmp_path, capsys):
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    assert train(RECIPE, whole, model=net).ending == "finished"
    assert train(RECIPE, run, model=net, stop_after=0).ending == "interrupted"
    with pytest.raises(
        ValueError, match="network is 'own-classifier/net@.*was.*use the same recipe or a new folder"
    ):
        train(RECIPE, run, model=lambda: net(activation=nn.GELU))
    train(RECIPE, run, model=net)
    assert_same_run(run, whole)
    assert weights_sha256(trained_network(run, model=net)) == run.read_result()["weights_sha256"]
    with pytest.raises(ValueError, match="another network than the recipe's"):
        trained_network(run, model=lambda: net(classes=4))
    with pytest.raises(ValueError, match="own-classifier/net.* is a module of your own.*model="):
        trained_network(run)
    assert main(["eval", str(tmp_path), "--device", "cpu", "--quiet"]) == 2
    assert "is a module of your own" in capsys.readouterr().err


def test_the_seed_decides_the_weights_of_a_function_and_a_module_keeps_its_own(tmp_path):
    given = net()
    before = [value.clone() for value in given.state_dict().values()]
    recipe = RECIPE.with_(epochs=1, learning_rate=1e-30, weight_decay=0, augment=False)
    weights = {}
    for name, model, seed in (("a", net, 0), ("b", net, 1), ("module", given, 0)):
        train(recipe.with_(seed=seed), tmp_path / name, model=model)
        weights[name] = trained_network(tmp_path / name, model=model)[0].weight
    assert not weights["a"].equal(weights["b"])
    assert weights["module"].equal(before[0])
    assert all(map(torch.equal, given.state_dict().values(), before)), "a copy is trained"


def test_images_and_labels_may_be_numpy_arrays(tmp_path):
    tiny = tiny_data()
    splits = [Split(one.images.numpy(), one.labels.numpy()) for one in (tiny.train, tiny.test)]
    data = Dataset("tiny", *splits, classes=tiny.classes)
    assert data.sha256 == tiny.sha256
    with pytest.raises(ValueError, match="2 classes, so labels go from 0 to 1; got 0 to 2"):
        train(RECIPE, tmp_path / "run", model=net, data=replace(data, classes=("a", "b")))
    assert train(RECIPE.with_(epochs=1), tmp_path / "run", model=net, data=data).ending == "finished"


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (net, {"network": "preresnet8-basic/baseline"}, "own-classifier/NAME"),
        (None, {}, "is a module of your own.*give it as model= to fit"),
        (3, {}, "model must be a torch module or a function that makes one, got 3"),
        (lambda: 3, {}, "model must make a torch module, but made 3"),
        (lambda: net(classes=4), {}, r"must put out a tensor \[2, 3\].*got \[2, 4\]"),
        (net, {"network": "own-restorer/net"}, r"must put out a tensor \[2, 3, 8, 8\].*got \[2, 3\]"),
        (net, {"network": "own-classifier/net@0123456789ab"}, "its fingerprint is .*give the same network"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_folder(tmp_path, model, changes, message):
    with pytest.raises(ValueError, match=message):
        train(RECIPE.with_(**changes), tmp_path / "run", model=model)
    assert not (tmp_path / "run" / "recipe.json").exists()


@pytest.mark.parametrize("name", ["own-classifier/", "own-other/net", "own-classifier/a b"])
def test_other_names_of_own_networks_are_refused(name):
    with pytest.raises(ValueError, match="own-classifier/NAME"):
        tiny_recipe(network=name)
