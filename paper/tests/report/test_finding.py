"""The finding in README: its lines say what the records say, and what is not there yet."""

import pytest
from made_kept import deep_originals, map_line, map_lines, records, write, write_map

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.finding import FIGURE, finding
from nonloc_paper.suites.records import note_spent


@pytest.fixture
def results(tmp_path):
    write(tmp_path, records("table1", {"baseline": [9.0, 9.2, 9.1], "5-block (proposed)": [8.8, 8.8, 8.8]}))
    write_map(tmp_path, "ten_epochs", map_lines("ten_epochs", deep_originals))
    return tmp_path


def line(text, name):
    (found,) = [line for line in text.splitlines() if line.startswith((f"- **{name}.**", f"- **{name}** ("))]
    return found


def row(text, blocks):
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {blocks} |")]
    return found


def test_the_table_has_medians_and_differences(results):
    text = finding(results)
    assert row(text, 5) == "| 5 | – | – | 8.80 (7.29) | −0.30 [−0.55, −0.05] | – |"
    assert "| 4 |" not in text
    assert (
        "*Test error in %, median of 3 seeds, in brackets the published one; the baseline, without blocks, has 9.10 "
        "(8.19). Differences: mean of 3 pairs with the same seed, and its 95 % interval.*\n\n- **The paper's claims"
    ) in text
    assert "; 6 of 111 planned runs of" in line(text, "Conditions")


def test_the_forms_are_compared_where_both_are_there(results):
    write(
        results, records("table1", {"4-block (original)": [8.0, 8.2], "4-block (proposed)": [8.6, 8.7, 8.6]})
    )
    text = finding(results)
    assert row(text, 4).startswith("| 4 | 8.10 (15.02) | −1.00 [−1.00, −1.00], n = 2 | 8.60 (7.37) | −0.47 [")
    assert row(text, 4).endswith("], n = 3 | +0.55 [−0.09, +1.19], n = 2 |")
    assert "median of 2 to 3 seeds, " in text
    assert "mean of 2 to 3 pairs with" in text


def test_pairs_that_were_lost_are_counted_and_not_averaged(results):
    write(results, records("table1", {"4-block (original)": [8.6, None, 8.6]}))
    assert "| 8.60 (15.02) | 1 of 3 pairs lost by divergence; −0.45 [" in row(finding(results), 4)


def test_a_table_without_a_baseline_compares_the_forms_alone(tmp_path):
    write(tmp_path, records("table1", {"4-block (original)": [8.0, 8.2], "4-block (proposed)": [8.6, 8.8]}))
    text = finding(tmp_path)
    assert row(text, 4) == "| 4 | 8.10 (15.02) | – | 8.70 (7.37) | – | +0.60 [+0.60, +0.60] |"
    assert "the published one. Differences: mean of 2 pairs" in text


def test_whole_runs_that_diverged_are_counted_by_place_start_and_form(results):
    assert "Whole runs" not in finding(results)
    write(results, records("table1", {"3 blocks in different places (proposed)": [None, 8.0, None]}))
    write(
        results, records("table1-fragile", {"2-block (original)": [8.0, None], "4-block (original)": [None]})
    )
    write(results, records("table1-stable", {"4-block (stable), deviation 0.07": [None, 9.0]}))
    write(results, records("table1-beside", {"5-block (proposed), recomputed affinity": [8.0, None]}))
    assert (
        "**What diverges.** Whole runs: in different places proposed 2 of 3 (2 to run); in one place, start 0.07 "
        in finding(results)
    )
    assert (
        "start 0.07 original 2 of 3 (3 to run), stable 1 of 2 (4 to run); "
        "5-block (proposed), recomputed affinity proposed 1 of 2; all other stages 0 of 3. Ten epochs"
        in finding(results)
    )


def test_divided_logits_stand_beside_what_diverged_without(results):
    write(results, records("table1", {"3 blocks in different places (original)": [None, 8.0, 8.1]}))
    labels = [f"3 blocks in different places ({form}), logits / √d" for form in ("original", "proposed")]
    write(results, records("table1-beside", {labels[0]: [8.0, 8.2], labels[1]: [8.2]}))
    write(results, records("table1-stable", {"4-block (stable), deviation 0.07, logits / √d": [8.2]}))
    assert (
        "Whole runs: in different places original 1 of 3 (2 to run); in different places, logits divided by √d "
        "original 0 of 2, proposed 0 of 1 (1 to run); all other stages 0 of 4. Ten epochs" in finding(results)
    )


def test_what_stages_do_is_told_as_in_the_report(results):
    told = line(finding(results), "What trained stages do")
    assert "Proposed stages, 5 blocks: 5 to 5 % of the energy of sym(W) is negative" in told
    assert "in the first sub-block of 0 of 3 runs and in 6 of 12 later ones; the features'" in told
    assert told.endswith("variance changes by factors of 0.50 to 0.50.")


def test_divergences_are_counted_by_form_and_kernel(results):
    told = line(finding(results), "What diverges")
    assert told.endswith(
        "begin with normal 0.05, normal 0.07 or torch: original stages, 2, 3 and 4 blocks: 12 of 27; diffusive stages, "
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
    assert "or torch: original stages, 2, 3 and 4 blocks: 12 of 27 with an affinity for each block" in told
    assert (
        "; diffusive stages, 2, 4 and 6 blocks: 27 of 27 with an affinity for each block, 0 of 27 with"
        in told
    )
    assert told.endswith(
        " (p < 0.001); diffusive stages, 5 blocks: 0 of 9; stable stages, 4 and 12 blocks: 0 of 18."
    )


def test_logits_are_told_for_every_ending_and_either_affinity(results):
    told = line(finding(results), "How far logits spread")
    assert told.endswith("69 runs, at their end: 7 (median; 7 to 7), below 100 in 69 of them.")
    watched, missed = (map_line(cell, 0, diverged=400) for cell in PARTS["ten_epochs_recomputed"].cells[:2])
    watched["before"] = [{"step": 340, "loss": 1.0, "stages": [{"logit_spread": 12_345.0}]}]
    missed["before"] = []
    write_map(results, "ten_epochs_recomputed", [watched, missed])
    told = line(finding(results), "How far logits spread")
    assert (
        "1 of 14 runs, 50 steps before they diverged: 12,300 (median; 12,300 to 12,300), below 100 in 0 of"
        in told
    )


def test_time_is_added_up_over_folders(results):
    note_spent(results / "map", seconds=600.0, device="GPU", runs=2)
    note_spent(results / "table1", seconds=1200.0, device="GPU", runs=2)
    assert line(finding(results), "Conditions").endswith(
        "; Python 3; 30 minutes on GPU for `nonloc reproduce table1` and the parts of `nonloc map`."
    )


def test_nothing_yet(tmp_path):
    text = finding(tmp_path)
    assert FIGURE in text
    assert "| blocks |" not in text
    assert line(text, "The paper's claims").startswith(
        "- **The paper's claims.** [Of the paper's 20 sentences](docs"
    )
    assert "; 0 of 111 planned runs of" in line(text, "Conditions")
    assert line(text, "What trained stages do").endswith("No trained network was looked at yet.")
    assert line(text, "What diverges").endswith(": nothing is recorded yet.")
    assert line(text, "How far logits spread").endswith("No run was watched yet.")
    assert line(text, "Conditions").endswith("no time is noted.")
