"""The sentences of the summary: their numbers are counted, and what is not recorded is left out."""

import pytest
from made_records import arranged, deep_originals, map_of, never, records

from nonloc_paper.report.advice import advice, mean_differences, mean_differences_table
from nonloc_paper.suites import SUITES

EMPTY = map_of()


def sentences(*lists, trained=EMPTY):
    """Return the sentences by their first words."""
    runs = arranged(*lists)
    return {text.split("**")[1]: text for text in advice(runs, trained, mean_differences(runs))}


def test_of_nothing_there_is_no_sentence():
    assert sentences() == {}


def test_runs_are_counted_by_start_and_place_over_all_backbones():
    places = "3 blocks in different places"
    found = sentences(
        records("table1", {"4-block (original)": [8.0, None], f"{places} (proposed)": [None, 8.0]}),
        records("table1-n3", {"4-block (original)": [8.0]}),
        records("table1-fragile", {"4-block (original)": [None]}),
        records("table1-beside", {f"{places} (original), logits / √d": [8.0]}),
    )
    assert found["Start small, in one place"].endswith(
        ": over all epochs at rate 0.1, 1 of 3 runs from start 0.01 diverged. Of those with four original blocks, "
        "whose training failed in the paper, 1 of 3 did, from start 0.07 1 of 1. In different places 1 of 2 runs of "
        "both forms diverged, with divided logits 0 of 1."
    )
    assert "Divide the logits by √d" not in found, "the map has none"


def test_forms_are_compared_with_the_baseline_seed_by_seed():
    labels = [f"{n}-block ({form})" for form in ("original", "proposed") for n in (2, 3, 4)]
    table = {label: [9.0, 7.5, 7.75] if "original" in label else [9.0, 7.75] for label in labels}
    made = records("table1-n3", {"baseline": [8.0, 8.0, 8.25]} | table)
    text = sentences(made)["Accuracy, 3 bottlenecks a group"]
    ending = ", points of error. 2 to 4 blocks minus the baseline: original −0.50."
    assert text.endswith(ending), "of the others there is one seed"
    assert mean_differences_table(mean_differences(arranged(made))).lines == [
        ("original, minus baseline, 2 to 4 blocks", "−0.50 [−0.50, −0.50], n = 2 (published +2.19, outside)"),
        ("proposed, own affinities, minus baseline, 2 to 4 blocks", "–"),
        ("proposed, one affinity, minus baseline, 2 to 4 blocks", "−0.25, n = 1 (published −0.61)"),
        ("proposed, own affinities, minus baseline, 2 to 6 blocks", "–"),
        ("proposed, one affinity, minus baseline, 2 to 6 blocks", "–"),
        ("proposed, own affinities, minus original, 2 to 4 blocks", "–"),
        ("proposed, one affinity, minus original, 2 to 4 blocks", "+0.25, n = 1 (published −2.80)"),
    ]


@pytest.mark.parametrize(
    ("proposed", "words"),
    [
        ([7.0, 7.1, 7.2], "−1.00"),
        ([9.0, 9.1, 9.2], "+1.00"),
        ([8.0, 8.1, 8.4], "+0.07 (may be chance)"),
    ],
)
def test_words_follow_the_interval(proposed, words):
    # Seed 0 had been seen, and would turn each of them around.
    table = {f"{n}-block (original)": [8.0, 8.0, 8.1, 8.2] for n in (2, 3, 4)}
    seen = 16.0 - proposed[0]
    table |= {f"{n}-block (proposed), own affinities": [seen, *proposed] for n in (2, 3, 4)}
    text = sentences(records("table1-n3", table))["Accuracy, 3 bottlenecks a group"]
    assert text.endswith(f" 2 to 4 blocks minus original ones: proposed with own affinities {words}.")


def test_more_blocks_are_named_beside_the_others():
    table = {"baseline": [8.0, 8.0, 8.1, 8.2]}
    for n in (2, 3, 4, 5, 6):
        table[f"{n}-block (proposed)"] = [8.0, *([7.0, 7.1, 7.2] if n < 5 else [17.0, 17.1, 17.2])]
    text = sentences(records("table1-n3", table))["Accuracy, 3 bottlenecks a group"]
    assert text.endswith(
        " 2 to 4 blocks minus the baseline: proposed with one affinity −1.00. 2 to 6 blocks minus the baseline: "
        "proposed with one affinity +3.00."
    )


