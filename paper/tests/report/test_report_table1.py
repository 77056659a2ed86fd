"""Table1Runs runs in their rows: found by their recipes, with what is missing named."""

from dataclasses import replace
from pathlib import Path

from made_records import arranged, record, records

from nonloc_paper.report.table1 import differences_table, missing_table, rows_table
from nonloc_paper.report.table1_runs import errors, median_run, read_table1_runs, row_name, setting
from nonloc_paper.suites import SUITES


def row_of(found, label, group=""):
    return next(row for row in found.rows if row.label == label and group in row.group)


def test_rows_with_the_same_label_are_told_apart_by_their_recipes():
    found = arranged(
        records("table1", {"2-block (original)": [8.0]}),
        records("table1-fragile", {"2-block (original)": [9.0, 9.2]}),
    )
    assert errors(row_of(found, "2-block (original)", "The same place")) == {0: 8.0}
    assert errors(row_of(found, "2-block (original)", "0.07")) == {0: 9.0, 1: 9.2}
    assert found.find(form="original", blocks=2).scores == [8.0]
    assert found.find(form="original", blocks=2, start="0.07").scores == [9.0, 9.2]
    assert found.find(form="original", blocks=3) is None


def test_a_baseline_has_no_start():
    baseline = SUITES["table1"].rows[0].recipe
    assert setting(baseline.with_(stage={"init_std": 0.5})) == setting(baseline)


def test_what_is_of_no_suite_stands_among_the_other_runs():
    strange = SUITES["table1"].rows[1].recipe.with_(batch_size=64)
    found = arranged([record(strange, 8.0)])
    assert "batch_size is 64" in setting(strange).other
    (row,) = [row for row in found.rows if row.started]
    assert row.group == "Other runs"
    assert found.find(form="original", blocks=2) is None


def test_runs_of_the_protocol_are_rows_of_their_own():
    found = arranged(records("protocol", {"diffusive-4, scaled": [9.0], "preresnet20 baseline": [8.5]}))
    scores = {row.label: row.scores for row in found.suites["protocol"] if row.started}
    assert scores == {"diffusive-4, scaled": [9.0], "preresnet20 baseline": [8.5]}
    assert row_of(found, "baseline").scores == [8.5], "which is the baseline of Table 1, too"
    assert not [row for row in found.rows if row.group == "Other runs"]


def test_a_suite_without_runs_of_its_own_is_planned_and_has_no_rows():
    found = arranged(
        records("table1", {"baseline": [8.0]}), records("protocol", {"preresnet29 baseline": [8.1]})
    )
    assert "table1-n3" in {suite.name for suite in found.planned}
    assert not any("3 bottlenecks" in row.group for row in found.rows)
    assert any(text == "planned: 75" for _, text in missing_table(found).lines)
    assert found.find(form=None, backbone="preresnet29").scores == [8.1]
    row = SUITES["table1-n3"].rows[1]
    more = arranged([record(row.recipe, 8.2)])
    assert any("3 bottlenecks" in one.group and one.started for one in more.rows)


def test_what_blocks_share_of_an_affinity_is_part_of_the_setting():
    suite = SUITES["corners-n3"]
    found = arranged(
        records("corners-n3", {row.label: [8.0 + n] for n, row in enumerate(suite.rows)}),
        records("table1-n3", {"5-block (proposed), own affinities": [7.5], "5-block (proposed)": [7.75]}),
    )
    assert [row.scores for row in found.suites["corners-n3"]] == [[8.0], [9.0]]
    five = {
        shared: found.find(form="diffusive", blocks=5, backbone="preresnet29", shared=shared)
        for shared in (0, 1)
    }
    assert [row.scores for row in five.values()] == [[7.5], [7.75]]
    assert not found.copies


def test_baselines_of_either_data_are_rows_of_the_backbones():
    labels = [
        "CIFAR-10, 3 bottlenecks a group, public layout",
        "CIFAR-100, 9 bottlenecks a group, He's layout",
    ]
    found = arranged(records("backbones", {label: [8.0] for label in labels}))
    assert [row.label for row in found.suites["backbones"] if row.started] == labels
    assert found.recorded == []


def test_other_data_is_left_out(tmp_path):
    run = tmp_path / "demo" / "0"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text('{"network": "restorer8/baseline", "data": "motifs"}')
    assert not [row for row in read_table1_runs(tmp_path).rows if row.started]


def test_the_median_run_is_the_lower_of_two_in_the_middle():
    row = row_of(arranged(records("table1", {"baseline": [8.4, None, 8.1, 8.3, 8.2]})), "baseline")
    assert median_run(row).recipe.seed == 4
    assert 1 not in errors(row), "a diverged run has no error"


def test_the_table_names_what_diverged_and_what_is_missing():
    found = arranged(records("table1", {"baseline": [8.4, 8.1, 8.3], "4-block (original)": [None, 8.0]}))
    lines = {line[0]: line for line in rows_table(found.rows[:11]).lines}
    assert lines["baseline"][1:5] == ("8.19", "3", "8.30", "8.10 to 8.40")
    assert lines["baseline"][5:] == ("8.40, 8.10, 8.30, missing, missing", "0 of 3", "100")
    *_, every, gone, _ = lines["4-block (original)"]
    assert (every, gone) == ("diverged at step 1234, 8.00, missing, missing, missing", "1 of 2")
    missing = dict(missing_table(found).lines)
    assert (missing["baseline"], missing["2-block (original)"]) == ("2 of 5", "5 of 5")


