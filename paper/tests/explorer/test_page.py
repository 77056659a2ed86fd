"""The explorer in a real browser, from disk and from a web server. `make test-page` runs these; none of them skips."""

import base64
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from PIL import Image

from nonloc import Affinity, kernel_matrix, processes
from nonloc.nn.inspect import stage_inputs
from nonloc.processes.graphs import from_scipy
from nonloc.processes.images import patch_features, to_signal
from nonloc_paper.explorer import affinity_maps
from nonloc_paper.explorer.affinity_maps import NETWORKS
from nonloc_paper.explorer.build import PANELS, PLAY, from_script
from nonloc_paper.explorer.pictures import halved, pictures
from nonloc_paper.runs import Run
from nonloc_paper.suites.demo import DEMO
from nonloc_paper.training.fit import fit
from nonloc_paper.training.recorded import load

pytestmark = [pytest.mark.page, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "paper" / "results"
SCREENSHOTS = ROOT / "build" / "explorer"
# What is computed does not depend on where the page comes from.
from_disk = pytest.mark.parametrize("address", ["disk"], indirect=True)
NUMBERS = 1e-3  # what rounding to four digits may leave between machines, relative to the number


def test_every_panel_opens_by_its_tab_and_by_the_keyboard(visit):
    page = visit("click")
    tabs = page.get_by_role("tab")
    assert tabs.count() == len(PANELS)
    for place, name in enumerate(PANELS):
        tabs.nth(place).click()
        page.wait_for_selector(f"#panel-{name}[data-drawn]")
        assert page.get_by_role("tabpanel").count() == 1
        assert page.url.endswith(f"#{name}")
    page.keyboard.press("ArrowRight")  # after the last comes the first
    assert page.evaluate("document.activeElement.id") == "tab-click"
    page.keyboard.press("End")
    page.wait_for_selector(f"#tab-{name}[aria-selected=true]")
    assert page.get_by_role("tab", selected=True).count() == 1
    assert float(page.evaluate("document.documentElement.dataset.ready")) > 0


@from_disk
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PANELS)
def test_nothing_is_wider_than_the_screen(visit, name, width, scheme):
    page = visit(name, width, color_scheme=scheme)
    if name == "play":
        page.get_by_role("button", name="Step").click(click_count=5)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png", full_page=True)


def test_a_click_and_an_arrow_key_change_the_maps(visit):
    page = visit("click")
    maps = page.locator("#panel-click canvas.picture")
    assert maps.count() == 1 + 4  # the picture, and four sub-blocks with their own affinities
    seen = {tuple(map_pictures(page))}
    maps.first.click(position={"x": 20, "y": 20})
    assert "Row 4, column 4" in page.locator("#panel-click figcaption").first.inner_text()
    seen.add(tuple(map_pictures(page)))
    page.keyboard.press("ArrowDown")
    assert "Row 5, column 4" in page.locator("#panel-click figcaption").first.inner_text()
    seen.add(tuple(map_pictures(page)))
    assert len(seen) == 3


def map_pictures(page):
    return page.evaluate(
        "[...document.querySelectorAll('#panel-click canvas.picture')].map((one) => one.toDataURL())"
    )


@from_disk
def test_the_maps_are_rows_of_the_kernel(visit):
    """For every network, picture and sub-block; 8 bits leave little in total variation."""
    page = visit("click")
    images = torch.from_numpy(np.stack([halved(one) for one in pictures().values()]))
    for n, name in enumerate(NETWORKS):
        one = load(name, records=RECORDS)
        for p, x in enumerate(one.preprocess(images).split(1)):
            with torch.no_grad():
                affinities = [
                    affinity
                    for _, stage, features, _ in stage_inputs(one.model, x)
                    for affinity in stage.affinities(features)[: 1 if stage.shares_affinity else None]
                ]
            for m, affinity in enumerate(affinities):
                row = affinity.positions * 5 // 9
                script = (
                    "([n, p, m, row]) => { const map = explorer.data.click.networks[n].pictures[p].maps[m];"
                    " return Array.from(softmax(rowMaker(map)(row), 1)); }"
                )
                made = torch.tensor(page.evaluate(script, [n, p, m, row]), dtype=torch.float64)
                wanted = kernel_matrix(affinity)[0, row].double()
                assert float((made - wanted).abs().sum()) / 2 < 0.03, (name, p, m)


