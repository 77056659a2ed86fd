"""nonloc.plots: what is drawn are the numbers, on the axes that were given, and no setting of matplotlib changes."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.animation import FFMpegWriter
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from PIL import Image

from nonloc import (
    Affinity,
    Diffusion,
    DiffusiveStage,
    OriginalStage,
    certify,
    cfl_limit,
    feature_trace,
    kernel_matrix,
    simulate,
    weight_spectrum,
)
from nonloc.plots import (
    animate_trajectory,
    plot_affinity,
    plot_features,
    plot_spectrum,
    plot_stability,
    plot_trajectory,
)
from nonloc.plots.affinity import COLORS, MOST_OPAQUE
from nonloc.plots.look import NEGATIVE, POSITIVE
from nonloc.spectrum import random_band

SIZE = (4, 5)
HALF = torch.stack([torch.arange(20) >= 0, torch.arange(20) < 10])  # of the second sample


@pytest.fixture
def affinity():
    x = torch.randn(2, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Affinity(x, x, "heat")


@pytest.fixture
def stage():
    torch.manual_seed(0)
    return OriginalStage(6, 2, init_std=0.5).double()


@pytest.fixture
def x():
    return torch.randn(2, 6, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def path(affinity):
    z = torch.rand(2, 20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return simulate(Diffusion(affinity), z, num_steps=4)


def test_one_position_is_its_row_of_the_kernel(affinity):
    ax = plot_affinity(affinity, position=(1, 2), size=SIZE, sample=1)
    drawn = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(drawn, kernel_matrix(affinity)[1, 7].view(SIZE), rtol=1e-12)


def test_a_stage_has_the_row_of_its_block_and_the_size_of_its_input(stage, x):
    ax = plot_affinity(stage, x, position=7, block=2)
    expected = kernel_matrix(stage.affinities(x)[1])[0, 7].view(SIZE).detach()
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), expected, rtol=1e-12)


def test_positions_over_an_image_are_most_opaque_where_they_look_most(affinity):
    numbers = [0, 7, 19]
    ax = plot_affinity(affinity, position=numbers, size=SIZE, image=torch.rand(3, 8, 10))
    image, layer = ax.images
    assert np.asarray(image.get_array()).shape == (8, 10)
    drawn = np.asarray(layer.get_array()).reshape(-1, 4)
    shares = []
    for number in numbers:
        row = kernel_matrix(affinity)[0, number].numpy()
        others = np.delete(row, number)
        shares.append(np.clip((row - others.min()) / (others.max() - others.min()), 0, 1))
        assert drawn[int(np.argmax(shares[-1])), 3] == pytest.approx(MOST_OPAQUE)
    # Where several look the colours mix: none hides another.
    np.testing.assert_allclose(drawn[:, 3], MOST_OPAQUE * np.sqrt(np.max(shares, 0)), rtol=1e-12)
    colors = np.array([to_rgb(color) for color in COLORS[:3]])
    mixed = np.einsum("pm,pc->mc", shares, colors) / np.sum(shares, 0)[:, None]
    np.testing.assert_allclose(drawn[:, :3], mixed, rtol=1e-12)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_an_image_is_that_of_the_sample_or_one_for_all_in_any_dtype(affinity, batch, dtype):
    image = torch.rand(batch, 1, 8, 10).to(dtype)
    ax = plot_affinity(affinity, position=0, size=SIZE, image=image, sample=1)
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), image[-1, 0].double())


def test_what_is_not_finite_is_not_drawn(affinity, stage):
    left = affinity.left.clone()
    left[0, 3, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite; look for NaN in the features"):
        plot_affinity(replace(affinity, left=left), position=3, size=SIZE)
    with torch.no_grad():
        next(stage.maps[0].parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="weights that are not finite, so it has no spectrum"):
        plot_spectrum(stage)


def test_bars_are_the_eigenvalues_by_sign_and_a_band_lies_behind_each(stage):
    ax = plot_spectrum(stage, top=4)
    values = [float(value) for weight in stage.weights() for value in weight_spectrum(weight).top(4)]
    bars = [bar for container in ax.containers for bar in container]
    assert [bar.get_height() for bar in bars] == pytest.approx(values, rel=1e-12)
    expected = [to_rgba(POSITIVE if value > 0 else NEGATIVE) for value in values]
    assert [bar.get_facecolor() for bar in bars] == expected
    band = random_band(6, 3, float(stage.weights()[0].detach().norm()))
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.max() == pytest.approx(float(band.high[:4].max()), rel=1e-12)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["block 1", "block 2"]


def test_a_stable_stage_has_no_band():
    assert not plot_spectrum(DiffusiveStage(6, 2, weight="stable")).collections


@pytest.mark.parametrize("what", ["variance", "energy", "mean"])
def test_curves_are_the_averages_over_channels_of_every_sample(path, what):
    lines = plot_trajectory(path, what).get_lines()
    measured = getattr(path, what).reshape(5, 2, -1).mean(-1)
    for sample in range(2):
        np.testing.assert_allclose(lines[sample].get_ydata(), measured[:, sample], rtol=1e-14)
        np.testing.assert_array_equal(lines[sample].get_xdata(), path.times)


def test_a_mean_that_stays_is_not_drawn_as_its_rounding(affinity):
    path = simulate(
        Diffusion(replace(affinity, normalize="sinkhorn")), torch.ones(2, 20, 1).double(), num_steps=3
    )
    low, high = plot_trajectory(path, "mean").get_ylim()
    assert (low, high) == pytest.approx((0.9, 1.1))


def test_a_strip_has_the_states_side_by_side(path):
    ax = plot_trajectory(path, "states", size=SIZE, sample=1)
    strip = np.asarray(ax.images[0].get_array())
    width = SIZE[1]
    for number in range(5):
        picture = strip[:, number * (width + 1) : number * (width + 1) + width, :3]
        np.testing.assert_allclose(picture, path.states[number, 1].view(*SIZE, 3), rtol=1e-14)
    assert [label.get_text() for label in ax.get_xticklabels()] == [f"t = {number}" for number in range(5)]


def test_states_without_a_size_are_a_map_over_time(path):
    drawn = np.asarray(plot_trajectory(path, "states").images[0].get_array())
    np.testing.assert_allclose(drawn, path.states[:, 0].mean(-1).T, rtol=1e-14)


def test_a_map_over_time_shows_each_state_at_its_time(affinity):
    path = simulate(Diffusion(affinity), torch.rand(2, 20, 1).double(), num_steps=10, save_every=4)
    (drawn,) = plot_trajectory(path, "states").images
    for time, state in zip(path.times, path.states, strict=True):  # 0, 4, 8 and 10
        for position in (0, 7, 19):
            place = SimpleNamespace(xdata=float(time.clamp(0.1, 9.9)), ydata=position)
            assert drawn.get_cursor_data(place) == state[0, position, 0]


@pytest.mark.filterwarnings("error")
def test_a_mean_beyond_what_is_drawn_is_no_warning(path):
    plot_trajectory(replace(path, mean=1e200 * path.mean, weighted_mean=None), "mean")


def test_an_animation_has_a_frame_for_each_state(path, tmp_path):
    written = animate_trajectory(path, tmp_path / "states.gif", size=SIZE, frames_per_second=5)
    with Image.open(written) as image:
        assert image.n_frames == len(path)
        assert image.info["duration"] == 200
    with Image.open(animate_trajectory(path, tmp_path / "few.gif", size=SIZE, most_frames=3)) as image:
        assert image.n_frames == 3


def test_a_film_needs_ffmpeg(path, tmp_path, monkeypatch):
    monkeypatch.setattr(FFMpegWriter, "isAvailable", lambda: False)
    with pytest.raises(ValueError, match="ffmpeg, which is not installed; write a .gif"):
        animate_trajectory(path, tmp_path / "states.mp4", size=SIZE)


def test_features_are_those_of_the_trace(stage, x):
    trace = feature_trace(stage, x)
    blocks = trace[0]["blocks"]
    (line,) = plot_features(trace, "norm").get_lines()
    assert list(line.get_ydata()) == [blocks[0]["before"]["norm"], *(one["after"]["norm"] for one in blocks)]
    ax = plot_features(trace, "quotient", label="first")
    assert list(ax.get_lines()[0].get_ydata()) == [one["quotient"] for one in blocks]
    plot_features(trace, "quotient", label="second", ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["first", "second"]


def test_growth_is_that_of_certificates_and_the_limit_is_drawn(affinity):
    limit = cfl_limit(affinity)
    steps = [0.5 * limit.limit, 1.5 * limit.limit]
    ax = plot_stability(affinity, steps=steps)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["stable"].get_xdata()) == steps[:1]
    assert list(lines["unstable"].get_ydata()) == [certify(affinity, steps[1]).growth]
    assert list(lines[f"CFL limit {limit.limit:.3g}, exact"].get_xdata()) == [limit.limit] * 2
    again = plot_stability({step: certify(affinity, step) for step in steps}, limit=limit)
    assert {line.get_label() for line in again.get_lines()} == set(lines)


def test_a_stage_grows_as_its_certificate_says():
    torch.manual_seed(0)
    stage = DiffusiveStage(4, 2, init_std=0.8).double()
    x = torch.randn(1, 4, *SIZE, dtype=torch.float64)
    ax = plot_stability(stage, x, steps=[1])
    certificate = certify(stage, x)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines[certificate.verdict].get_ydata()) == pytest.approx([certificate.growth], rel=1e-12)
    size = max(float(torch.linalg.matrix_norm(weight.detach(), 2)) for weight in stage.weights())
    where = cfl_limit(stage.affinity(x)).limit / size
    assert lines[f"CFL limit {where:.3g}"].get_xdata()[0] == pytest.approx(where, rel=1e-12)


def test_given_axes_are_drawn_on_and_settings_stay(affinity, stage, x, path):
    before = dict(matplotlib.rcParams)
    for number, draw in enumerate(
        (
            lambda ax: plot_affinity(affinity, position=0, size=SIZE, ax=ax),
            lambda ax: plot_spectrum(stage, ax=ax),
            lambda ax: plot_trajectory(path, ax=ax),
            lambda ax: plot_trajectory(path, "states", size=SIZE, ax=ax),
            lambda ax: plot_features(feature_trace(stage, x), ax=ax),
            lambda ax: plot_stability(affinity, steps=[1.0], ax=ax),
        )
    ):
        ax = Figure().subplots()
        assert draw(ax) is ax, number
        assert ax.has_data()
    assert dict(matplotlib.rcParams) == before


def test_new_axes_have_the_colours_that_the_user_has_set(path):
    with matplotlib.rc_context({"text.color": "white", "ytick.color": "white", "figure.facecolor": "black"}):
        ax = plot_trajectory(path)
    assert ax.figure.get_facecolor() == to_rgba("black")
    assert to_rgba(ax.get_yticklabels()[0].get_color()) == to_rgba("white")


def test_pyplot_is_not_imported():
    code = "import sys, nonloc.plots as p; [getattr(p, name) for name in p.__all__]; "
    code += "sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_matplotlib_the_error_names_the_extra():
    code = "import sys; sys.modules['matplotlib'] = None; import nonloc.plots"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.endswith("nonloc.plots needs matplotlib; pip install 'nonloc[plots]'\n")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda a, p: plot_affinity(a, position=0), "size must be \\(height, width\\) of the 20 positions"),
        (lambda a, p: plot_affinity(a, position=0, size=20), "of the 20 positions, got 20; of a video"),
        (lambda a, p: plot_trajectory(p, "states", size=(-4, -5)), "of the 20 positions, got \\(-4, -5\\)"),
        (
            lambda a, p: plot_affinity(a, position=(4, 0), size=SIZE),
            "on the grid of 4 × 5, a number below 20",
        ),
        (lambda a, p: plot_affinity(a, position=[], size=SIZE), "1 to 6 positions, got 0"),
        (lambda a, p: plot_affinity(a, position=0, size=SIZE, sample=2), "sample must be at most 1"),
        (lambda a, p: plot_affinity(a, position=0, size=SIZE, image=[1.0]), "image must be"),
        (
            lambda a, p: plot_affinity(a, position=0, size=SIZE, image="cat.png"),
            "image must be an array or a tensor of pixels, got 'cat.png'; of a file, np.asarray",
        ),
        (
            lambda a, p: plot_affinity(a, position=0, size=SIZE, image=torch.ones(3, 1, 8, 9)),
            "image is a batch of 3, and there are 2 samples; give one",
        ),
        (
            lambda a, p: plot_affinity(replace(a, mask=HALF), position=[0, (2, 1)], size=SIZE, sample=1),
            r"position \(2, 1\) is masked in sample 1, so it looks nowhere",
        ),
        (lambda a, p: plot_affinity("K", position=0), "subject must be an affinity"),
        (lambda a, p: plot_spectrum([]), "spectra must be a Spectrum"),
        (lambda a, p: plot_trajectory(p, "entropy"), "entropy"),
        (lambda a, p: plot_trajectory([1.0]), "what nonloc.simulate returned, got list"),
        (lambda a, p: plot_trajectory(p, "states", size=(3, 5)), "of the 20 positions"),
        (lambda a, p: plot_trajectory(p, ax=Figure()), "ax must be matplotlib axes, got Figure"),
        (lambda a, p: animate_trajectory(p, "states.png", size=SIZE), "path must end with .gif or .mp4"),
        (lambda a, p: animate_trajectory(p, "a.gif", size=SIZE, most_frames=1), "most_frames must be .* ≥ 2"),
        (lambda a, p: plot_features([{}]), "what nonloc.feature_trace returned"),
        (lambda a, p: plot_stability(a, steps=[float("nan")]), "steps must be finite"),
        (lambda a, p: plot_stability({0.5: 1.0}), "a Certificate for each step"),
        (lambda a, p: plot_stability(DiffusiveStage(4, 1)), "x must be the input of the stage"),
    ],
)
def test_wrong_arguments_are_named(affinity, path, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(affinity, path)
