"""nonloc simulate: numbers that the theory asks for, files that can be opened, and errors that name the fix."""

import json
import os
from pathlib import Path

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
    code, record = simulated(capsys, picture, tmp_path, "diffusion", "--bandwidth", "0.5")
    assert code == 0
    assert record["positions"] == 80
    assert record["weighted_mean"][-1] == pytest.approx(record["weighted_mean"][0], abs=1e-14)
    assert all(
        later < earlier for earlier, later in zip(record["variance"], record["variance"][1:], strict=False)
    )
    assert record["energy"][-1] < record["energy"][0]


def test_the_original_flow_fades_to_black(capsys, picture, tmp_path):
    _, record = simulated(capsys, picture, tmp_path, "damped", "--bandwidth", "2", "--steps", "40")
    assert abs(record["mean"][-1]) < 1e-3 * record["mean"][0]


def test_the_reversed_flow_gains_variance(capsys, picture, tmp_path):
    _, record = simulated(capsys, picture, tmp_path, "reverse", "--bandwidth", "0.5")
    assert record["variance"][-1] > 2 * record["variance"][0]


def test_a_law_keeps_its_total(capsys, picture, tmp_path):
    _, record = simulated(capsys, picture, tmp_path, "jump", "--bandwidth", "0.5")
    assert 80 * record["mean"][-1] == pytest.approx(1, abs=1e-13)


def test_the_files_are_there_and_open(capsys, picture, tmp_path):
    _, record = simulated(capsys, picture, tmp_path, "diffusion")
    names = [name.rsplit("/", 1)[1] for name in record["files"]]
    assert names == [
        "simulate-diffusion.svg",
        "simulate-diffusion.png",
        "states-diffusion.png",
        "simulate-diffusion.json",
    ]
    for name in record["files"][1:3]:
        with Image.open(name) as image:
            assert min(image.size) > 50
    saved = json.loads((tmp_path / "out" / "simulate-diffusion.json").read_text())
    assert saved["variance"] == record["variance"]


@pytest.mark.parametrize("number", [0, 3, 4])  # of the files that are new by then
def test_an_interruption_leaves_whole_files(capsys, picture, tmp_path, monkeypatch, number):
    """It comes between the last byte of a file and its name; those that are not new yet stay as they were."""
    _, record = simulated(capsys, picture, tmp_path, "diffusion", "--animate")
    before = {path: path.read_bytes() for path in map(Path, record["files"])}
    replace, done = os.replace, []

    def interrupt(source, target):
        if len(done) == number:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupt)
    words = ["--size", "10", "--steps", "2", "--animate", "--quiet", "--output", str(tmp_path / "out")]
    assert main(["simulate", "diffusion", "--image", str(picture), *words]) == 130
    after = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert after.keys() == before.keys()
    assert [path for path in before if after[path] != before[path]] == done


def test_a_step_far_beyond_the_limit_diverges_and_is_written(capsys, picture, tmp_path, monkeypatch):
    monkeypatch.setattr("nonloc.cli.simulate.MOST_FRAMES", 10)
    words = ("--step_size", "1e9", "--steps", "60", "--animate")
    code, record = simulated(capsys, picture, tmp_path, "reverse", *words)
    assert code == 3
    with Image.open(record["files"][-1]) as image:
        assert image.n_frames == 10 < len(record["times"])
    assert record["outcome"]["ending"] == "diverged"
    assert len(record["times"]) == record["outcome"]["step"]


