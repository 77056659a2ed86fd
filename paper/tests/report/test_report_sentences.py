"""Sentences follow the numbers, whichever way these came out."""

import pytest
from made import RESTORER, make_row, make_run
from made_records import arranged, records

from nonloc_paper.report import sentences
from nonloc_paper.report.records import Collection, RowRecord
from nonloc_paper.suites import SUITES
from nonloc_paper.training.recipe import Recipe

CLASSIFIER = "preresnet20/baseline"


def test_the_better_row_is_ahead_and_the_worse_behind(tmp_path):
    good, bad = make_row(tmp_path, "good", [25.0, 24.0, 26.0]), make_row(tmp_path, "bad", [22.0, 21.0, 23.0])
    assert sentences.compare(good, bad) == (
        "“good” is ahead of “bad”: +3.00 [+3.00, +3.00], n = 3 (dB, paired by seed)."
    )
    assert sentences.compare(bad, good).startswith("“bad” is behind “good”: −3.00 ")
    assert sentences.compare(good, good).startswith("“good” is level with “good”: 0.00 ")


def test_of_errors_the_lower_is_ahead_and_one_seed_is_chance(tmp_path):
    low, high = (
        make_row(tmp_path, "low", [7.0], network=CLASSIFIER),
        make_row(tmp_path, "high", [8.5, 8.0], network=CLASSIFIER),
    )
    assert sentences.compare(low, high) == (
        "“low” is ahead of “high”: −1.50, n = 1 (points of error, paired by seed); one seed cannot tell a "
        "difference from chance."
    )
    assert sentences.compare(high, low).startswith("“high” is behind “low”: +1.50")


def test_on_a_page_of_runs_every_seed_counts_also_one_that_decides_nothing():
    labels = ("5-block (proposed), own affinities", "5-block (proposed)")
    runs = arranged(records("table1-n3", {labels[0]: [7.5], labels[1]: [8.0]}))
    own, one = (runs.rows_of(SUITES["table1-n3"])[label] for label in labels)
    assert "is ahead of “5-block (proposed)”: −0.50, n = 1" in sentences.compare(own, one)


def test_without_scores_nothing_is_compared(tmp_path):
    text = sentences.compare(make_row(tmp_path, "one", [None]), make_row(tmp_path, "other", [20.0]))
    assert text == "“one” cannot be compared with “other”: no seed of both ended with a score."


def test_what_is_missing_is_said(tmp_path):
    row = RowRecord("r", RESTORER, (make_run(tmp_path / "0", RESTORER), None, None))
    assert sentences.missing(Collection(tmp_path, (row,))) == (
        "Not all runs are there: 2 not begun and 1 not finished."
    )
    whole = make_row(tmp_path, "whole", [20.0])
    assert sentences.missing(Collection(tmp_path, (whole,))) == ""


@pytest.mark.parametrize("places", ["2", "1,3"])
def test_affinities_are_held_against_chance_and_of_several_stages_each_is_named(tmp_path, places):
    recipe = Recipe(network=f"restorer8/diffusive-1@{places}", data="motifs")
    names = [f"trunk.stages.{place}" for place in places.split(",")]
    seen = {
        "step": 20,
        "affinity": [{"stage": name, "same_share": 0.42, "same_chance": 0.1} for name in names],
    }
    run = make_run(tmp_path / "0", recipe, 20.0, observed={"observations": seen})
    texts = sentences.affinity_findings(RowRecord("r", recipe, (run,)))
    for name, text in zip(names, texts, strict=True):
        assert text.startswith(
            f"“r”, {name}: 42 % of the weight" if len(names) > 1 else "“r”: 42 % of the weight"
        )
        assert "would give 10 %" in text


def test_time_and_machine(tmp_path):
    rows = (make_row(tmp_path, "a", [20.0, 21.0]),)
    collection = Collection(tmp_path, rows, plan={"seconds": 12.0})
    assert sentences.time_sentence(collection) == (
        "2 runs that ended: 10 s of training, 5 s on average; the whole command 12 s."
    )
    assert sentences.machines(collection) == ["abacus, 2 cores, device cpu, table; python 3"]


def test_a_run_that_diverged_has_ended_and_is_told_apart(tmp_path):
    runs = (make_run(tmp_path / "0", RESTORER, 20.0), make_run(tmp_path / "1", RESTORER, diverged_at=3), None)
    assert sentences.time_sentence(Collection(tmp_path, (RowRecord("r", RESTORER, runs),))) == (
        "2 runs that ended, 1 of them by diverging: 10 s of training, 5 s on average."
    )
