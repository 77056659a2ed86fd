"""The finding in README: its lines say what the records say, and what is not there yet."""

import pytest
from made_kept import deep_originals, map_line, map_lines, records, write, write_map

from nonloc.paper.map_cells import PARTS
from nonloc.paper.spent import note_spent
from nonloc.report.finding import FIGURE, finding


@pytest.fixture
def results(tmp_path):
    write(tmp_path, records("table1", {"baseline": [9.0, 9.2, 9.1], "5-block (proposed)": [8.8, 8.8, 8.8]}))
    write_map(tmp_path, "ten_epochs", map_lines("ten_epochs", deep_originals))
    return tmp_path


def line(text, name):
    (found,) = [line for line in text.splitlines() if line.startswith(f"- **{name}.**")]
    return found


def test_the_table_is_told_by_the_paired_difference(results):
    text = line(finding(results), "The table")
    assert "6 of 99 planned runs" in text
    assert "in points of error, by the number of blocks: proposed 5: −0.30 (n = 3). Of the paper's" in text
    assert "Proposed less original" not in text


def test_the_forms_are_compared_where_both_are_there(results):
    write(
        results, records("table1", {"4-block (original)": [8.0, 8.2], "4-block (proposed)": [8.6, 8.7, 8.6]})
    )
    text = line(finding(results), "The table")
    assert "original 4: −1.00; proposed 4: −0.47, 5: −0.30 (n = 2 to 3)." in text
    assert " Proposed less original: 4 blocks +0.55 [−0.09, +1.19], n = 2." in text


def test_rows_of_the_table_that_diverged_are_named(results):
    write(results, records("table1", {"3 blocks in different places (proposed)": [None, 8.0, None]}))
    write(results, records("table1-fragile", {"4-block (original)": [None]}))
    text = line(finding(results), "The table")
    assert (
        " Diverged: 3 blocks in different places (proposed) 2 of 3; 4-block (original), start 0.07 1 of 1. Of "
        in text
    )


def test_what_stages_do_is_told_as_in_the_report(results):
    told = line(finding(results), "What trained stages do")
    assert "Proposed stages, 5 blocks: 5 to 5 % of the energy of sym(W) is negative" in told
    assert "in the first sub-block of 0 of 3 runs and in 6 of 12 later ones; the features'" in told
    assert told.endswith("variance changes by factors of 0.50 to 0.50.")


def test_divergences_are_counted_by_form_and_kernel(results):
    told = line(finding(results), "What diverges")
    assert told.endswith(
        "begin: normal 0.05, normal 0.07 and torch. Original stages, 2, 3 and 4 blocks: 12 of 27; diffusive stages, "
        "2, 4, 5 and 6 blocks: 0 of 36; stable stages, 4 and 12 blocks: 0 of 18."
    )
    write_map(
        results, "ten_epochs_scaled", map_lines("ten_epochs_scaled", lambda cell, seed: cell.blocks == 12)
    )
    told = line(finding(results), "What diverges")
    assert "original stages, 2, 3 and 4 blocks with logits divided by √d: 0 of 27; " in told
    assert told.endswith("stable stages, 4 and 12 blocks with logits divided by √d: 9 of 18.")


def test_families_of_which_no_run_diverged_are_told_together_where_something_is_changed(results):
    write_map(results, "ten_epochs_scaled", map_lines("ten_epochs_scaled", lambda cell, seed: False))
    told = line(finding(results), "What diverges")
    assert "; stable stages, 4 and 12 blocks: 0 of 18; " in told
    assert told.endswith("; original, diffusive and stable stages with logits divided by √d: 0 of 54.")


def test_either_affinity_is_told_first_and_no_run_is_left_out(results):
    write_map(results, "ten_epochs_shared", map_lines("ten_epochs_shared", lambda cell, seed: False))
    write_map(results, "ten_epochs_recomputed", map_lines("ten_epochs_recomputed", lambda cell, seed: True))
    told = line(finding(results), "What diverges")
    assert "and torch. Original stages, 2, 3 and 4 blocks: 12 of 27 with an affinity for each block" in told
    assert (
        "; diffusive stages, 2, 4 and 6 blocks: 27 of 27 with an affinity for each block, 0 of 27 with"
        in told
    )
    assert told.endswith(
        " (p < 0.001). Diffusive stages, 5 blocks: 0 of 9; stable stages, 4 and 12 blocks: 0 of 18."
    )


def test_logits_are_told_for_every_ending_and_either_affinity(results):
    told = line(finding(results), "How far logits spread")
    assert told.endswith("69 runs, at their end: 7 (median; 7 to 7), in 69 of them less than 100.")
    watched, missed = (map_line(cell, 0, diverged=400) for cell in PARTS["ten_epochs_recomputed"].cells[:2])
    watched["before"] = [{"step": 340, "loss": 1.0, "stages": [{"logit_spread": 12_345.0}]}]
    missed["before"] = []
    write_map(results, "ten_epochs_recomputed", [watched, missed])
    told = line(finding(results), "How far logits spread")
    assert "1 of 14 runs, 50 steps before they diverged: 12,300 (median; 12,300 to 12,300), in 0 of" in told


def test_time_is_added_up_over_folders(results):
    note_spent(results / "map", seconds=600.0, device="GPU", runs=2)
    note_spent(results / "table1", seconds=1200.0, device="GPU", runs=2)
    assert line(finding(results), "Conditions").endswith(
        "; Python 3; 30 minutes on GPU for `nonloc reproduce table1` and `nonloc map`."
    )


def test_nothing_yet(tmp_path):
    text = finding(tmp_path)
    assert FIGURE in text
    assert "0 of 99 planned runs of Table 1 and its neighbours are recorded. Of the" in line(
        text, "The table"
    )
    assert line(text, "What trained stages do").endswith("No trained network was looked at yet.")
    assert line(text, "What diverges").endswith("Nothing is recorded yet.")
    assert line(text, "How far logits spread").endswith("no run was watched yet.")
    assert line(text, "Conditions").endswith("no time is noted.")
