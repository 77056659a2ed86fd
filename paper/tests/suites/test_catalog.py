"""The paper as data: the published numbers, the stated protocol, and suites that can be run."""

import math
import re

import pytest

from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.suites import SPECTRUM_EPOCHS, SUITES, find_suite

TABLE1 = [8.19, 7.83, 8.28, 15.02, 7.74, 7.62, 7.37, 7.29, 7.55, 8.07, 7.33]
TABLE2 = [26.57, 26.13, 26.26, 34.89, 26.04, 25.57, 25.43, 25.29, 25.49]
FORMS = [None, *["original"] * 3, *["diffusive"] * 5]
BLOCKS = [0, 2, 3, 4, 2, 3, 4, 5, 6]
ROWS = [(suite, row) for suite in SUITES.values() for row in suite.rows]


def test_the_published_numbers_stand_beside_the_right_networks():
    table1, table2 = SUITES["table1"], SUITES["table2"]
    assert [row.published for row in table1.rows] == TABLE1
    assert [row.published for row in table2.rows] == TABLE2
    for suite, depth in ((table1, 20), (table2, 56)):
        specs = [NetworkSpec.parse(row.recipe.network) for row in suite.rows[:9]]
        assert [(spec.size, spec.form, spec.num_blocks) for spec in specs] == [
            (depth, form, blocks) for form, blocks in zip(FORMS, BLOCKS, strict=True)
        ]
        assert {spec.places for spec in specs[1:]} == {(2,)}


def test_different_places_are_three_blocks_in_three_places():
    specs = [NetworkSpec.parse(row.recipe.network) for row in SUITES["table1"].rows[9:]]
    assert [(spec.form, spec.num_blocks, spec.places) for spec in specs] == [
        ("original", 1, (2, 4, 6)),
        ("diffusive", 1, (2, 4, 6)),
    ]


def test_the_tables_follow_the_stated_protocol():
    for name, data in (("table1", "cifar10"), ("table2", "cifar100")):
        suite = SUITES[name]
        assert suite.seeds == 5
        for row in suite.rows:
            recipe = row.recipe
            assert (recipe.data, recipe.epochs, recipe.milestones) == (data, 164, (81, 122))
            assert (recipe.optimizer, recipe.learning_rate, recipe.schedule, recipe.gamma) == (
                "sgd",
                0.1,
                "step",
                0.1,
            )
            assert (recipe.momentum, recipe.nesterov, recipe.weight_decay) == (0.9, False, 1e-4)
            assert recipe.augment
            # "around 32k and 48k iterations" fixes the batch size that the text does not name.
            steps = math.ceil(50_000 / recipe.batch_size)
            assert [round(epoch * steps, -3) for epoch in recipe.milestones] == [32_000, 48_000]


def test_what_the_text_leaves_open_is_named():
    for name in ("table1", "table2"):
        text = " ".join(SUITES[name].notes)
        for subject in ("Backbone", "Affinity", "Initialisation", "pixels", "Score", "Precision"):
            assert subject in text
    notes = {row.label: row.note for row in SUITES["table1"].rows}
    assert "0.01" in notes["4-block (original)"]
    assert "2, 4 and 6" in notes["3 blocks in different places (proposed)"]


def test_figure_2_looks_at_the_epochs_of_the_paper():
    suite = SUITES["figure2"]
    assert [panel.epoch for panel in suite.panels] == [36, 82, 125] == list(SPECTRUM_EPOCHS)
    assert set(SPECTRUM_EPOCHS) <= set(suite.rows[0].recipe.spectrum_epochs)


def test_figure_3_trains_four_blocks_at_a_tenth_of_the_rate():
    rates = {row.label: row.recipe.learning_rate for row in SUITES["figure3"].rows}
    assert list(rates.values()) == [0.1, 0.1, 0.1, 0.01]
    assert [panel.kind for panel in SUITES["figure3"].panels] == ["curve"] * 4 + ["spectrum"] * 4


def test_every_panel_shows_a_block_that_its_row_has():
    for suite in SUITES.values():
        blocks = {row.label: NetworkSpec.parse(row.recipe.network).num_blocks for row in suite.rows}
        for panel in suite.panels:
            assert panel.row in blocks
            assert panel.kind == "curve" or 1 <= panel.block <= blocks[panel.row]
    assert [len(SUITES[f"figure{number}"].panels) for number in (1, 2, 3, 4)] == [6, 3, 8, 4]


def test_figures_use_the_runs_of_the_table_where_it_has_them():
    table = {row.recipe for row in SUITES["table1"].rows}
    shared = [row.recipe in table for name in ("figure1", "figure4") for row in SUITES[name].rows]
    assert shared == [False, True, True, True]