@from_disk
def test_without_logits_all_positions_have_equal_weights(visit):
    page = visit("click")
    slide(page, "Logits", 0)
    entropies = page.evaluate(
        "[...document.querySelectorAll('#panel-click [data-entropy]')].map((one) => Number(one.dataset.entropy))"
    )
    assert entropies == pytest.approx([np.log(32 * 32)] * 4)


def slide(page, label, value):
    script = "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }"
    page.get_by_role("slider", name=label).evaluate(script, value)


def reference(kernel):
    """The picture that the panel starts with, as a signal, and its affinity as the library makes it."""
    fine = torch.from_numpy(pictures()["noisy tiles"].copy()).double() / 255
    if kernel == "dense":
        image = torch.nn.functional.avg_pool2d(fine, 2)
        features = patch_features(image, PLAY["patch_radius"])
        return to_signal(image), Affinity(features, features, "heat", scale=PLAY["bandwidth"] ** -2)
    features = patch_features(fine, PLAY["patch_radius"])[0].numpy()
    down, right = np.divmod(np.arange(64 * 64), 64)
    reach = PLAY["reach"] + 1
    near = [np.abs(one[:, None] - one) for one in (down, right)]
    rows, columns = np.nonzero((near[0] < reach) & (near[1] < reach))
    tent = np.prod([1 - one[rows, columns] / reach for one in near], axis=0)
    heat = np.exp(-((features[rows] - features[columns]) ** 2).sum(-1) / PLAY["bandwidth"] ** 2)
    return to_signal(fine), from_scipy(scipy.sparse.csr_array((tent * heat, (rows, columns))))


@from_disk
@pytest.mark.parametrize("kernel", ["sparse", "dense"])
@pytest.mark.parametrize("process", ["diffusion", "diffusion-back", "damped", "damped-back", "jump"])
def test_what_is_played_is_what_simulate_computes(visit, kernel, process):
    page = visit("play")
    page.get_by_label("Kernel").select_option(kernel)
    page.get_by_label("Process").select_option(process)
    slide(page, "Step h", 0.7)
    for _ in range(6):
        page.get_by_role("button", name="Step").click()
    live = page.evaluate("explorer.live()")
    z, affinity = reference(kernel)
    if process == "jump":
        z = torch.zeros_like(z[..., :1])
        z[0, live["start"]] = 1
        moved = processes.JumpProcess(affinity)
    else:
        name, _, direction = process.partition("-")
        kind = {"diffusion": processes.Diffusion, "damped": processes.DampedFlow}[name]
        moved = kind(affinity, backwards=bool(direction))
    trajectory = processes.simulate(moved, z, num_steps=6, step_size=0.7)
    state = torch.tensor(live["state"], dtype=torch.float64).view_as(trajectory.final)
    assert live["number"] == 6
    assert float((state - trajectory.final).abs().max()) < 1e-9 * max(1, float(trajectory.final.abs().max()))
    assert live["variances"] == pytest.approx(trajectory.variance.mean((1, 2)).tolist(), rel=1e-9)


@from_disk
def test_the_limit_is_that_of_the_library(visit):
    page = visit("play")
    sparse = page.evaluate("explorer.live().limit")
    assert sparse == pytest.approx(processes.cfl_limit(reference("sparse")[1]).estimate, rel=1e-4)
    page.get_by_label("Kernel").select_option("dense")
    exact = processes.cfl_limit(reference("dense")[1])
    assert exact.kind == "exact"
    # Lanczos finds the eigenvalue from below, and it is one of many next to 1.
    assert exact.limit <= page.evaluate("explorer.live().limit") < 1.01 * exact.limit


