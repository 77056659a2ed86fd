"""The README's picture: a line for each image; clean, noisy, restored by each row's network, and where one looks."""

import json

import numpy as np
import pytest
from made import make_run
from PIL import Image
from safetensors.numpy import save_file

from nonloc_paper.report.cover import cover, write_cover
from nonloc_paper.report.records import collect, write_plan
from nonloc_paper.suites import SUITES

LABELS = ("local baseline", "4 diffusive blocks", "4 diffusive, large start")
STAGE = "trunk.stages.2"
POSITION = [2, 1]


def gray(value):
    """Three images of 4 × 4 pixels of one value."""
    return np.full((3, 3, 4, 4), value)


@pytest.fixture
def folder(tmp_path):
    """A demo in which one seed of three rows was observed."""
    write_plan(tmp_path, {"name": "demo", "rows": [], "changes": {}, "seeds": None})
    kernel = np.full((3, 4, 4), 0.02, np.float32)
    kernel[:, 0, 3], kernel[(slice(None), *POSITION)] = 0.125, 0.5
    for number, label in enumerate(LABELS):
        (recipe,) = [row.recipe for row in SUITES["demo"].rows if row.label == label]
        run = make_run(tmp_path / str(number), recipe, 20.0)
        place = {"stage": STAGE, "position": POSITION, "same_share": 0.5, "same_chance": 0.1}
        seen = {
            "step": 20,
            "psnr": {"noisy": [8.0, 8.1, 8.2], "restored": [20.0 + number] * 3},
            "affinity": [place] if number else [],
            "features": [],
        }
        (run.path / "observations.json").write_text(json.dumps(seen))
        tensors = {
            "images": gray(np.uint8(51)),
            "noisy": gray(np.float32(-1)),
            "restored": gray(np.float32(number)),
        }
        maps = {f"affinity.{STAGE}": kernel} if number else {}
        save_file(tensors | maps, run.path / "observations.safetensors")
    return tmp_path


def drawn(folder, count=2):
    """Axes by line and column."""
    axes = cover(list(collect(folder).rows[:3]), count).axes
    return [axes[start : start + len(axes) // count] for start in range(0, len(axes), len(axes) // count)]


def test_the_columns_are_clean_noisy_every_row_that_was_observed_and_the_affinity(folder):
    first, *others = drawn(folder)
    assert [axes.get_title(loc="left") for axes in first] == ["clean", "noisy", *LABELS[:2], "affinity of □"]
    assert [len(line) for line in others] == [5], "and a line for each image"


def test_images_are_those_that_were_observed_with_their_psnr_below(folder):
    _, second = drawn(folder)
    assert [axes.images[0].get_array()[0, 0].tolist() for axes in second[:-1]] == [
        [51] * 3,
        [0] * 3,
        [128] * 3,
        [255] * 3,
    ]
    assert [axes.get_xlabel() for axes in second[:-1]] == ["", "8.1 dB", "20.0 dB", "21.0 dB"]


def test_the_affinity_is_scaled_by_the_other_positions_and_its_own_is_marked(folder):
    for *_, axes in drawn(folder):
        (image,), (mark,) = axes.images, axes.lines
        assert image.get_clim() == (0, 0.125)
        assert image.get_array()[tuple(POSITION)] == 0.5
        assert (list(mark.get_ydata()), list(mark.get_xdata())) == ([POSITION[0]], [POSITION[1]])


def test_the_file_has_as_many_images_as_asked_for_and_leaves_large_starts_to_the_report(folder, tmp_path):
    write_cover(folder, tmp_path / "new" / "cover.png", count=2)
    with Image.open(tmp_path / "new" / "cover.png") as image:
        assert (image.format, image.size) == ("PNG", (1160, 518)), "five columns, two lines"


def test_no_run_that_was_observed_is_nothing_to_draw(tmp_path):
    write_plan(tmp_path, {"name": "demo", "rows": [], "changes": {}, "seeds": None})
    with pytest.raises(
        ValueError,
        match="there is no restored image with an affinity to draw; run `nonloc reproduce demo` first",
    ):
        write_cover(tmp_path, tmp_path / "cover.png")
    assert not (tmp_path / "cover.png").exists()


def test_runs_without_what_is_drawn_are_left_out(folder):
    rows = list(collect(folder).rows[:3])
    rows[0].example.tensors.pop("restored")
    first = cover(rows, 1).axes
    assert [axes.get_title(loc="left") for axes in first] == ["clean", "noisy", LABELS[1], "affinity of □"]
    rows[2].example.observations["affinity"].clear()
    with pytest.raises(ValueError, match="no restored image with an affinity to draw"):
        cover(rows, 1)


@pytest.mark.parametrize("count", [0, 4])
def test_only_images_that_were_observed_can_be_drawn(folder, count):
    with pytest.raises(ValueError, match=f"between 1 and the 3 images that were observed, got {count}"):
        cover(list(collect(folder).rows[:3]), count)


def test_a_psnr_that_is_not_finite_is_left_blank(folder):
    rows = list(collect(folder).rows[:3])
    rows[0].example.observations["psnr"]["restored"][0] = None
    assert cover(rows, 1).axes[2].get_xlabel() == ""