def test_differences_are_paired_by_seed_and_stand_beside_the_published_ones():
    numbers = {"baseline": [8.0, 8.2], "2-block (original)": [7.9, 8.1]}
    numbers["2-block (proposed)"] = [7.8, 7.6, 1.0]
    lines = differences_table(arranged(records("table1", numbers))).lines
    less_baseline = ("−0.10 [−0.10, −0.10], n = 2", "−0.36, outside −0.10 to −0.10")
    assert lines[0] == ("2-block (original)", *less_baseline, "–", "–")
    # Differences of −0.2 and −0.6: 12.706 · 0.28284 · √(1/2 + π/10) = 3.24 around −0.4.
    assert lines[1][1:3] == ("−0.40 [−2.94, +2.14], n = 2", "−0.45, inside −3.64 to +2.84")
    assert lines[1][4].startswith("−0.09, inside ")


def test_pairs_of_which_a_run_diverged_are_counted_and_not_averaged():
    numbers = {"baseline": [8.0, 8.2, 8.4], "2-block (original)": [None, 8.0, 8.0]}
    numbers["2-block (proposed)"] = [None, None, 7.5]
    lines = differences_table(arranged(records("table1", numbers))).lines
    lost = "2 of 3 seeds lost by divergence"
    assert lines[1][1::2] == (f"−0.90, n = 1; {lost}", f"−0.50, n = 1; {lost}")
    numbers["2-block (proposed)"] = [None, None, None]
    lines = differences_table(arranged(records("table1", numbers))).lines
    assert lines[1][1::2] == ("3 of 3 seeds lost by divergence",) * 2


def test_divided_logits_are_compared_with_the_baseline_and_with_divided_logits():
    places = "3 blocks in different places"
    numbers = {
        f"{places} (original), logits / √d": [8.0, 8.0],
        f"{places} (proposed), logits / √d": [7.0, 7.0],
    }
    table = {"baseline": [9.0, 9.0], f"{places} (original)": [5.0, 5.0]}
    lines = differences_table(arranged(records("table1", table), records("table1-beside", numbers))).lines
    found = {line[0]: line[1:] for line in lines}
    differences = ("−2.00 [−2.00, −2.00], n = 2", "–", "−1.00 [−1.00, −1.00], n = 2", "–")
    assert found[f"{places} (proposed), logits / √d"] == differences


def test_a_row_is_named_with_its_start_where_it_is_another():
    found = arranged(
        records("table1", {"2-block (original)": [8.0]})
        + records("table1-fragile", {"2-block (original)": [8.5]})
        + records("table1-stable", {"4-block (stable), deviation 0.07": [8.5]})
    )
    assert [row_name(row) for row in found.recorded] == [
        "2-block (original)",
        "2-block (original), start 0.07",
        "4-block (stable), deviation 0.07",
    ]


def test_a_copy_of_a_run_changes_no_number():
    labels = ["diffusive-4, scaled", "preresnet29 baseline"]
    runs = records("protocol", {label: [9.0, 9.1] for label in labels})
    copies = [
        replace(run, path=Path("z") / run.path, result={**run.result, "metrics": {"error": 99.0}})
        for run in runs
    ]
    once, again = arranged(runs), arranged(runs, copies)
    assert [row.scores for row in again.suites["protocol"]] == [row.scores for row in once.suites["protocol"]]
    assert again.rows == once.rows
    assert sorted(score for row in again.copies for score in row.scores) == [99.0] * 4


def test_runs_of_no_suite_are_one_row_a_setting_and_say_what_they_are():
    recipe = next(row for row in SUITES["table1"].rows if row.label == "4-block (original)").recipe
    torch = recipe.with_(stage={"init": "torch"})
    # What a run is computed by is no part of its setting.
    other = torch.with_(seed=1, precision="float32", channels_last=False, spectrum_epochs=())
    found = arranged([record(torch, 8.0, path=Path("0")), record(other, 9.0, path=Path("1"))])
    (row,) = [row for row in found.rows if row.group == "Other runs"]
    assert row.label == "preresnet20, 4 original after 2, start torch, weight factored, rate 0.1"
    assert found.find(form="original", blocks=4, start="torch").scores == [8.0, 9.0]


def test_rows_on_a_backbone_that_matches_are_sorted_whatever_was_trained_first():
    found = arranged(records("table1-n3", {"5-block (proposed), own affinities": [7.5]}))
    labels = [row.label for row in found.rows if "3 bottlenecks" in row.group]
    own = [f"{n}-block (proposed), own affinities" for n in (2, 3, 4, 5, 6)]
    one = [f"{n}-block (proposed)" for n in (2, 3, 4, 5, 6)]
    assert labels == ["baseline", *(f"{n}-block (original)" for n in (1, 2, 3, 4)), *own, *one]
