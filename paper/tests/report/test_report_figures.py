"""Figures: what is drawn is what the folders hold, and pages can carry it."""

import base64
import io
import re

import numpy as np
import pytest
from made import RESTORER, make_row, make_run
from PIL import Image

from nonloc.plots import INK, png, save_figure, svg
from nonloc_paper.report import figures
from nonloc_paper.report.document import inline_svg
from nonloc_paper.report.page import affinity_figures, image_address, to_pixels
from nonloc_paper.report.records import RowRecord
from nonloc_paper.training.recipe import Recipe


def line(axes, label):
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return found.get_xdata().tolist(), found.get_ydata().tolist()


def test_curves_are_the_metrics(tmp_path):
    figure = figures.curves([make_row(tmp_path, "a", [24.0, 22.0])])
    left, right = figure.axes
    assert line(left, "a") == ([10, 20], [1.0, 0.5])
    assert line(right, "a") == ([10, 20], [12.0, 24.0])
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "training loss (mean squared error)",
        "PSNR on test images (dB)",
    ]
    assert len(right.lines) == 2, "one for each seed"


def test_a_cross_stands_where_a_run_diverged(tmp_path):
    row = RowRecord("a", RESTORER, (make_run(tmp_path / "0", RESTORER, diverged_at=25),))
    crosses = [mark for mark in figures.curves([row]).axes[1].lines if mark.get_marker() == "x"]
    assert [(mark.get_xdata().tolist(), mark.get_ydata().tolist()) for mark in crosses] == [([25], [50.0])]


def test_a_run_that_was_lost_before_its_first_evaluation_has_its_cross_at_the_upper_edge(tmp_path):
    lost = make_run(tmp_path / "0", RESTORER, diverged_at=3)
    lost.metrics.clear()
    row = RowRecord("a", RESTORER, (lost, make_run(tmp_path / "1", RESTORER.with_(seed=1), 24.0)))
    for axes in figures.curves([row]).axes:
        (cross,) = [mark for mark in axes.lines if mark.get_marker() == "x"]
        place = cross.get_transform().transform((cross.get_xdata()[0], cross.get_ydata()[0]))
        assert place[1] == pytest.approx(axes.bbox.y1)
        assert axes.transData.inverted().transform(place)[0] == pytest.approx(3)


def weight(*values, negative=0.0, positive=1.0):
    return {"eigenvalues": list(values), "negative_energy": negative, "positive_energy": positive}


def bars(axes):
    """(left, height) of every bar, in the order of the paths."""
    corners = [patch.get_path().vertices.reshape(-1, 5, 2) for patch in axes.patches]
    return [tuple(bar[1].round(6).tolist()) for path in corners for bar in path]


def test_every_seed_has_its_bar_and_all_panels_one_scale_around_0():
    seeds = [weight(2.0, -1.0, negative=0.2, positive=0.8), weight(-1.5, 0.5, negative=0.9, positive=0.1)]
    figure = figures.spectra([("one", [("a", seeds), ("b", [weight(-0.5)])]), ("none", [])])
    first, second, unused = figure.axes
    assert bars(first) == [(0.6, 2.0), (1.6, -1.0), (2.0, 0.5), (1.0, -1.5)]
    assert bars(second) == [(0.6, -0.5)]
    assert first.get_ylim() == second.get_ylim() == pytest.approx((-2.2, 2.2))
    assert [text.get_text() for text in first.texts] == ["20–90 % < 0\n1 of 2"]
    assert not unused.axison
    assert figures.spectra([("none", [])]) is None


def test_the_band_is_the_widest_of_the_seeds():
    seeds = [weight(1.0) | {"band": {"low": [-size], "high": [size]}} for size in (0.5, 0.75)]
    (band,) = figures.spectra([("", [("a", seeds)])]).axes[0].collections
    assert {abs(y) for _, y in band.get_paths()[0].vertices} == {0.75}


def test_many_weights_of_a_network_go_on_in_the_next_line_with_their_stage_in_their_title():
    one, four = ({"name": name, "weights": [weight(1.0)] * count} for name, count in (("a", 1), ("b", 4)))
    shown = [axes for axes in figures.stage_spectra([one, four]).axes if axes.axison]
    titles = [axes.get_title(loc="left") for axes in shown]
    assert titles == ["a\nblock 1", *(f"b\nblock {number}" for number in (1, 2, 3, 4))]
    assert [axes.get_subplotspec().rowspan.start for axes in shown] == [0, 0, 0, 0, 1]
    assert [axes.xaxis.get_tick_params()["labelbottom"] for axes in shown] == [False, True, True, True, True]
    assert figures.stage_spectra([one]).axes[0].get_title(loc="left") == "block 1"
    assert figures.stage_spectra([]) is None


def features_of(folder, energies, **more):
    """The axes of sub-blocks with these energies, (before, after)."""

    def state(energy):
        return {"norm": 2.0, "variance": 1.0, "energy": energy}

    blocks = [
        {"before": state(before), "after": state(after)} | {key: value[n] for key, value in more.items()}
        for n, (before, after) in enumerate(energies)
    ]
    row = make_row(folder, "a", [24.0])
    row.runs[0].observations.update(step=20, features=[{"name": "s", "blocks": blocks}])
    return figures.features([row]).axes