@pytest.mark.parametrize("words", ["exact --step_size 10", "euler --step_size 1e5"])
def test_no_stepper_is_advised_where_the_solution_grows(capsys, picture, tmp_path, words):
    """All 80 pixels are alike, so that 80 is an eigenvalue: a step multiplies by exp(800), or by 8,000,001."""
    alike = ("--bandwidth", "1e9", "--normalize", "none", "--steps", "200", "--stepper", *words.split())
    code, record = simulated(capsys, picture, tmp_path, "reverse", *alike)
    assert code == 3
    advice = "a shorter time, by fewer or smaller steps,"
    assert record["outcome"]["message"].endswith(f"not finite; {advice} may help.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image", "no-such.png"], "there is no such file"),
        (["--image", "."], "--image . is a folder; give an image file in it"),
        (["--size", "1"], "use --radius 0, or a larger image"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--bandwidth", "-1"], "--bandwidth must be between 1e-05 and 1e+09"),
        (["--size", "100000"], "--size must be at most"),
        (["--steps", str(10**20)], "GiB of memory, and this machine has"),
        (["--device", "gpu"], "--device gpu cannot be used here"),
        (["--normalize", "softmax"], "softmax"),
    ],
)
def test_wrong_options_are_usage_errors(capsys, options, message):
    assert main(["simulate", "diffusion", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("jump --step_size 2", "several steps, or simulate with --stepper exact or implicit\n"),
        ("jump --normalize none", "and --normalize none does not"),
        ("damped --stepper exact --step_size 1e20", "use --step_size ≤ 2.3e+12, when"),
        ("diffusion --stepper implicit --step_size 1e300", "a smaller --step_size, or --stepper exact\n"),
        ("diffusion --radius -1", "error: --radius must be"),
        ("reverse --stepper implicit", "use --stepper exact, whose steps may be of any length"),
    ],
)
def test_what_the_library_says_names_options_of_the_command(capsys, picture, words, message):
    assert main(["simulate", "--image", str(picture), "--size", "10", "--quiet", *words.split()]) > 0
    said = capsys.readouterr().err
    assert message in said
    assert not any(f"{name}=" in said for name in ("step_size", "stepper", "normalize"))


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_simulation(
    capsys, picture, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))
    monkeypatch.setattr("nonloc.processes.simulate", None)
    assert main(["simulate", "diffusion", "--image", str(picture), "--output", str(tmp_path)]) == 1
    assert f"--output {tmp_path} cannot be written to; name another folder" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--image", "--output"])
@pytest.mark.parametrize("name", ["stepper", "my radius = 3", "normalize='row'"])
def test_names_of_files_are_shown_as_they_were_given(capsys, picture, tmp_path, monkeypatch, option, name):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("no picture and no folder")
    assert main(["simulate", "diffusion", "--image", str(picture), option, name]) == 2
    assert f"error: {option} {name} " in capsys.readouterr().err


def test_what_is_said_to_people_is_how_a_simulation_ends(capsys, picture, tmp_path):
    command = ["simulate", "diffusion", "--image", str(picture), "--size", "10", "--bandwidth", "0.5", "--quiet",
               "--steps", "4", "--output", str(tmp_path)]  # fmt: skip
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("Trajectory(finished: 5 states")
    assert main([*command, "--step_size", "9"]) == 3
    output = capsys.readouterr().out
    assert output.startswith("Trajectory(ran away at step 2 (t = 18)")
    assert ": --step_size 9 is beyond the limit" in output
    saved = json.loads((tmp_path / "simulate-diffusion.json").read_text())
    assert saved["outcome"]["message"] in output
    assert "; every --step_size up to 2 is certified to be stable.\n" in output
    assert "epoch" not in output
    assert "converged" not in output
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"]["ending"] == "finished"


def test_a_long_simulation_says_so_beforehand(capsys, picture, tmp_path, monkeypatch):
    from nonloc.cli import simulate as module
    from nonloc.processes import kernel

    command = ["simulate", "diffusion", "--image", str(picture), "--size", "40", "--radius", "0", "--steps", "1",
               "--output", str(tmp_path)]  # fmt: skip
    monkeypatch.setattr(module, "LONG", 0)
    assert main(command) == 0
    assert "pairs, too many" not in capsys.readouterr().out  # 1,280 pixels: the matrix is made in no time
    monkeypatch.setattr("nonloc.ops.functional.REFERENCE_ENTRIES", dict.fromkeys(("row", "sinkhorn"), 0))
    monkeypatch.setattr(kernel, "LARGEST_MATRIX", 8 * 20**4)
    assert main(command) == 0
    output = capsys.readouterr().out
    assert "1,280 pixels are 1,638,400 pairs" in output
    assert "about 5 are needed" in output
    assert "Up to --size 20 the matrix is stored" in output
    assert main([*command, "--stepper", "exact"]) == 0
    assert "far more than 5 are needed" in capsys.readouterr().out
