"""The records stay small: every clone has them. A megabyte is 1,000,000 bytes, as in what `--keep` prints."""

from pathlib import Path

from nonloc_paper.suites.matching_tables import MATCHING

RESULTS = Path(__file__).parents[1] / "results"
RECORDS, WEIGHTS = 60, 25  # megabytes: of all records, and of the weights with 3 and 9 bottlenecks a group
FIX = "keep weights of fewer rows: Suite.weighed, or --weights none"


def megabytes(folder, pattern="*"):
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 1e6


def test_the_records_stay_small():
    weights = sum(megabytes(RESULTS / suite.name, "checkpoints/*") for suite in MATCHING)
    assert 1 < weights <= WEIGHTS, FIX
    assert weights < megabytes(RESULTS) < RECORDS, FIX
