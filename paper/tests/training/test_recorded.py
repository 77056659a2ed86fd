"""Recorded networks in one line: a name, a model, and what it needs to look at images."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nonloc_paper import load, models
from nonloc_paper.data.cifar import read_cifar
from nonloc_paper.data.download import SOURCES
from nonloc_paper.runs import Run
from nonloc_paper.training.recorded import STATISTICS
from nonloc_paper.training.tasks import pixel_statistics
from nonloc_paper.training.trained import trained_network

NAME = "table1/5-block-proposed"


def test_it_comes_as_it_was_recorded():
    one = load(NAME)
    (path,) = (Path(__file__).parents[2] / "results" / NAME).glob("*/checkpoints")
    run = Run(path.parent)
    assert (one.error, one.recipe.seed) == (run.read_result()["metrics"]["error"], int(run.path.name))
    x = one.preprocess(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    with torch.no_grad():
        scores = one.model(x)
        assert torch.equal(scores, trained_network(run)(x))
    assert scores.shape == (2, len(one.classes)) == (2, 10)


def test_images_are_prepared_by_the_recorded_statistics():
    one, images = load(NAME), torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    mean = load_file(STATISTICS)["cifar10.mean"]
    assert one.recipe.pixel_scale == 64  # a power of two: dividing by it rounds nothing
    assert torch.equal(one.preprocess(images), (images.float() - mean) / 64)


def test_all_of_them_are_listed_and_a_wrong_name_lists_them():
    assert NAME in models()
    with pytest.raises(ValueError, match=f"'table9' is no recorded network; choose one of .*{NAME}"):
        load("table9")


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("cifar10/baseline", "table1/baseline"),  # of the other backbone there are no weights
        ("cifar10/original-4", "table1-n3/4-block-original"),
        ("cifar10/proposed-5", "table1-n3/5-block-proposed"),
        ("cifar10/proposed-5-own", "table1-n3/5-block-proposed-own-affinities"),
    ],
)
def test_short_names(short, name):
    assert load(short).name == name


def test_images_of_another_kind_are_refused():
    preprocess = load(NAME).preprocess
    for wrong in (torch.rand(1, 3, 32, 32), torch.zeros(1, 32, 32, 3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"images must be uint8 \[N, 3, 32, 32\]"):
            preprocess(wrong)


def test_without_records_it_says_where_they_are(monkeypatch):
    monkeypatch.setenv("NONLOC_RESULTS", "nowhere")
    with pytest.raises(ValueError, match="NONLOC_RESULTS"):
        models()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_statistics_are_those_of_the_official_files(name):
    folder = Path(os.environ.get("NONLOC_DATA", ""))
    if not all((folder / SOURCES[name].folder / one.file).is_file() for one in SOURCES[name].members):
        pytest.skip(f"set NONLOC_DATA to a folder with {SOURCES[name].folder}/ to check the official files")
    mean, deviation = pixel_statistics(read_cifar(name, folder).train.images)
    recorded = load_file(STATISTICS)
    assert torch.equal(recorded[f"{name}.mean"], mean)
    assert float(recorded[f"{name}.deviation"]) == deviation
