"""The explorer's folder: pinned parts, no inline script, drawn pictures, and embeddings that give back the kernel."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from nonloc import DiffusiveStage, kernel_matrix
from nonloc_paper.explorer import map_data, tables_data, training_data
from nonloc_paper.explorer.affinity_maps import describe, embeddings
from nonloc_paper.explorer.build import PAGE, PANELS, as_script, from_script, write_explorer
from nonloc_paper.explorer.pictures import halved, pictures
from nonloc_paper.report.map.cells import read_map
from nonloc_paper.report.table1_runs import read_table1_runs

ROOT = Path(__file__).parents[3]
RECORDS, BUILT = ROOT / "paper" / "results", ROOT / "docs" / "explorer"
AGAIN = "run `nonloc explore docs/explorer`, where there is no demo/"
INDEX = (PAGE / "index.html").read_text()


def test_the_plotting_library_is_the_pinned_one():
    pinned = json.loads((PAGE / "vendor" / "vendored.json").read_text())["sha256"]
    files = {path.name: path for path in (PAGE / "vendor").iterdir() if path.name != "vendored.json"}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == pinned


def test_the_page_names_its_own_files_and_nothing_else():
    named = re.findall(r'(?:src|href)="([^"]*)"', INDEX)
    assert {name for name in named if not (PAGE / name).is_file()} == {"data:,"}
    scripts = {name.removesuffix(".js") for name in named if name.endswith(".js")}
    assert set(PANELS) < scripts


def test_its_policy_allows_nothing_from_elsewhere_and_nothing_inline():
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', INDEX)[1]
    assert policy.startswith("default-src 'none'; script-src 'self' file:; style-src 'self' file:;")
    assert "unsafe" not in policy
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", INDEX)
    for path in PAGE.glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", path.read_text()), (
            path
        )


def test_data_survives_being_a_script():
    data = {"text": "θ </script> \u2028", "numbers": [1, 2.5, None]}
    assert from_script("some", as_script("some", data)) == data


@pytest.mark.parametrize(
    ("out", "records", "message"),
    [
        ("other", RECORDS, "other is there and is no explorer; name a new folder"),
        ("page", "other", "other has no kept records"),
        (RECORDS / "page", RECORDS, "is in the records"),
    ],
)
def test_other_folders_are_refused(out, records, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match=message):
        write_explorer(out, records)
    assert [path.name for path in tmp_path.rglob("*")] == ["other", "file"]


def test_pictures_are_the_same_everywhere():
    drawn = pictures()
    assert {name: one.shape for name, one in drawn.items()} == dict.fromkeys(
        ("a bird", "a ship", "noisy tiles"), (3, 64, 64)
    )
    assert hashlib.sha256(np.stack(list(drawn.values())).tobytes()).hexdigest() == (
        "58852456af2c713a4a83f6836076b27a696a370ed344345cd96342b51bdc8575"
    )
    bird = drawn["a bird"].astype(int)
    assert halved(drawn["a bird"])[1, 5, 7] == (bird[1, 10:12, 14:16].sum() + 2) // 4


def decoded(one: dict) -> torch.Tensor:
    """The logits [M, M] as the page computes them."""
    left, right = (
        np.frombuffer(base64.b64decode(one[side]), np.int8).reshape(-1, one["channels"]).astype(float)
        for side in ("left", "right")
    )
    return torch.from_numpy(left * one["steps"] @ right.T)


def test_eight_bits_give_back_the_logits():
    """To half a level on each side: (127 + 127) / 2 + 1/4 steps a channel, and a step has four digits."""
    torch.manual_seed(0)
    stage = DiffusiveStage(8, num_blocks=2, affinity="embedded_gaussian", scaled=True, init="fan_in")
    with torch.no_grad():
        affinity = stage.affinity(3 + 2 * torch.randn(1, 8, 6, 6))
    logits = kernel_matrix(affinity)[0].double().log()
    made = embeddings(affinity)
    error = (decoded(made) - decoded(made).mean(1, keepdim=True)) - (logits - logits.mean(1, keepdim=True))
    assert 0 < float(error.abs().max()) < 2 * (127.25 + 127**2 * 5e-4) * sum(made["steps"])


def test_other_kernels_are_refused():
    stage = DiffusiveStage(8, num_blocks=1, affinity="dot")
    with pytest.raises(ValueError, match="a dot kernel with normalize='count' cannot be shown"):
        embeddings(stage.affinity(torch.randn(1, 8, 4, 4)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "3 diffusive blocks, one affinity"),
        ({"share_affinity": False}, "3 diffusive blocks, own affinities"),
    ],
)
def test_networks_are_named_by_their_blocks(options, words):
    assert describe(torch.nn.Sequential(DiffusiveStage(8, num_blocks=3, **options))) == words


def test_the_committed_page_is_this_one():
    files = {path.relative_to(PAGE) for path in PAGE.rglob("*") if path.is_file()}
    assert {path.relative_to(BUILT) for path in BUILT.rglob("*") if path.is_file()} == files | {
        Path("data", f"{name}.js") for name in PANELS
    }
    for path in files:
        assert (BUILT / path).read_bytes() == (PAGE / path).read_bytes(), AGAIN
    assert sum(path.stat().st_size for path in BUILT.rglob("*")) < 5e6


def test_the_committed_data_are_those_of_the_records():
    """Those of networks and pictures, which machines round differently, are compared in the tests of the page."""
    runs, trained = read_table1_runs(RECORDS), read_map(RECORDS / "map")
    for name, data in (
        ("training", training_data.data(runs)),
        ("map", map_data.data(trained)),
        ("tables", tables_data.data(runs, trained)),
    ):
        assert (BUILT / "data" / f"{name}.js").read_bytes() == as_script(name, data), AGAIN


def test_95_of_100_random_weights_of_the_same_energy_lie_in_the_band_of_the_committed_data():
    data = from_script("training", (BUILT / "data" / "training.js").read_bytes())
    band = data["bands"]["64 channels, rank 32"]
    random = np.random.default_rng(0)
    w = random.normal(size=(200, 64, 32)) @ random.normal(size=(200, 32, 64))
    values = np.linalg.eigvalsh((w + w.transpose(0, 2, 1)) / 2)
    values = np.take_along_axis(values, np.argsort(-np.abs(values), axis=-1), axis=-1)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    inside = (band["low"] <= values[:, :32]) & (values[:, :32] <= band["high"])
    assert inside.mean() == pytest.approx(0.95, abs=0.02)
