"""Sentences follow the numbers, whichever way these came out."""

from dataclasses import replace

import pytest
from made import make_row, make_run, spectrum

from nonloc_paper.report import sentences
from nonloc_paper.report.records import Collection, RowRecord
from nonloc_paper.training.recipe import Recipe

CLASSIFIER = "preresnet20/baseline"


def test_the_better_row_is_ahead_and_the_worse_behind(tmp_path):
    good, bad = make_row(tmp_path, "good", [25.0, 24.0, 26.0]), make_row(tmp_path, "bad", [22.0, 23.0, 21.5])
    assert sentences.compare(good, bad) == (
        "“good” is ahead of “bad” by 3.00 dB in the median (25.00 against 22.00 dB PSNR, n = 3 seeds each); "
        "the ranges do not overlap."
    )
    assert "“bad” is behind “good” by 3.00 dB" in sentences.compare(bad, good)


def test_of_errors_the_lower_is_ahead(tmp_path):
    low, high = (
        make_row(tmp_path, "low", [7.0], network=CLASSIFIER),
        make_row(tmp_path, "high", [8.5], network=CLASSIFIER),
    )
    assert "“low” is ahead of “high” by 1.50 points in the median" in sentences.compare(low, high)
    assert "“high” is behind “low” by 1.50 points" in sentences.compare(high, low)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ([20.0, 24.0], [21.0, 22.0], "the ranges overlap"),
        ([20.0, 21.0], [21.0, 25.0], "the ranges overlap"),
        ([20.0, 20.9], [21.0, 25.0], "the ranges do not overlap"),
        ([20.0], [21.0], "one seed cannot tell a difference from chance"),
        ([20.0, 21.0], [21.0], "n = 2 and 1 seeds"),
        ([20.0, 21.0], [20.5], "are level in the median"),
    ],
)
def test_how_sure_it_is(tmp_path, one, other, told):
    assert told in sentences.compare(make_row(tmp_path, "one", one), make_row(tmp_path, "other", other))


def test_without_scores_nothing_is_compared(tmp_path):
    text = sentences.compare(make_row(tmp_path, "one", [None]), make_row(tmp_path, "other", [20.0]))
    assert text == "“one” cannot be compared with “other”: no run of “one” ended with a score."


