"""The training panel's data against the files of one row, and the band against fresh random weights."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nonloc_paper.explorer import training_data
from nonloc_paper.report.table1_runs import read_table1_runs

RESULTS = Path(__file__).parents[2] / "results"
ROW = "table1/2-block-original"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    records = tmp_path_factory.mktemp("records")
    for seed in ("0", "1"):
        shutil.copytree(RESULTS / ROW / seed, records / ROW / seed)
    return training_data.data(read_table1_runs(records))


def test_a_row_has_the_recorded_eigenvalues_and_variances(made):
    [suite] = made["suites"]
    [row] = suite["rows"]
    assert (row["label"], [run["seed"] for run in row["runs"]]) == ("2-block (original)", [0, 1])
    folder, run = RESULTS / ROW / "1", row["runs"][1]
    recorded = [json.loads(line) for line in (folder / "spectra.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in run["epochs"]] == [line["epoch"] for line in recorded]
    for line, source in zip(run["epochs"], recorded, strict=True):
        weights = source["stages"][0]["weights"]
        for weight, known in zip(line["weights"], weights, strict=True):
            values = np.array(weight["values"]) * weight["largest"] / made["parts"]
            # Half of a part, and four digits of the largest.
            assert np.abs(values - known["eigenvalues"][:32]).max() <= 0.6e-3 * weight["largest"]
        negative = math.fsum(one["negative_energy"] for one in weights)
        energy = negative + math.fsum(one["positive_energy"] for one in weights)
        assert line["negative"] == round(negative / energy, 3)
    blocks = json.loads((folder / "observations.json").read_text())["features"][0]["blocks"]
    states = [blocks[0]["before"], *(block["after"] for block in blocks)]
    assert run["variance"] == [[float(f"{state['variance']:.4g}") for state in states]]
    assert run["score"] == f"{json.loads((folder / 'result.json').read_text())['metrics']['error']:.2f}"


def test_95_of_100_random_weights_of_the_same_energy_lie_in_the_band(made):
    random = np.random.default_rng(0)
    w = random.normal(size=(200, 64, 32)) @ random.normal(size=(200, 32, 64))
    values = np.linalg.eigvalsh((w + w.transpose(0, 2, 1)) / 2)
    values = np.take_along_axis(values, np.argsort(-np.abs(values), axis=-1), axis=-1)
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    band = made["bands"]["64 channels, rank 32"]
    inside = (band["low"] <= values[:, :32]) & (values[:, :32] <= band["high"])
    assert inside.mean() == pytest.approx(0.95, abs=0.02)
