"""nonloc simulate: numbers that the theory asks for, files that can be opened, and errors that name the fix."""

import json

import numpy as np
import pytest
from PIL import Image

from nonloc.cli import main


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (10, 8, 3), dtype=np.uint8)
    path = tmp_path / "picture.png"
    Image.fromarray(pixels).save(path)
    return path


def simulated(capsys, picture, tmp_path, process, *options):
    code = main(
        ["simulate", process, "--image", str(picture), "--size", "10", "--steps", "6", "--json", "--quiet",
         "--output", str(tmp_path / "out"), *options]
    )  # fmt: skip
    return code, json.loads(capsys.readouterr().out)


def test_diffusion_keeps_the_mean_under_pi_and_loses_variance(capsys, picture, tmp_path):
    code, found = simulated(capsys, picture, tmp_path, "diffusion", "--bandwidth", "0.5")
    assert code == 0
    assert found["positions"] == 80
    assert found["weighted_mean"][-1] == pytest.approx(found["weighted_mean"][0], abs=1e-14)
    assert all(
        later < earlier for earlier, later in zip(found["variance"], found["variance"][1:], strict=False)
    )
    assert found["energy"][-1] < found["energy"][0]


def test_the_original_flow_fades_to_black(capsys, picture, tmp_path):
    _, found = simulated(capsys, picture, tmp_path, "damped", "--bandwidth", "2", "--steps", "40")
    assert abs(found["mean"][-1]) < 1e-3 * found["mean"][0]


def test_the_reversed_flow_gains_variance(capsys, picture, tmp_path):
    _, found = simulated(capsys, picture, tmp_path, "reverse", "--bandwidth", "0.5")
    assert found["variance"][-1] > 2 * found["variance"][0]


def test_a_law_keeps_its_total(capsys, picture, tmp_path):
    _, found = simulated(capsys, picture, tmp_path, "jump", "--bandwidth", "0.5")
    assert 80 * found["mean"][-1] == pytest.approx(1, abs=1e-13)


def test_the_files_are_there_and_open(capsys, picture, tmp_path):
    _, found = simulated(capsys, picture, tmp_path, "diffusion")
    names = [name.rsplit("/", 1)[1] for name in found["files"]]
    assert names == [
        "simulate-diffusion.svg",
        "simulate-diffusion.png",
        "states-diffusion.png",
        "simulate-diffusion.json",
    ]
    for name in found["files"][1:3]:
        with Image.open(name) as image:
            assert min(image.size) > 50
    kept = json.loads((tmp_path / "out" / "simulate-diffusion.json").read_text())
    assert kept["variance"] == found["variance"]


def test_a_step_far_beyond_the_limit_diverges_and_is_written(capsys, picture, tmp_path):
    code, found = simulated(capsys, picture, tmp_path, "reverse", "--step_size", "1e9", "--steps", "60")
    assert code == 3
    assert found["outcome"]["ending"] == "diverged"
    assert len(found["times"]) == found["outcome"]["step"]


def test_a_step_beyond_the_limit_is_taken_and_said_to_diverge(capsys, picture, tmp_path):
    code, found = simulated(capsys, picture, tmp_path, "diffusion", "--bandwidth", "0.5", "--step_size", "9")
    assert code == 3
    assert (found["outcome"]["ending"], found["outcome"]["step"]) == ("diverged", 2)
    assert "beyond the limit of stability" in found["outcome"]["message"]
    assert len(found["times"]) == 7


def test_a_jump_that_is_no_probability_is_a_usage_error(capsys, picture):
    assert main(["simulate", "jump", "--image", str(picture), "--size", "8", "--step_size", "2"]) == 2
    assert "the probability of a jump in one step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image", "no-such.png"], "there is no such file"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--bandwidth", "-1"], "--bandwidth must be > 0"),
        (["--bandwidth", "1e-200"], "--bandwidth must be > 0, and at least 1e-100"),
        (["--size", "100000"], "--size must be at most"),
        (["--device", "gpu"], "--device gpu cannot be used here"),
        (["--normalize", "softmax"], "softmax"),
    ],
)
def test_wrong_options_are_usage_errors(capsys, options, message):
    assert main(["simulate", "diffusion", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_image_is_named(capsys, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("no picture")
    assert main(["simulate", "diffusion", "--image", str(path)]) == 2
    assert "cannot be read as an image" in capsys.readouterr().err