@pytest.mark.parametrize(
    ("energies", "steps", "values"),
    [
        ([(4.0, 2.0), (2.0, 1.0)], [0, 1, 1, 2], [4.0, 2.0, 2.0, 1.0]),
        ([(4.0, 2.0), (3.0, None)], [0, 1, np.nan, 1, 2], [4.0, 2.0, np.nan, 3.0, np.nan]),
    ],
)
def test_the_line_of_the_features_breaks_where_the_kernel_changes(tmp_path, energies, steps, values):
    axes = features_of(tmp_path, energies)
    titles = ["norm of the features", "variance over positions", "Dirichlet energy"]
    assert [one.get_ylabel() for one in axes] == titles
    np.testing.assert_array_equal(line(axes[2], "a"), [steps, values])


def test_features_have_a_panel_of_quotients_where_they_were_recorded(tmp_path):
    *_, last = features_of(tmp_path, [(3.0, 3.0)] * 2, quotient=[0.05, -0.02])
    assert last.get_ylabel() == "W along the features"
    zero, found = last.lines
    assert list(zero.get_ydata()) == [0, 0]
    assert (list(found.get_xdata()), list(found.get_ydata())) == ([1, 2], [0.05, -0.02])


def test_the_affinity_map_is_scaled_by_the_other_positions():
    values = np.full((4, 4), 0.02)
    values[2, 2], values[0, 1] = 0.6, 0.1
    image = np.zeros((3, 8, 8), np.uint8)
    figure = figures.affinity(image, None, [("net", (2, 2), values)])
    clean, shown, *_ = figure.axes
    (drawn,) = shown.images
    assert drawn.get_clim() == (0, 0.1)
    assert shown.get_xlabel() == "others ≤ 0.1\nitself 0.6"
    marks = [(patch.get_xy(), patch.get_width()) for patch in clean.patches]
    assert marks == [((3.5, 3.5), 2.0)] * 2, "two pixels of the image are one position of the stage"


def test_the_maps_of_several_stages_are_named(tmp_path):
    places = ("trunk.stages.1", "trunk.stages.3")
    seen = {"step": 20, "affinity": [{"stage": name, "position": [1, 1]} for name in places]}
    recipe = Recipe(network="restorer8/original-1@1,3", data="motifs")
    run = make_run(tmp_path / "0", recipe, 20.0, observed={"observations": seen})
    run.__dict__["tensors"] = {"images": np.zeros((1, 3, 4, 4), np.uint8)} | {
        f"affinity.{name}": np.full((1, 4, 4), 1 / 16) for name in places
    }
    (figure,) = affinity_figures([RowRecord("r", recipe, (run,))])
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes]
    assert titles[1:3] == [f"r, {name}" for name in places]


def test_the_hue_tells_the_form_and_the_dash_the_group(tmp_path):
    rows = [
        make_row(tmp_path, "baseline", []),
        make_row(tmp_path, "original", [], network="restorer8/original-1@2"),
        make_row(tmp_path, "diffusive", [], network="restorer8/diffusive-1@2"),
        make_row(tmp_path, "other", [], network="restorer8/diffusive-1@2", group="other"),
    ]
    looks = figures.row_looks(rows)
    assert looks["baseline"]["color"] == figures.SHADES[None][0]
    assert looks["original"]["color"] == figures.SHADES["original"][0]
    assert looks["diffusive"]["color"] == looks["other"]["color"] == figures.SHADES["diffusive"][0]
    assert looks["diffusive"]["linestyle"] != looks["other"]["linestyle"]


def test_inline_figures_ask_for_nothing_and_take_the_colour_of_the_page():
    figure = figures.spectra([("", [("a", [weight(1.0, -0.5)])])])
    text = inline_svg(figure, "one")
    assert text.startswith("<svg ")
    assert "http" not in text
    assert "currentColor" in text
    assert INK not in text
    assert not re.search(r'<g id="', text)
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert used <= set(re.findall(r'id="([^"]+)"', text)), "what is referred to is there"


def test_no_two_images_share_an_id():
    values = np.full((4, 4), 0.02)
    maps = [(label, (2, 2), values) for label in ("a", "b", "c", "d", "e")]
    figure = figures.affinity(np.zeros((3, 8, 8), np.uint8), None, maps)
    ids = re.findall(r' id="([^"]+)"', inline_svg(figure, "one"))
    assert sorted(ids) == sorted(set(ids))
    assert ids, "clip paths keep theirs"
    assert not set(ids) & set(re.findall(r' id="([^"]+)"', inline_svg(figure, "two")))


def test_a_file_is_the_same_whatever_was_saved_before():
    one, other = (figures.spectra([("", [("a", [weight(1.0, -0.5)])])]) for _ in range(2))
    assert Image.open(io.BytesIO(png(other))).format == "PNG"
    inline_svg(other, "page")
    assert svg(one) == svg(other) == svg(other)
    assert svg(one).startswith(b"<?xml")
    assert INK.encode() in svg(one)


def test_a_pdf_is_the_same_twice_and_has_no_date():
    one, other = (figures.spectra([("", [("a", [weight(1.0)])])]) for _ in range(2))
    assert save_figure(one, "pdf") == save_figure(other, "pdf")
    assert b"Date" not in save_figure(one, "pdf")


def test_pictures_keep_their_pixels():
    pixels = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2) * 20
    content = base64.b64decode(image_address(pixels, scale=3).removeprefix("data:image/png;base64,"))
    read = np.asarray(Image.open(io.BytesIO(content)))
    assert read.shape == (6, 6, 3)
    assert np.array_equal(read[1::3, 1::3].transpose(2, 0, 1), pixels)


@pytest.mark.parametrize(("value", "pixel"), [(-1.0, 0), (1.0, 255), (0.0, 128), (-3.0, 0), (2.0, 255)])
def test_floats_become_pixels_and_are_cut_off(value, pixel):
    assert to_pixels(np.full((3, 1, 1), value)).tolist() == [[[pixel]]] * 3
