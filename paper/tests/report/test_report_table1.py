"""Table1Runs runs in their rows: found by their recipes, with what is missing named."""

from dataclasses import replace
from pathlib import Path

from made_records import arranged, record, records

from nonloc_paper.report.table1 import (
    afterwards_table,
    apart_table,
    differences_table,
    missing_table,
    rows_table,
    table_figure,
)
from nonloc_paper.report.table1_runs import errors, median_run, read_table1_runs, setting
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


def test_the_affinity_of_the_other_form_is_another_row():
    found = arranged(records("table1-beside", {"5-block (proposed), recomputed affinity": [7.5]}))
    assert found.find(form="diffusive", blocks=5) is None
    assert found.find(form="diffusive", blocks=5, shared=False).scores == [7.5]


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
    scores = {row.label: row.scores for row in found.tried if row.started}
    assert scores == {"diffusive-4, scaled": [9.0], "preresnet20 baseline": [8.5]}
    assert row_of(found, "baseline").scores == [8.5], "which is the baseline of Table 1, too"
    assert not [row for row in found.rows if row.group == "Other runs"]


def test_a_suite_without_runs_of_its_own_is_planned_and_has_no_rows():
    found = arranged(
        records("table1", {"baseline": [8.0]}), records("protocol", {"preresnet29 baseline": [8.1]})
    )
    assert "table1-n3" in {suite.name for suite in found.planned}
    assert not any("n = 3" in row.group for row in found.rows)
    assert any(text == "planned: 75" for _, text in missing_table(found).lines)
    assert found.find(form=None, backbone="preresnet29").scores == [8.1]
    row = SUITES["table1-n3"].rows[1]
    more = arranged([record(row.recipe, 8.2)])
    assert any("n = 3" in one.group and one.started for one in more.rows)


def test_baselines_of_either_data_are_rows_of_the_backbones():
    labels = ["CIFAR-10, n = 3, public layout", "CIFAR-100, n = 9, He's layout"]
    found = arranged(records("backbones", {label: [8.0] for label in labels}))
    assert [row.label for row in found.backbones_tried if row.started] == labels
    assert found.recorded == []


def test_other_data_is_left_out(tmp_path):
    run = tmp_path / "demo" / "0"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text('{"network": "restorer8/baseline", "data": "motifs"}')
    assert not [row for row in read_table1_runs(tmp_path).rows if row.started]


def test_the_median_run_is_the_lower_of_two_in_the_middle():
    row = row_of(arranged(records("table1", {"baseline": [8.4, None, 8.1, 8.3, 8.2]})), "baseline")
    assert median_run(row).recipe.seed == 4
    assert errors(row)[1] == 90.0


def test_the_table_names_what_diverged_and_what_is_missing():
    found = arranged(records("table1", {"baseline": [8.4, 8.1, 8.3], "4-block (original)": [None, 8.0]}))
    lines = {line[0]: line for line in rows_table(found.rows[:11]).lines}
    assert lines["baseline"] == (
        "baseline",
        "8.19",
        "3",
        "8.30",
        "8.10 to 8.40",
        "8.40, 8.10, 8.30, missing, missing",
        "0 of 3",
        "100",
    )
    assert lines["4-block (original)"][5:7] == (
        "diverged at step 1234, 8.00, missing, missing, missing",
        "1 of 2",
    )
    missing = dict(missing_table(found).lines)
    assert (missing["baseline"], missing["2-block (original)"]) == ("2 of 5", "5 of 5")


def test_differences_are_paired_by_seed():
    numbers = {
        "baseline": [8.0, 8.2],
        "2-block (original)": [7.9, 8.1],
        "2-block (proposed)": [7.8, 8.0, 1.0],
    }
    lines = differences_table(arranged(records("table1", numbers))).lines
    assert tuple(lines) == (
        ("2-block (original)", "−0.10 [−0.10, −0.10], n = 2", "−0.36", "–", "–"),
        (
            "2-block (proposed)",
            "−0.20 [−0.20, −0.20], n = 2",
            "−0.45",
            "−0.10 [−0.10, −0.10], n = 2",
            "−0.09",
        ),
    )


def test_pairs_of_which_a_run_diverged_are_counted_and_not_averaged():
    numbers = {
        "baseline": [8.0, 8.2, 8.4],
        "2-block (original)": [None, 8.0, 8.0],
        "2-block (proposed)": [None, None, 7.5],
    }
    lines = differences_table(arranged(records("table1", numbers))).lines
    lost = "2 of 3 pairs lost by divergence"
    assert lines[1][1::2] == (f"{lost}; −0.90, n = 1", f"{lost}; −0.50, n = 1")
    numbers["2-block (proposed)"] = [None, None, None]
    lines = differences_table(arranged(records("table1", numbers))).lines
    assert lines[1][1::2] == ("3 of 3 pairs lost by divergence",) * 2


