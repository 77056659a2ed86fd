"""nonloc stability and nonloc spectrum on a trained run."""

import inspect
import json
import math

import pytest
import torch
from jsonargparse import ArgumentParser

from nonloc.cli import main
from nonloc.nn.stage import stages
from nonloc_paper.commands import stability
from nonloc_paper.commands.stability import _growth, _text
from nonloc_paper.paths import results_folder
from nonloc_paper.runs import Run
from nonloc_paper.training.certificates import certify_run
from nonloc_paper.training.trained import trained_network


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stability") / "run"
    words = (
        "train --network restorer8/diffusive-2@2 --data motifs --train_images 64 --test_images 16 --epochs 1 "
    )
    words += f"--batch_size 16 --optimizer adam --learning_rate 0.01 --augment false --quiet --run {folder}"
    assert main(words.split()) == 0
    return folder


@pytest.mark.parametrize(
    ("verdict", "growth", "text"),
    [
        ("unstable", 1.00022, "1.0002"),
        ("unstable", 1.0000003, "1.0000003"),
        ("unstable", 1.6264, "1.626"),
        ("unstable", math.inf, "inf"),
        ("stable", 1.0000003, "1"),
        ("stable", 1.0, "1"),
    ],
)
def test_what_grows_is_out_from_1(verdict, growth, text):
    assert _growth({"verdict": verdict, "growth": growth}) == text


def test_no_eigenvalue_is_minus_zero():
    block = {"verdict": "stable", "growth": 1.0, "largest": 0.5, "lowest": -1e-9, "limit": 1.5}
    stage = {"name": "stage", "num_blocks": 1, "form": "diffusive", "positions": 4, "logit_spread": None}
    text = _text(stage | {"verdict": "stable", "growth": 1.0, "norm": "‖z‖", "reason": "", "blocks": [block]})
    assert text.splitlines()[-1].split() == ["1", "stable", "1", "0.500", "0.000", "1.500"]


def test_an_output_that_is_a_file_is_refused_before_the_work(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("nonloc_paper.training.certificates.certify_run", None)
    place = tmp_path / "file"
    place.touch()
    assert main(["stability", str(run), "--output", str(place)]) == 2
    assert f"--output {place} is a file; name a folder" in capsys.readouterr().err


def test_the_numbers_are_printed_and_recorded(run, capsys, tmp_path):
    assert main(["stability", str(run), "--images", "1", "--json", "--keep"]) == 0
    result = json.loads(capsys.readouterr().out)
    (stage,) = result["stages"]
    assert stage["verdict"] in ("stable", "unstable", "not decided")
    weights = [weight.detach().double() for weight in next(stages(trained_network(Run(run))))[1].weights()]
    lowest = [float(torch.linalg.eigvalsh((weight + weight.T) / 2)[0]) for weight in weights]
    assert [block["lowest"] for block in stage["blocks"]] == pytest.approx(lowest)
    assert result["figures"] == [str(run / "stability.svg"), str(run / "stability.png")]
    assert (run / "stability.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((run / "stability.json").read_text())
    assert (record["images"], record["stages"]) == (1, result["stages"])
    assert (record["machine"]["device"], record["versions"]["torch"]) == ("cpu", torch.__version__)
    text = _text(stage)
    assert "2 diffusive sub-blocks on 144 positions" in text
    assert stage["verdict"].upper() in text
    assert "logits of a row differ by up to" in text
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
    assert "Whether trained stages can make a signal grow" in (tmp_path / "page.html").read_text()


def test_by_default_it_looks_at_as_many_images_as_the_records():
    parser = ArgumentParser()
    stability.add_arguments(parser)
    asked = parser.get_default("images")
    assert asked == inspect.signature(certify_run).parameters["images"].default
    records = results_folder().glob("*/*/*/stability.json")
    assert {json.loads(path.read_text())["images"] for path in records} == {asked}


def test_features_are_looked_at_when_they_are_asked_for(run, capsys, tmp_path):
    words = ["spectrum", str(run), "--output", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "--features does" in out
    assert "along features" not in out
    assert not (tmp_path / "features.svg").exists()
    assert main([*words, "--features"]) == 0
    assert (tmp_path / "features.svg").exists()
    seen = json.loads((tmp_path / "observations.json").read_text())
    assert not (run / "observations.json").exists()
    quotient = seen["features"][0]["blocks"][0]["quotient"]
    out = capsys.readouterr().out
    (first,) = [line for line in out.splitlines() if line.startswith("      1  ")]
    assert first.endswith(f"{quotient:17.3f}")
    assert "Along features: ⟨g, ΔZ⟩ / ⟨g, g⟩" in out
