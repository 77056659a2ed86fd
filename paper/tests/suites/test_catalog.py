"""The paper as data: the published numbers, the notes, and suites that can be run."""

import hashlib
import json
import re

import pytest

from nonloc_paper.suites import SUITES

ROWS = [(suite, row) for suite in SUITES.values() for row in suite.rows]


# Of the labels, published numbers and recipes with their seeds: records and folders are named after them.
FROZEN = {
    "demo": "b51f6f1286c161e0",
    "table1": "50e0479be2f9e895",
    "table2": "cf0a5bdcf30e7eb3",
    "figure1": "f8b873378d3e960e",
    "figure2": "c052478f992d3e49",
    "figure3": "0428577f3332e52c",
    "figure4": "5d25be01ca3b4543",
    "protocol": "0d6cd73447467354",
    "table1-fragile": "5c5c051e6c1138d8",
    "table1-stable": "041d43e189132aa6",
    "table1-beside": "184ffd51a0b84394",
    "backbones": "10d409be833ce538",
    "table1-n3": "7018f5a49fb21192",
    "corners-n3": "bada7f3b7beb2263",
    "rate-n3": "2e00432e43f928a6",
    "starts-n3": "b61d925c31db5498",
    "places-n3": "cf37046ca8a8121a",
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_published_suite_does_not_change(name):
    suite = SUITES[name]
    rows = [
        [row.former or row.label, row.published, [recipe.sha256 for recipe in suite.recipes(row)]]
        for row in suite.rows
    ]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == FROZEN[name]


def test_weights_are_kept_of_rows_that_exist():
    for suite in SUITES.values():
        assert {*(suite.weighed or ())} <= {row.label for row in suite.rows}


def test_every_run_of_the_demo_has_a_name_of_its_own():
    demo = SUITES["demo"]
    names = [demo.run_label(recipe) for row in demo.rows for recipe in demo.recipes(row)]
    assert len(set(names)) == len(names) == 17
    assert "4 diffusive, large start, seed 1" in names
    assert demo.with_seeds(1).run_label(demo.rows[4].recipe) == "4 diffusive, large start"


def test_figure_2_looks_at_the_epochs_of_the_paper():
    suite = SUITES["figure2"]
    assert suite.epochs == (36, 82, 125)
    assert set(suite.epochs) <= set(suite.rows[0].recipe.spectrum_epochs)


def test_all_that_is_run_on_cifar_has_the_precision_that_the_notes_name():
    for suite, row in ROWS:
        if suite.name != "demo":
            assert (row.recipe.precision, row.recipe.channels_last) == ("bfloat16", True)
            assert "bfloat16" in " ".join(suite.notes)


def test_changes_that_make_two_rows_one_are_refused():
    suite = SUITES["demo"].with_rows(["4", "6"])
    with pytest.raises(ValueError, match=r"rows '4 original, large start' and .* are the same; choose rows"):
        suite.with_changes({"stage": {"share_affinity": True}})


def test_the_folders_of_rows_are_distinct_and_plain():
    for suite in SUITES.values():
        slugs = [row.slug for row in suite.rows]
        assert len(slugs) == len(set(slugs))
        assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", slug) for slug in slugs)
    assert [row.slug for row in SUITES["table1"].rows[3:5]] == ["4-block-original", "2-block-proposed"]


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_runs_and_labels_of_a_suite_are_distinct(suite):
    names = [recipe.name for row in suite.rows for recipe in suite.recipes(row)]
    assert len(names) == len(set(names))
    labels = [row.label for row in suite.rows]
    assert len(labels) == len(set(labels))
    assert {label for pair in suite.pairs for label in pair} <= set(labels)


def test_seeds_count_from_zero_and_may_be_changed():
    demo = SUITES["demo"].with_seeds(2)
    assert [recipe.seed for recipe in demo.recipes(demo.rows[0])] == [0, 1]
    assert [len(demo.recipes(row)) for row in demo.rows] == [2] * 7
    with pytest.raises(ValueError, match="seeds must be a whole number ≥ 1"):
        demo.with_seeds(0)


def test_rows_are_chosen_by_number_label_or_part():
    table = SUITES["table1"]

    def labels(*names):
        return [row.label for row in table.with_rows(names).rows]

    assert labels("1") == ["baseline"]
    assert labels("5-block (proposed)", "1") == ["baseline", "5-block (proposed)"]
    assert labels("original-4") == ["4-block (original)"]
    assert len(labels("diffusive")) == 6
    with pytest.raises(ValueError, match=r"'7-block' is no row of table1; choose .*1 baseline"):
        labels("7-block")
    with pytest.raises(ValueError, match="'12' is no row"):
        labels("12")


def test_changes_apply_to_all_rows_and_reach_into_the_stage():
    changed = SUITES["table1"].with_changes({"precision": "float32", "stage": {"init_std": 0.07}})
    for row, before in zip(changed.rows, SUITES["table1"].rows, strict=True):
        assert row.recipe.differences(before.recipe) == [
            "precision is 'float32', was 'bfloat16'",
            "stage.init_std is 0.07, was 0.01",
        ]
    with pytest.raises(ValueError, match="seed cannot be changed"):
        changed.with_changes({"seed": 3})
    with pytest.raises(ValueError, match="'epoch' is not a field of the recipe; the fields are"):
        changed.with_changes({"epoch": 3})