def test_all_that_is_run_on_cifar_has_the_precision_that_the_notes_name():
    for suite, row in ROWS:
        if suite.name != "demo":
            assert (row.recipe.precision, row.recipe.channels_last) == ("bfloat16", True)
            assert "bfloat16" in " ".join(suite.notes)


def test_the_protocol_changes_one_factor_at_a_time():
    suite = SUITES["protocol"]
    baselines, short = suite.rows[:4], suite.rows[4:]
    assert [row.recipe.network for row in baselines] == [
        "preresnet20/baseline",
        "preresnet29/baseline",
        "preresnet20-keras/baseline",
        "preresnet20-basic/baseline",
    ]
    assert baselines[0].recipe == SUITES["table1"].rows[0].recipe, "nothing is computed twice"
    assert {(row.recipe.epochs, row.recipe.milestones) for row in short} == {(20, (10, 15))}
    for rows in (short[:8], short[8:]):
        changed = [row.recipe.differences(rows[0].recipe) for row in rows]
        assert changed[0] == []
        assert changed[1:] == [
            ["pixel_scale is 'std', was 64.0"],
            ["pixel_scale is 1.0, was 64.0"],
            ["stage.init_std is 0.03, was 0.01"],
            ["stage.init_std is 0.05, was 0.01"],
            ["stage.batch_norm is True, was False"],
            ["stage.scaled is True, was False"],
            ["stage.shared_embedding is True, was None"],
        ]
    assert [len(suite.recipes(row)) for row in suite.rows] == [2, 5, 2, 5] + [2] * 16


def test_the_fragile_block_is_the_table_at_another_deviation():
    table = {row.label: row for row in SUITES["table1"].rows}
    suite = SUITES["table1-fragile"]
    assert len(suite.rows) == 8
    for row in suite.rows:
        same = table[row.label]
        assert row.recipe.differences(same.recipe) == ["stage.init_std is 0.07, was 0.01"]
        assert row.published == same.published
        assert len(suite.recipes(row)) == 2


def test_the_stable_block_has_three_depths_at_both_deviations_and_with_divided_logits():
    suite = SUITES["table1-stable"]
    found = [
        (
            NetworkSpec.parse(row.recipe.network).num_blocks,
            row.recipe.stage.init_std,
            row.recipe.stage.scaled,
        )
        for row in suite.rows
    ]
    starts = ((0.01, False), (0.07, False), (0.07, True))
    assert found == [(blocks, *start) for start in starts for blocks in (4, 6, 12)]
    assert {row.recipe.stage.weight for row in suite.rows} == {"stable"}
    assert {NetworkSpec.parse(row.recipe.network).form for row in suite.rows} == {"diffusive"}


def test_beside_the_table_stand_the_runs_of_the_figures_and_the_affinity_of_the_other_form():
    suite = SUITES["table1-beside"]
    recipes = [row.recipe for row in suite.rows]
    assert recipes[:2] == [SUITES["figure2"].rows[0].recipe, SUITES["figure3"].rows[3].recipe]
    assert [(recipe.network, recipe.stage.share_affinity) for recipe in recipes[2:6]] == [
        ("preresnet20/original-5@2", True),
        ("preresnet20/diffusive-5@2", False),
        ("preresnet20/original-6@2", True),
        ("preresnet20/diffusive-6@2", False),
    ]


def test_beside_the_table_stand_its_different_places_with_divided_logits():
    places = [row.recipe for row in SUITES["table1"].rows[9:]]
    *_, original, proposed = (row.recipe for row in SUITES["table1-beside"].rows)
    assert [original, proposed] == [recipe.with_(stage={"scaled": True}) for recipe in places]
    assert not any(recipe.stage.scaled for recipe in places)


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


def test_the_demo_is_what_it_says():
    demo = SUITES["demo"]
    assert [row.recipe.network for row in demo.rows] == [
        "restorer16/baseline",
        "restorer16/original-2@2",
        "restorer16/diffusive-4@2",
        "restorer16/original-4@2",
        "restorer16/diffusive-4@2",
        "restorer16/original-4@2",
        "restorer16/diffusive-4@2",
    ]
    steps = [row.recipe.epochs * row.recipe.steps_per_epoch for row in demo.rows]
    assert steps == [500, 500, 500, 300, 300, 300, 300]
    assert [row.recipe.stage.init_std for row in demo.rows] == [0.01, 0.01, 0.01, 0.5, 0.5, 0.5, 0.5]
    assert [row.recipe.stage.share_affinity for row in demo.rows] == [None] * 5 + [True, False]
    assert [len(demo.recipes(row)) for row in demo.rows] == [3, 3, 3, 2, 2, 2, 2]


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


def test_an_unknown_suite_lists_the_choices():
    with pytest.raises(ValueError, match="'table3' is not a suite; choose one of demo, table1, table2"):
        find_suite("table3")
