"""The records stay small: every clone has them. A megabyte is 1,000,000 bytes, as in what `--keep` prints."""

from pathlib import Path

import pytest

from nonloc_paper.suites.matching_tables import MATCHING

RESULTS = Path(__file__).parents[1] / "results"
RECORDS, WEIGHTS = 60, 25  # megabytes: of all records, and of the weights with 3 and 9 bottlenecks a group
FIX = "keep weights of fewer rows: Suite.weighed, or --weights none"


def megabytes(folder, pattern="*"):
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 1e6


def check_sizes(results):
    weights = sum(megabytes(results / suite.name, "checkpoints/*") for suite in MATCHING)
    assert weights <= WEIGHTS, FIX
    assert megabytes(results) < RECORDS, FIX


def test_the_records_stay_small():
    assert any((RESULTS / "table1-n3").rglob("*.safetensors")), "there is something to add up"
    check_sizes(RESULTS)


@pytest.mark.parametrize(
    ("name", "size"),
    [("table2-n9/baseline/2/checkpoints/00064124.safetensors", WEIGHTS), ("map/one_epoch.jsonl", RECORDS)],
)
def test_too_much_is_noticed(tmp_path, name, size):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size * 1_000_000 - 1)  # takes no room on the disk
    check_sizes(tmp_path)
    with path.open("ab") as file:
        file.write(b"ab")
    with pytest.raises(AssertionError, match="keep weights of fewer rows"):
        check_sizes(tmp_path)