def test_divergence_says_how_many_and_when_first(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    runs = [
        make_run(tmp_path / str(seed), recipe.with_(seed=seed), diverged_at=step)
        for seed, step in enumerate((40, 17))
    ]
    row = RowRecord("r", recipe, (*runs, make_run(tmp_path / "2", recipe.with_(seed=2), 20.0)))
    assert sentences.diverged(row) == "“r”: 2 of 3 runs diverged, the first at step 17."
    assert sentences.diverged(replace(row, runs=row.runs[2:])) == ""


def test_what_is_missing_is_said(tmp_path):
    recipe = Recipe(network="restorer8/baseline", data="motifs")
    row = RowRecord("r", recipe, (make_run(tmp_path / "0", recipe), None, None))
    assert sentences.missing(Collection(tmp_path, (row,), None, {})) == (
        "Not all runs are there: 2 not begun and 1 not finished."
    )
    whole = make_row(tmp_path, "whole", [20.0])
    assert sentences.missing(Collection(tmp_path, (whole,), None, {})) == ""


def observed_row(folder, network="restorer8/diffusive-2@2", weight=None, **observed):
    recipe = Recipe(network=network, data="motifs").with_(stage={"weight": weight})
    base = {"observations": {"step": 20}}
    return RowRecord("r", recipe, (make_run(folder / "0", recipe, 20.0, observed=base | observed),))


@pytest.mark.parametrize(
    ("shares", "form", "told"),
    [
        ((0.9, 0.8), "original", "All blocks are more negative than chance: damping."),
        ((0.9, 0.8), "diffusive", "All blocks are more negative than chance: backward diffusion"),
        ((0.1, 0.2), "diffusive", "All blocks are more positive than chance: diffusion"),
        ((0.1,), "original", "It is more positive than chance: amplification."),
        ((0.5, 0.9), "original", "1 of 2 are more negative than chance: damping. 1 of 2 are within chance."),
    ],
)
def test_spectra_are_judged_against_the_band_and_by_their_form(tmp_path, shares, form, told):
    (text,) = sentences.spectrum_findings(observed_row(tmp_path, spectrum=spectrum(*shares, form=form)))
    assert told in text
    assert (
        f"is {', '.join(f'{100 * share:.0f}' for share in shares)} %; random weights give 30 to 70 %" in text
    )


def without_band(*shares):
    found = spectrum(*shares)
    for weight in found["stages"][0]["weights"]:
        del weight["band"]
    return found


def test_signs_that_were_not_learned_are_not_held_against_chance(tmp_path):
    row = observed_row(tmp_path, weight="stable", spectrum=without_band(0.0, 0.0))
    assert sentences.spectrum_findings(row) == [
        "“r”: no eigenvalue can be negative; the largest of each block is 1, 1."
    ]


def test_signs_that_were_learned_are_told_without_chance_where_no_band_was_recorded(tmp_path):
    row = observed_row(tmp_path, spectrum=without_band(0.9, 0.8))
    assert sentences.spectrum_findings(row) == ["“r”: the negative share of the energy is 90, 80 %."]


def test_the_features_from_first_to_last(tmp_path):
    blocks = [
        {
            "before": {"norm": 2.0, "variance": 1.0, "energy": 4.0},
            "after": {"norm": 1.5, "variance": 1.0, "energy": 3.0},
        },
        {
            "before": {"norm": 1.5, "variance": 1.0, "energy": 3.0},
            "after": {"norm": 1.0, "variance": 200.0, "energy": None},
        },
    ]
    seen = {"step": 20, "features": [{"name": "s", "num_blocks": 2, "blocks": blocks}]}
    assert sentences.feature_findings(observed_row(tmp_path, observations=seen)) == [
        "“r”, over 2 blocks: norm × 0.5, variance × 200."
    ]


def test_affinities_are_held_against_chance(tmp_path):
    seen = {"step": 20, "affinity": [{"stage": "s", "same_share": 0.42, "same_chance": 0.1}]}
    (text,) = sentences.affinity_findings(observed_row(tmp_path, observations=seen))
    assert "42 % of the weight" in text
    assert "would give 10 %" in text


def test_of_several_stages_each_is_named(tmp_path):
    state = {"norm": 1.0, "variance": 1.0, "energy": 1.0}
    trace = {"num_blocks": 1, "blocks": [{"before": state, "after": state}]}
    (stage,) = spectrum(0.5)["stages"]
    names = ("trunk.stages.1", "trunk.stages.3")
    row = observed_row(
        tmp_path,
        network="restorer8/diffusive-1@1,3",
        spectrum={"stages": [stage | {"name": name} for name in names]},
        observations={
            "step": 20,
            "features": [trace | {"name": name} for name in names],
            "affinity": [{"stage": name, "same_share": 0.4, "same_chance": 0.1} for name in names],
        },
    )
    for told in (sentences.spectrum_findings, sentences.feature_findings, sentences.affinity_findings):
        one, other = told(row)
        assert one.startswith("“r”, trunk.stages.1")
        assert other.startswith("“r”, trunk.stages.3")


def test_time_and_machine(tmp_path):
    rows = (make_row(tmp_path, "a", [20.0, 21.0]),)
    collection = Collection(tmp_path, rows, None, {"seconds": 12.0})
    assert sentences.time_sentence(collection) == (
        "2 finished runs took 10 s of training, 5 s on average; the whole command 12 s."
    )
    assert sentences.machines(collection) == ["abacus, 2 cores, device cpu, table; python 3"]