def test_the_map_is_counted_by_what_was_changed():
    trained = map_of(ten_epochs=deep_originals, ten_epochs_scaled=never, ten_epochs_shared=never)
    lost = sum(len(cell.diverged) for cell in trained.ten_epochs if cell.form == "original")
    assert 0 < lost < 27
    found = sentences(trained=trained)
    assert (
        f"0 of 54 such runs diverged within ten epochs from larger starts, {lost} of 54 undivided."
        in found["Divide the logits by √d"]
    )
    shared = f"{lost} of 27 with own affinities diverged, and 0 of 27 with one."
    assert found["Or share the affinity"].endswith(shared)
    assert "diverged in 0 of 18 runs" in found["Sharing is no guarantee"]


def test_stable_stages_are_counted_by_start_over_all_epochs():
    stable = {
        "4-block (stable), deviation 0.07": [None, None],
        "6-block (stable), deviation 0.07": [8.0, None],
        "12-block (stable), deviation 0.01": [8.0],
        "4-block (stable), deviation 0.07, logits / √d": [8.0],
    }
    found = sentences(records("table1-stable", stable), trained=map_of(ten_epochs=never))
    assert found["Sharing is no guarantee"].endswith(
        " diverged in 0 of 18 runs within ten epochs from larger starts, 3 of 4 over all epochs from start 0.07 and 0 "
        "of 1 from start 0.01 with up to 12 blocks."
    )


def test_the_suites_that_match_have_a_sentence_each():
    noise = (0.0, 0.02, -0.02)
    rate = dict(zip([row.label for row in SUITES["rate-n3"].rows], (11.0, 10.5, 13.0, 10.0), strict=True))
    corners = dict(zip([row.label for row in SUITES["corners-n3"].rows], (7.9, 7.6), strict=True))
    table2 = {row.label: 26.5 if "own" in row.label else 27.0 for row in SUITES["table2-n9"].rows}
    starts = {row.label: [None, 50.0, 50.0] for row in SUITES["starts-n3"].rows}
    five = {
        "baseline": [8.0, 8.13, 8.5],
        "4-block (original)": [7.6] * 3,
        "5-block (proposed)": [8.0] * 3,
        "5-block (proposed), own affinities": [7.5] * 3,
    }
    made = [
        records(name, {label: [error + x for x in noise] for label, error in some.items()})
        for name, some in (("rate-n3", rate), ("corners-n3", corners), ("table2-n9", table2))
    ]
    found = sentences(*made, records("starts-n3", starts), records("table1-n3", five))
    text = found["Rate 0.01"]
    assert "they break there: their error minus that of the baseline is +2.00 [+2.00, +2.00], n = 3." in text
    assert text.endswith(
        "at 0.01 and at 0.1 the baseline errs 11.00 (10.98 to 11.02, n = 3) and 8.13 (8.00 to 8.50, n = 3), "
        "four original blocks 13.00 (12.98 to 13.02, n = 3) and 7.60 (7.60 to 7.60, n = 3). Published: 15.02, at "
        "a rate that the paper does not say."
    )
    text = found["Own embeddings or a fresh state"]
    assert (
        "own minus one embedding gains (−0.40 [−0.40, −0.40], n = 3); current state minus input gains (−0"
        in text
    )
    assert found["Accuracy, 9 bottlenecks a group"].endswith(
        ", CIFAR-100, points of error. 2 to 4 blocks minus the baseline: original 0.00 (may be chance) and proposed "
        "with own affinities −0.50. 2 to 6 blocks minus the baseline: proposed with own affinities −0.50. 2 to 4 "
        "blocks minus original ones: proposed with own affinities −0.50."
    ), "one affinity is planned for 3 and 5 blocks alone"
    assert found["Or share the affinity"].endswith(
        " 6 of 18 with own affinities diverged, and 6 of 18 with one. Differences alone do not help: with own "
        "affinities and equally many blocks 4 of 12 original and 4 of 12 proposed runs diverged."
    ), "original ones are there with own affinities alone"
