"""The map panel's data against the lines of one table."""

import json
import shutil
from pathlib import Path

import pytest

from nonloc_paper.explorer import map_data
from nonloc_paper.report.map.cells import read_map

TABLE = Path(__file__).parents[2] / "results" / "map" / "ten_epochs_recomputed.jsonl"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    records = tmp_path_factory.mktemp("records")
    (records / "map").mkdir()
    shutil.copy(TABLE, records / "map")
    return map_data.data(read_map(records / "map"))


def test_each_cell_has_its_runs_losses_logits_and_last_steps(made):
    [part] = made["parts"]
    assert part["title"] == "10 epochs with own affinities"
    lines = {}
    for line in map(json.loads, TABLE.read_text().splitlines()):
        lines.setdefault((line["rate"], line["init"], line["form"], line["blocks"]), {})[line["seed"]] = line
    assert len(part["cells"]) == len(lines)
    for cell in part["cells"]:
        runs = lines[cell["rate"], cell["start"], cell["form"], cell["blocks"]]
        gone = [line for line in runs.values() if line["ending"] == "diverged"]
        left = [line["mean_loss"] for line in runs.values() if line["ending"] != "diverged"]
        assert cell["diverged"] == len(gone)
        assert cell["first_step"] == min((line["step"] for line in gone), default=None)
        assert cell["loss"] == (pytest.approx(sum(left) / len(left), rel=1e-3) if left else None)
        for run in cell["runs"]:
            line = runs[run["seed"]]
            assert run["diverged_at"] == line["step"]
            assert run["train"] == [float(f"{epoch['train_loss']:.4g}") for epoch in line["epochs"]]
            moments = [(one["step"], one["stages"][0]["logit_spread"]) for one in line["before"]]
            assert run["before"]["step"] == [step for step, _ in moments]
            spreads = [None if spread is None else float(f"{spread:.3g}") for _, spread in moments]
            assert run["before"]["spread"] == spreads
    assert any(cell["diverged"] for cell in part["cells"])
