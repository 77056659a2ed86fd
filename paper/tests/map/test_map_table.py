"""MapTable: what is no row, or stands there twice, is named by its line."""

import json

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.map.table import MapTable

ROW = {
    "cell": "rate 0.1, torch, original 2",
    "rate": 0.1,
    "init": "torch",
    "form": "original",
    "blocks": 2,
    "seed": 0,
    "ending": "converged",
    "step": None,
    "mean_loss": 1.5,
    "seconds": 2.0,
    "recipe_sha256": "0" * 64,
}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW}, "rate 0.1, torch, original 2, seed 0 once more"),
        ({key: value for key, value in ROW.items() if key not in ("form", "ending")}, "lacks form"),
        ({**ROW, "seed": 1, "recipe_sha256": None}, "lacks recipe_sha256"),
        ({**ROW, "seed": 1, "ending": "ended"}, "has ending 'ended' at step None"),
        ({**ROW, "seed": 1, "ending": "diverged"}, "has ending 'diverged' at step None"),
        ({**ROW, "seed": 1, "seconds": float("nan")}, "has seconds nan"),
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