@from_disk
@pytest.mark.parametrize("kernel", ["sparse", "dense"])
def test_past_the_limit_the_variance_climbs(visit, kernel):
    page = visit("play")
    page.get_by_label("Kernel").select_option(kernel)
    limit = page.evaluate("explorer.live().limit")

    def variances(share):
        page.get_by_role("button", name="Reset").click()
        slide(page, "Step h", round(share * limit, 1))
        for _ in range(40):
            page.get_by_role("button", name="Step").click()
        return np.array(page.evaluate("explorer.live().variances"))

    calm, burst = variances(0.9), variances(1.2)
    assert "Beyond the CFL limit" in page.get_by_role("tabpanel").inner_text()
    assert calm[-1] < calm[0]
    assert burst[-1] > 10 * burst[0]
    assert (np.diff(burst[-5:]) > 0).all()


@from_disk
def test_walkers_start_where_one_clicks(visit):
    page = visit("play")
    page.get_by_label("Process").select_option("jump")
    box = page.locator("#panel-play canvas.picture").bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.8 * box["height"])
    live = page.evaluate("explorer.live()")
    assert live["start"] == int(0.8 * 64) * 64 + int(0.3 * 64)
    assert (live["state"][live["start"]], sum(live["state"])) == (1, 1)


@from_disk
def test_it_plays_and_says_how_fast(visit):
    page = visit("play")
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector("html[data-frames-per-second]")
    page.get_by_role("button", name="Pause").click()
    assert page.evaluate("explorer.live().number") > 0
    assert "frames a second" in page.locator("#speed").inner_text()


def test_a_picture_of_ones_own_is_played_and_other_files_are_not(visit, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "own.png")
    (tmp_path / "notes.png").write_text("no picture")
    page = visit("play")
    choose = page.get_by_label("it stays on this device")
    choose.set_input_files(tmp_path / "own.png")
    page.wait_for_selector("option[value=own]", state="attached")
    assert page.evaluate("explorer.live().state") == (pixels / 255).ravel().tolist()
    choose.set_input_files(tmp_path / "notes.png")
    page.get_by_text("notes.png is no picture").wait_for()


def test_networks_of_a_demo_come_first_each_row_once(tmp_path):
    small = {"epochs": 1, "steps_per_epoch": 1, "train_images": 16, "test_images": 8}
    for place, seed in ((-1, 0), (-1, 1), (3, 0), (0, 0)):
        recipe = DEMO.rows[place].recipe.with_(seed=seed, **small)
        fit(recipe, Run(tmp_path / "runs" / f"{recipe.name}-{place}"), progress=None)
    networks = affinity_maps.data(RECORDS, tmp_path)["networks"]
    assert {one["name"] for one in networks[:2]} == {
        "demo: 4 diffusive blocks, own affinities",
        "demo: 4 original blocks, own affinities",
    }
    assert [len(one["maps"]) for one in networks[0]["pictures"]] == [4, 4, 4]
    assert len(networks) == 2 + len(NETWORKS) + 1
    assert networks[-1]["name"] == "recorded demo: 4 diffusive blocks"
    with pytest.raises(ValueError, match="has no trained network of the demo; run `make demo` first"):
        affinity_maps.data(RECORDS, RECORDS)


@pytest.mark.parametrize("name", ["click", "play"])
def test_the_committed_networks_and_pictures_are_those_of_the_records(folder, name):
    new, old = (
        from_script(name, (root / "data" / f"{name}.js").read_bytes())
        for root in (folder, ROOT / "docs" / "explorer")
    )
    assert alike(new, old), "run `nonloc explore docs/explorer`, where there is no demo/"


def alike(new, old):
    """Equal but for the last digit of computed numbers, and for one level of 8 bits."""
    if isinstance(new, dict):
        # Levels are of embeddings that another machine may round otherwise.
        levels = {"left", "right"} & new.keys()
        return new.keys() == old.keys() and all(
            close_levels(new[key], old[key]) if key in levels else alike(new[key], old[key]) for key in new
        )
    if isinstance(new, list):
        return isinstance(old, list) and len(new) == len(old) and all(map(alike, new, old))
    if isinstance(new, float) or isinstance(old, float):
        return old is not None and new is not None and abs(new - old) <= NUMBERS * max(abs(new), abs(old))
    return new == old


def close_levels(new, old):
    one, other = (np.frombuffer(base64.b64decode(text), np.int8).astype(int) for text in (new, old))
    return one.shape == other.shape and np.abs(one - other).max() <= 1
