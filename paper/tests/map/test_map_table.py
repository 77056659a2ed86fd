"""MapTable: what is no row, or stands there twice, is named by its line."""

import json

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.map.table import MapTable

ROW = {"cell": "rate 0.1, torch, original 2", "rate": 0.1, "init": "torch", "form": "original", "blocks": 2}
ROW |= {"seed": 0, "ending": "converged", "step": None, "first_loss": 2.3, "last_loss": 1.4, "mean_loss": 1.5}
ROW |= {"error": 50.0, "test_loss": 1.4, "seconds": 2.0, "device": "cpu", "side_by_side": 1}
ROW["epochs"] = [{"epoch": 1, "train_loss": 1.9, "test_loss": 1.4, "error": 50.0}]
ROW |= {"before_error": None, "before": [], "after": None, "recipe_sha256": "0" * 64}
LOST = ROW | {"seed": 1, "ending": "diverged", "step": 10, "error": None, "test_loss": None}
MOMENT = {"step": 10, "loss": 2.0, "stages": []}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW}, "rate 0.1, torch, original 2, seed 0 once more"),
        ({**ROW, "seed": 1, "ending": "ended"}, "has ending 'ended', not one of"),
        ({**LOST, "step": None}, "has ending 'diverged' at step None"),
        ({**ROW, "seed": 1, "seconds": float("nan")}, "is not a JSON object"),
        ({**ROW, "seed": 1, "error": 49.0}, "that is not that of its last epoch"),
        ({**ROW, "seed": 1, "epochs": ROW["epochs"] * 2}, "has epochs that do not count from 1"),
        ({**ROW, "seed": 1, "before": [MOMENT]}, "has moments that do not come before its divergence"),
        ({**LOST, "step": 9, "before": [MOMENT]}, "has moments that do not come before its divergence"),
        ({**ROW, "seed": 1, "blocks": 3}, "has the cell .*original 2', not .*original 3'"),
        ([], "line 2"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, row, message):
    path = tmp_path / "one_epoch.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(row)}\n")
    with pytest.raises(CorruptDataError, match=message) as found:
        MapTable(path)
    assert "line 2" in str(found.value)


def test_a_row_is_added_once(tmp_path):
    table = MapTable(tmp_path / "new" / "one_epoch.jsonl")
    table.append(ROW)
    assert MapTable(table.path).rows == [ROW]
    with pytest.raises(ValueError, match="already has"):
        table.append(ROW)