def test_what_was_asked_afterwards():
    """Errors that are linear in the number of blocks, and a form that is half a point above the other."""
    blocks = {"original": range(2, 5), "proposed": range(2, 7)}
    numbers = {
        f"{n}-block ({form})": [8.0 - 0.1 * n + 0.5 * (form == "proposed") + noise for noise in (0, 0.3)]
        for form, span in blocks.items()
        for n in span
    }
    found = arranged(records("table1", numbers))
    lines = afterwards_table(found).lines
    differences = dict(lines)
    assert differences["proposed less original, the mean over 2, 3 and 4 blocks"].startswith(
        "+0.50 [+0.50, +0.50]"
    )
    assert differences["3 proposed less 2 original, 219,482 parameters each"].startswith(
        "+0.40 [+0.40, +0.40]"
    )
    for form, span in blocks.items():
        name = f"a block more, {form} form, 2 to {span[-1]} blocks (slope of the error)"
        assert differences[name] == "−0.10 [−0.10, −0.10], n = 2"
    numbers["3-block (original)"] = [None, None]
    lines = afterwards_table(arranged(records("table1", numbers))).lines
    assert "the mean over" not in str(lines), "no seed has them all without divergence"
    assert not afterwards_table(arranged(records("table1", {"baseline": [8.0]})))


def test_divided_logits_are_compared_with_the_baseline_and_with_divided_logits():
    places = "3 blocks in different places"
    numbers = {
        f"{places} (original), logits / √d": [8.0, 8.0],
        f"{places} (proposed), logits / √d": [7.0, 7.0],
    }
    table = {"baseline": [9.0, 9.0], f"{places} (original)": [5.0, 5.0]}
    lines = differences_table(arranged(records("table1", table), records("table1-beside", numbers))).lines
    found = {line[0]: line[1:] for line in lines}
    assert found[f"{places} (proposed), logits / √d"] == (
        "−2.00 [−2.00, −2.00], n = 2",
        "–",
        "−1.00 [−1.00, −1.00], n = 2",
        "–",
    )


def test_form_and_affinity_are_compared_one_at_a_time():
    table = {"5-block (proposed)": [8.0, 8.0, 1.0], "4-block (proposed)": [8.0], "4-block (original)": [9.0]}
    beside = {
        "5-block (original), shared affinity": [8.5, 8.5],
        "5-block (proposed), recomputed affinity": [7.8, 7.8],
    }
    assert not apart_table(arranged(records("table1", table))), "4 blocks differ in both"
    lines = apart_table(arranged(records("table1", table), records("table1-beside", beside))).lines
    assert tuple(lines) == (
        ("5 blocks, start 0.01", "proposed", "recomputed less shared", "−0.20 [−0.20, −0.20], n = 2"),
        ("5 blocks, start 0.01", "shared", "proposed less original", "−0.50 [−0.50, −0.50], n = 2"),
    )


def test_a_row_is_named_with_its_start_where_it_is_another():
    found = arranged(
        records("table1", {"2-block (original)": [8.0]})
        + records("table1-fragile", {"2-block (original)": [8.5]})
        + records("table1-stable", {"4-block (stable), deviation 0.07": [8.5]})
    )
    assert [found.name(row) for row in found.recorded] == [
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
    assert [row.scores for row in again.tried] == [row.scores for row in once.tried]
    assert again.rows == once.rows
    assert sorted(score for row in again.copies for score in row.scores) == [99.0] * 4


def test_runs_of_no_suite_are_one_row_a_setting_and_say_what_they_are():
    recipe = next(row for row in SUITES["table1"].rows if row.label == "4-block (original)").recipe
    default = [
        record(
            recipe.with_(stage={"init": "torch"}, seed=seed, precision=precision),
            8.0 + seed,
            path=Path(str(seed)),
        )
        for seed, precision in ((0, "bfloat16"), (1, "float32"))
    ]
    found = arranged(default)
    (row,) = [row for row in found.rows if row.group == "Other runs"]
    assert row.label == "preresnet20, 4 original after 2, start torch, weight factored, rate 0.1"
    assert found.find(form="original", blocks=4, start="torch").scores == [8.0, 9.0]


def test_the_picture_has_every_seed_and_writes_what_lies_above_it():
    errors_ = {"baseline": [8.5], "4-block (original)": [8.3, None, 30.0], "4-block (proposed)": [8.2, 8.4]}
    found = arranged(
        records("table1", errors_), records("table1-fragile", {"2-block (original)": [None, None]})
    )
    main, fragile = table_figure(found).axes
    assert [main.get_title(loc="left"), fragile.get_title(loc="left")] == ["start 0.01", "start 0.07"]
    assert [text.get_text() for text in main.texts] == ["✕ 1/3", "▲ 30.00", "◇ 15.02"]
    assert [text.get_text() for text in fragile.texts] == ["✕ 2/2"]
    circles = [list(line.get_ydata()) for line in main.lines if line.get_marker() == "o"]
    assert circles == [[8.2, 8.4]]
    assert main.get_ylim()[1] < 15
    assert table_figure(arranged(records("table1", {"baseline": [8.5]}))) is None


def test_different_places_stand_in_a_column_of_their_own():
    numbers = {
        "2-block (original)": [8.3],
        "3 blocks in different places (proposed)": [None],
        "6-block (proposed)": [8.1],
    }
    (axes,) = table_figure(arranged(records("table1", numbers))).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "6", "3 after\n2, 4, 6"]
    assert [text.get_text() for text in axes.texts] == ["✕ 1/1"]
