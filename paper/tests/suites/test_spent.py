"""What runs have cost: lines in, lines out."""

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.suites.spent import note_spent, read_all_spent


def test_lines_come_back_by_folder(tmp_path):
    for seconds in (2.5, 3):
        note_spent(tmp_path / "map", seconds=seconds, runs=1)
    assert read_all_spent(tmp_path) == {
        tmp_path / "map": [{"seconds": 2.5, "runs": 1}, {"seconds": 3, "runs": 1}]
    }


def test_a_line_without_its_seconds_is_named(tmp_path):
    note_spent(tmp_path, seconds=2.5)
    note_spent(tmp_path, seconds=None, runs=1)
    with pytest.raises(CorruptDataError, match=r"spent\.jsonl, line 2, lacks seconds; delete that line"):
        read_all_spent(tmp_path)
