"""The map and the re-evaluation on CUDA: as on the CPU, with runs side by side as graphs."""

import pytest
import torch
from small_map import CALM, STABLE, WILD, small_data, small_part

from nonloc_paper.map.run import run_part
from nonloc_paper.map.table import MapTable
from nonloc_paper.suites.recheck import recheck
from nonloc_paper.training.fit import fit

pytestmark = pytest.mark.gpu

BFLOAT16 = {"precision": "bfloat16", "channels_last": True}


def test_rows_come_from_runs_side_by_side_and_the_diverged_one_was_watched(tmp_path):
    table = MapTable(tmp_path / "one_epoch.jsonl")
    part = small_part(CALM, WILD, STABLE, **BFLOAT16)
    data = {"cifar10": small_data()}
    progress = run_part(part, table, tmp_path / "work", data=data, device="cuda", side_by_side=3)
    assert progress.left == ()
    rows = {row["cell"]: row for row in table.rows}
    assert rows[CALM.name]["ending"] == rows[STABLE.name]["ending"] == "converged"
    wild = rows[WILD.name]
    assert wild["ending"] == "diverged"
    assert wild["before_error"] is None
    assert wild["before"]


def test_what_came_before_is_measured_on_the_device(tmp_path):
    """Calm for two epochs of 101 steps, then a rate that no network bears."""
    changes = {"batch_size": 2, "epochs": 3, "schedule": "step", "milestones": (2,), "gamma": 1e12}
    table = MapTable(tmp_path / "one_epoch.jsonl")
    data = {"cifar10": small_data(train=202)}
    run_part(small_part(CALM, **changes, **BFLOAT16), table, tmp_path / "work", data=data, device="cuda")
    (row,) = table.rows
    looked = row["before"]
    assert [each["step"] for each in looked] == [
        step for step in range(row["step"] - 100, row["step"] + 1) if step % 10 == 0
    ]
    stage = looked[0]["stages"][0]
    assert 0.5 < stage["amplification"] < 2
    assert 0.5 < stage["growth"] < 2


def test_an_error_is_computed_again_to_the_last_image(tmp_path):
    recipe = CALM.recipe(small_part(CALM, epochs=3, **BFLOAT16).base, 0)
    fit(recipe, tmp_path, data=small_data(), device="cuda", progress=False)
    found = recheck(tmp_path, small_data(), device="cuda")
    assert found.is_same_hardware
    assert found.device == torch.cuda.get_device_name()
    assert (found.images, found.agrees) == (0, True)
