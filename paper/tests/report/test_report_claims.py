"""judge: records with known answers get the verdicts that the rules say."""

from pathlib import Path

import pytest
from made_records import (
    arranged,
    certified,
    deep_originals,
    map_line,
    map_lines,
    map_of,
    never,
    records,
    stability,
)

from nonloc_paper.map.cells import PARTS
from nonloc_paper.report.claims import CLAIMS, judge
from nonloc_paper.report.reproduction import verdict_counts
from nonloc_paper.report.rules import (
    compare_curves,
    compare_errors,
    compare_last_losses,
    compare_ranges,
    norm_of_features,
    row_changes,
)
from nonloc_paper.report.table1_runs import setting, wanted_setting
from nonloc_paper.suites import SUITES

DOCUMENT = Path(__file__).parents[2] / "protocol.md"
EMPTY = map_of()
FIVE = (0.0, 0.1, -0.1, 0.05, -0.05)


def seeds(middle, n=5):
    return [middle + shift for shift in FIVE[:n]]


def paper():
    """Runs as the paper reports them: every seed of every row near the published number."""
    return {row.label: seeds(row.published) for row in SUITES["table1"].rows}


LEVEL = {label: seeds(8.0) for label in paper()}


def judged(key, found, trainability=EMPTY):
    """The verdict on a claim, on the literal backbone."""
    return next(answer for claim, answer in judge(found, trainability) if claim.key == key)


def verdict(key, found, trainability=EMPTY):
    return judged(key, found, trainability).text


@pytest.mark.parametrize(
    ("changes", "expected", "keys"),
    [
        ({}, "reproduced", ("worse", "robust", "better", "best", "many", "places", "four")),
        (LEVEL, "not reproduced", ("worse", "robust", "better", "best", "many", "places")),
        ({"2-block (proposed)": seeds(8.5)}, "depends on the number of blocks", ("better",)),
        ({"3-block (original)": []}, "undecided at n = 0", ("better",)),
    ],
    ids=["as published", "all level", "one number of blocks", "a row without runs"],
)
def test_the_paper_s_own_numbers_with_some_changed(changes, expected, keys):
    answers = {
        claim.key: answer.text
        for claim, answer in judge(arranged(records("table1", paper() | changes)), EMPTY)
    }
    assert {key: answers[key] for key in keys} == dict.fromkeys(keys, expected)


def test_no_records_leave_everything_undecided():
    assert {answer.text for _, answer in judge(arranged(), EMPTY)} == {"undecided at n = 0"}


def test_a_sentence_on_original_blocks_is_asked_once_on_each_backbone():
    found = arranged(
        records("table1", {"4-block (original)": [8.0]}),
        records("table1-n3", {"4-block (original)": [7.5], "4-block (proposed), own affinities": [7.4]}),
    )
    asked = {
        claim.key: [one.where for one in (answer, *answer.beside)] for claim, answer in judge(found, EMPTY)
    }
    assert asked["four"] == ["2 bottlenecks a group", "3 bottlenecks a group"]
    assert asked["positive"] == [
        "2 bottlenecks a group, one affinity",
        "3 bottlenecks a group, own affinities",
        "3 bottlenecks a group, one affinity",
    ]
    assert asked["deeper"] == ["2 bottlenecks a group, the map"]


def beside(key, found):
    """The verdicts on other backbones, by their names."""
    return {one.where: one.text for one in judged(key, found).beside}


def test_every_backbone_and_affinity_has_its_own_verdict():
    """As published with own affinities, level with one; on CIFAR-100 the other way round."""
    published = paper()
    own = {
        f"{label}, own affinities": errors for label, errors in published.items() if "-block (prop" in label
    }
    rows = {row.label for row in SUITES["table1-n3"].rows}
    level = {label: seeds(8.0) for label in rows & published.keys()}
    originals = {label: published[label] for label in rows & published.keys() if "proposed" not in label}
    one = {f"{n}-block (proposed)": published[f"{n}-block (original)"] for n in (2, 3, 4)}
    worse = {
        row.label: [30.0, 30.1, 29.9] if "proposed" in row.label else [26.0, 26.1, 25.9]
        for row in SUITES["table2-n9"].rows
    }
    found = arranged(
        records("table1", LEVEL),
        records("table1-n3", level | originals | own | one),
        records("table2-n9", worse),
    )
    assert verdict("better", found) == "not reproduced", "other backbones have no say"
    assert beside("better", found) == {
        "3 bottlenecks a group, own affinities": "reproduced",
        "3 bottlenecks a group, one affinity": "not reproduced",
        "9 bottlenecks a group, CIFAR-100, own affinities": "not reproduced",
    }
    assert beside("worse", found) == {
        "3 bottlenecks a group": "reproduced",
        "9 bottlenecks a group, CIFAR-100": "not reproduced",
    }
    counts = verdict_counts(list(judge(found, EMPTY)))
    assert [text.partition(" sentences: ")[0] for text in counts] == [
        "2 bottlenecks a group, 20",
        "3 bottlenecks a group, own affinities, 16",
        "3 bottlenecks a group, one affinity, 16",
        "9 bottlenecks a group, CIFAR-100, own affinities, 5",
    ]


def test_with_three_bottlenecks_a_group_seed_0_decides_nothing():
    errors = {f"{n}-block ({form})": [9.0] for n in (2, 3, 4) for form in ("original", "proposed")}
    for n in (2, 3, 4):
        errors[f"{n}-block (original)"] = [1.0, *seeds(8.0, 4)]
        errors[f"{n}-block (proposed)"] = [9.0, *seeds(7.5, 4)]
    found = arranged(records("table1-n3", errors))
    assert beside("better", found)["3 bottlenecks a group, one affinity"] == "reproduced"
    first = arranged(records("table1-n3", {label: some[:2] for label, some in errors.items()}))
    assert beside("better", first)["3 bottlenecks a group, one affinity"] == "undecided at n = 1"


def test_places_with_three_bottlenecks_a_group_are_the_second_blocks_of_its_groups():
    original, proposed = (row.label for row in SUITES["places-n3"].rows)
    found = arranged(
        records("table1-n3", {"4-block (original)": [8.0]}),
        records("places-n3", {original: [8.0, 8.1, 7.9], proposed: [7.5, 7.6, 7.4]}),
    )
    assert beside("places", found) == {"3 bottlenecks a group": "reproduced"}


def test_the_reason_compares_both_affinities_on_every_backbone():
    five, six = ("5-block (proposed)", "6-block (proposed)")
    errors = {five: seeds(7.3), six: seeds(8.3)}
    errors |= {f"{label}, own affinities": seeds(7.3) for label in (five, six)}
    found = arranged(records("table1-n3", errors))
    assert beside("reason", found) == {"3 bottlenecks a group": "reproduced"}


def test_places_with_divided_logits_decide_nothing():
    labels = [f"3 blocks in different places ({form}), logits / √d" for form in ("proposed", "original")]
    found = arranged(records("table1-beside", dict(zip(labels, ([8.0, 8.1], [9.0, 9.1]), strict=True))))
    answer = judged("places", found)
    assert answer.text == "undecided at n = 0"
    (part,) = answer.context
    assert part.name == (
        "3 proposed in different places, logits / √d − 3 original in different places, logits / √d"
    )
    assert part.numbers == "−1.00 [−1.00, −1.00], n = 2"


def test_diverged_runs_are_counts_and_no_errors():
    found = arranged(records("table1", paper() | {"4-block (original)": [None] * 5}))
    assert verdict("four", found) == "reproduced"
    assert verdict("worse", found) == "undecided: the set-up fails"
    some = paper() | {"4-block (original)": [None, None, *seeds(15.02)[2:]]}
    answer = judged("better", arranged(records("table1", some)))
    assert answer.text == "reproduced", "by the three pairs that ended"
    assert answer.parts[2][1].numbers.endswith("; 4 original: 2 of 5 diverged")
    one = arranged(records("table1", paper() | {"4-block (original)": [None, 8.0, 8.0, 8.1, 8.0]}))
    assert verdict("four", one) == "depends on the seed"


def test_what_breaks_at_another_start_only_depends_on_the_initialisation():
    trained = paper() | {"4-block (original)": seeds(8.0)}
    fragile = {"4-block (original)": [None, None]}
    found = arranged(records("table1", trained), records("table1-fragile", fragile))
    answer = judged("four", found)
    assert answer.text == "depends on the initialisation"
    assert answer.parts[-1][0] == "2 bottlenecks a group, start 0.07"


ONE_TO_THREE = {
    "table1": {"2-block (original)": [8.0] * 2, "3-block (original)": [8.0] * 2},
    "table1-beside": {"1 original block": [8.0] * 2},
}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.9, "reproduced"), (0.6, "not reproduced"), (0.1, "not reproduced")]
)
def test_negative_is_what_lies_above_the_band(share, expected):
    found = arranged(*(records(name, errors, share=share) for name, errors in ONE_TO_THREE.items()))
    assert verdict("negative", found) == expected
    assert verdict("along", found) == expected


def test_spectra_that_were_recorded_without_a_band_are_no_evidence():
    runs = [run for name, errors in ONE_TO_THREE.items() for run in records(name, errors, share=0.9)]
    for run in runs:
        run.spectrum.clear()
    assert {verdict(key, arranged(runs)) for key in ("negative", "along")} == {"undecided at n = 0"}


def test_spectra_of_some_rows_only_depend_on_the_number_of_blocks():
    found = arranged(
        records("table1", ONE_TO_THREE["table1"], share=0.5),
        records("table1-beside", ONE_TO_THREE["table1-beside"], share=0.9),
    )
    assert verdict("negative", found) == "depends on the number of blocks"


@pytest.mark.parametrize(("share", "expected"), [(0.1, "reproduced"), (0.5, "not reproduced")])
def test_positive_is_what_lies_below_the_band(share, expected):
    found = arranged(records("table1", {"4-block (proposed)": [8.0, 8.1]}, share=share))
    assert verdict("positive", found) == expected


def test_large_positive_eigenvalues_of_four_slow_blocks():
    slow = {"4 original blocks, rate 0.01": [9.0, 9.1]}
    assert verdict("blowup", arranged(records("table1-beside", slow, share=0.2))) == "reproduced"
    assert verdict("blowup", arranged(records("table1-beside", slow, share=0.9))) == "not reproduced"


@pytest.mark.parametrize(
    ("loss", "larger", "slowly"),
    [
        (0.5, "reproduced", "reproduced"),
        (0.15, "not reproduced", "reproduced"),
        (0.1, "not reproduced", "not reproduced"),
    ],
)
def test_losses_of_four_slow_blocks(loss, larger, slowly):
    found = arranged(
        *(records(name, errors, loss=0.1) for name, errors in ONE_TO_THREE.items()),
        records("table1-beside", {"4 original blocks, rate 0.01": [9.0, 9.1]}, loss=loss),
    )
    assert (verdict("larger", found), verdict("slowly", found)) == (larger, slowly)


def test_four_blocks_at_the_rate_of_the_others_decide_nothing():
    found = arranged(
        *(records(name, errors, loss=0.1) for name, errors in ONE_TO_THREE.items()),
        records("table1", {"4-block (original)": [8.0, 8.1]}, loss=0.2),
    )
    for key in ("slowly", "larger"):
        answer = judged(key, found)
        assert answer.text == "undecided at n = 0"
        assert [part.name for part in answer.context] == [
            f"4 original / {blocks} original" for blocks in (1, 2, 3)
        ]
        shown = {
            "slowly": "larger in 164 of 164 epochs, smaller in 0, n = 2",
            "larger": "ratio 2.00 [2.00, 2.00], n = 2",
        }
        assert all(part.numbers.startswith(shown[key]) for part in answer.context)


@pytest.mark.parametrize(("factor", "expected"), [(1.0026, "1.003"), (1.0, "1.00"), (0.8912, "0.891")])
def test_a_ratio_near_1_shows_its_side(factor, expected):
    found = arranged(row("table1-beside", "1 original block", "norm", [factor]))
    assert norm_of_features(found, ["1 original"], -1, {}).number == f"ratio {expected}, n = 1"


def test_damping_is_a_smaller_norm_after_several_blocks():
    several = {f"{blocks}-block (original)": [8.0] * 2 for blocks in (2, 3, 4)}
    for norm, expected in ((0.5, "reproduced"), (1.0, "not reproduced"), (2.0, "not reproduced")):
        assert verdict("damped", arranged(records("table1", several, norm=norm))) == expected
    one = records("table1-beside", {"1 original block": [8.0] * 2}, norm=2.0)
    assert verdict("damped", arranged(records("table1", several, norm=0.5), one)) == "reproduced"


def test_a_lower_rate_mitigates_only_what_fails():
    slow = records("table1-beside", {"4 original blocks, rate 0.01": [9.0, 9.1]})
    failing = arranged(records("table1", {"4-block (original)": [None, None]}), slow)
    assert verdict("mitigate", failing) == "reproduced"
    trained = arranged(records("table1", {"4-block (original)": [8.0, 8.0]}), slow)
    assert verdict("mitigate", trained) == "undecided: nothing fails at rate 0.1"
    mixed = arranged(
        records("table1", {"4-block (original)": [8.3, 8.4]}),
        records("table1-beside", {"4 original blocks, rate 0.01": [9.0, None]}),
    )
    assert verdict("mitigate", mixed).startswith("undecided"), "whatever the seeds at 0.01 do"


def test_the_reason_is_the_interaction_of_affinity_and_number():
    shared = {"5-block (proposed)": seeds(7.3), "6-block (proposed)": seeds(8.3)}
    anew = {
        "5-block (proposed), own affinities": seeds(7.3),
        "6-block (proposed), own affinities": seeds(7.3),
    }
    assert (
        verdict("reason", arranged(records("table1", shared), records("table1-beside", anew))) == "reproduced"
    )
    worse = anew | {"6-block (proposed), own affinities": seeds(8.3)}
    found = arranged(records("table1", shared), records("table1-beside", worse))
    assert verdict("reason", found) == "not reproduced"


def steps(way, original, proposed):
    """Three rounds of each form with 2, 3 and 4 blocks, in milliseconds."""
    return [
        {"way": way, "blocks": blocks, "form": form, "milliseconds": [time, 1.01 * time, 0.99 * time]}
        for blocks in (2, 3, 4)
        for form, time in (("original", original), ("diffusive", proposed))
    ]


@pytest.mark.parametrize(
    ("plain", "captured", "expected"),
    [
        ((20.0, 15.0), (2.0, 1.5), "reproduced"),
        ((20.0, 20.0), (2.0, 2.0), "not reproduced"),
        ((20.0, 20.0), (2.0, 1.5), "depends on how a step is computed"),
    ],
)
def test_cost_is_the_time_of_a_step_alone(plain, captured, expected):
    rows = (*steps("plain loop", *plain), *steps("captured", *captured))
    assert verdict("cost", arranged(steps=rows)) == expected


def test_cost_is_open_while_a_way_or_a_number_of_blocks_is_not_measured():
    whole = (*steps("plain loop", 20.0, 15.0), *steps("captured", 2.0, 1.5))
    for left in (
        [row for row in whole if row["way"] == "captured"],
        [row for row in whole if row["way"] == "plain loop"],
        [row for row in whole if row["blocks"] == 4],
        [row for row in whole if (row["blocks"], row["form"]) != (3, "original")],
    ):
        assert verdict("cost", arranged(steps=left)) == "undecided at n = 0"


def test_runs_that_diverged_compare_nothing():
    originals = {f"{n}-block (original)": [None] * 5 for n in (2, 3, 4)}
    found = arranged(records("table1", paper() | originals))
    # A form that diverges at every depth has no range: it is not the more robust one.
    assert verdict("robust", found) == "undecided at n = 0"
    assert {verdict(key, found) for key in ("worse", "better")} == {"undecided: the set-up fails"}


def test_a_row_that_lost_runs_is_not_judged_by_the_losses_of_the_others():
    table = {"2-block (original)": [8.0] * 3, "3-block (original)": [8.0] * 3}
    beside = {"1 original block": [8.0] * 3, "4 original blocks, rate 0.01": [None, 9.0, 9.1]}
    found = arranged(records("table1", table, loss=0.1), records("table1-beside", beside, loss=0.1))
    assert verdict("larger", found) == "undecided at n = 2"
    assert "1 of 6 runs diverged" in judged("larger", found).parts[0][1].numbers


@pytest.mark.parametrize(("fast", "slow"), [([None, 8.0, None], [9.0] * 3), ([None] * 3, [9.0, None, 9.0])])
def test_what_helps_some_seeds_depends_on_the_seed(fast, slow):
    found = arranged(
        records("table1", {"4-block (original)": fast}),
        records("table1-beside", {"4 original blocks, rate 0.01": slow}),
    )
    assert verdict("mitigate", found) == "depends on the seed"


def each_form_somewhere(cell, seed):
    return cell.blocks == 4 and (cell.form, cell.init) in (("original", "torch"), ("diffusive", "fan_in"))


def two_starts(calm_seeds):
    """The lines of a start with which all train, of some seeds alone, and of one with which 3 and 4 blocks do not."""
    wanted = {("torch", 0), ("torch", 1), *(("normal 0.01", seed) for seed in calm_seeds)}
    lines = map_lines("one_epoch", deep_originals)
    return [line for line in lines if (line["init"], line["seed"]) in wanted]


@pytest.mark.parametrize(
    ("one_epoch", "deeper", "initialisation"),
    [
        (deep_originals, "reproduced", "reproduced"),
        (never, "not reproduced", "not reproduced"),
        (each_form_somewhere, "depends on the initialisation", "depends on the number of blocks"),
        # 2 blocks might yet train with one start and not with another.
        (two_starts((0, 1)), "undecided at n = 0", "undecided at n = 2"),
    ],
)
def test_the_claims_of_the_map(one_epoch, deeper, initialisation):
    found = map_of(one_epoch=one_epoch)
    assert [verdict(key, arranged(), found) for key in ("deeper", "initialisation")] == [
        deeper,
        initialisation,
    ]


def test_a_cell_with_a_seed_missing_is_not_one_that_trains():
    answer = judged("initialisation", arranged(), map_of(one_epoch=two_starts((0,))))
    assert answer.text == "undecided at n = 1"
    assert {part.holds for _, part in answer.parts} == {None}


@pytest.mark.parametrize(
    ("trained", "before", "expected"),
    [
        ("stable", "stable", "reproduced"),
        ("stable", None, "reproduced"),
        ("unstable", None, "not reproduced"),
        ("stable", "not decided", "undecided at n = 1"),
        ("stable", "unstable", "depends on the moment"),
    ],
)
def test_small_weights_are_judged_by_the_forward_map_and_not_by_training(trained, before, expected):
    """A stable stage that diverges while training speaks against the sentence only if a signal grew in it."""
    (run,) = records("table1-stable", {"4-block (stable), deviation 0.01": [8.8]})
    blocks = [{"verdict": trained, "growth": 1.0, "largest": 0.5, "lowest": 0.0, "limit": 1.4}] * 4
    run.stability.update(
        stability([certified(2, verdict=trained, form="diffusive", growth=1.0, blocks=blocks)])
    )
    cell = next(cell for cell in PARTS["ten_epochs"].cells if cell.form == "stable")
    line = map_line(cell, 0, diverged=None if before is None else 500)
    for moment in line["before"]:
        moment["stages"][0] |= {"growth": 1.0, "verdict": before}
    assert verdict("small", arranged([run]), map_of(ten_epochs=[line])) == expected


def test_every_row_that_a_claim_names_is_planned():
    planned = {setting(row.recipe) for suite in SUITES.values() for row in suite.rows}
    for claim in CLAIMS:
        for backbone, rows in (("preresnet20", claim.rows), ("preresnet29", claim.matching or claim.rows)):
            for name in {name for names in rows for name in names}:
                changes = row_changes(name.partition(", epoch ")[0], backbone)
                assert wanted_setting(**changes, backbone=backbone) in planned, name
        for name in {name for names in claim.context for name in names}:
            known = [
                wanted_setting(**row_changes(name, backbone) | {"shared": shared, "backbone": backbone})
                for backbone in ("preresnet20", "preresnet29")
                for shared in (True, False)
            ]
            assert planned.intersection(known), name


def test_every_sentence_has_its_rule_in_the_protocol():
    text = DOCUMENT.read_text()
    for claim in CLAIMS:
        assert f"\n| “{claim.quote}” | {claim.where} | " in text, claim.key


def test_the_counts_say_in_how_many_undecided_sentences_a_part_has_failed():
    worse = paper() | {"4-block (proposed)": seeds(16.0)}
    del worse["3-block (proposed)"], worse["2-block (proposed)"]
    (text,) = verdict_counts(list(judge(arranged(records("table1", worse)), EMPTY)))
    assert ", 1 undecided, in 1 of them a part has failed, " in text
    assert text.endswith(" not run yet.")


AROUND_1 = (0.99, 1.01, 0.99, 1.01, 1.0)


def part(proposed, original):
    table = {"2-block (proposed)": proposed, "2-block (original)": original}
    return compare_errors(arranged(records("table1", table)), ("2 proposed", "2 original"), -1, {})


def row(suite, label, name, values):
    """Runs of one row, a seed for each of the values of what `record` calls `name`."""
    return [
        records(suite, {label: [8.0] * len(values)}, **{name: value})[seed]
        for seed, value in enumerate(values)
    ]


def larger_part(ratios):
    """Of last losses that have these ratios."""
    four = row("table1", "4-block (original)", "loss", ratios)
    three = row("table1", "3-block (original)", "loss", [1.0] * len(ratios))
    return compare_last_losses(arranged(four, three), ("4 original", "3 original"), 1, {})


@pytest.mark.parametrize(("middle", "holds"), [(1.9, False), (2.0, None), (2.1, True)])
def test_much_larger_is_more_than_twice(middle, holds):
    assert larger_part([middle * around for around in AROUND_1]).holds is holds


def test_a_seed_that_only_one_of_the_rows_has_is_not_missing():
    slow, three = records("rate-n3", {"4-block (original), rate 0.01": [9.0] * 3}), "3-block (original)"
    found = arranged(slow, records("table1-n3", {three: [8.0] * 5}))
    names, backbone = ("4 original, rate 0.01", "3 original"), {"backbone": "preresnet29"}
    part = compare_last_losses(found, names, 1, backbone)
    assert (part.n, part.left) == (2, 0), "seeds 1 and 2"
    less = arranged(slow, records("table1-n3", {three: [8.0] * 2}))
    assert compare_last_losses(less, names, 1, backbone).left == 1, "seed 2"


def test_norms_within_a_factor_of_1_02_are_level_and_not_damped():
    found = arranged(row("table1-beside", "1 original block", "norm", AROUND_1))
    assert norm_of_features(found, ["1 original"], -1, {}).holds is False


@pytest.mark.parametrize(
    ("factors", "holds", "varies"),
    [
        ([2.0, 2.0, 2.0, 2.0], True, ""),
        ([2.0, 2.0, 2.0, 1.0], True, ""),
        ([2.0, 1.0, 1.0, 1.0], None, ""),
        ([2.0, 2.0, 2.0, 0.5], None, "the epoch"),
        ([1.0, 1.0, 0.5, 0.5], False, ""),
        ([1.0, 1.0, 1.0, 1.0], None, ""),
    ],
)
def test_curves_are_compared_epoch_by_epoch(factors, holds, varies):
    found = {}
    for label in ("4-block (original)", "3-block (original)"):
        for run in records("table1", {label: [8.0] * 3}):
            noise = 1 + 0.001 * run.recipe.seed * (label[0] == "4")
            scale = factors if label[0] == "4" else [1.0] * 4
            run.metrics[:] = [
                {"step": step, "train_loss": noise * value} for step, value in enumerate(scale, start=1)
            ]
            found.setdefault(label, []).append(run)
    part = compare_curves(arranged(*found.values()), ("4 original", "3 original"), 1, {})
    assert (part.holds, part.varies, part.n) == (holds, varies, 3)


def test_divergences_are_named_with_a_difference_that_they_decide():
    found = part([8.0] * 5, [8.5, None, None, None, None])
    assert (found.n, found.moot) == (1, "the set-up fails")
    assert found.numbers == "−0.50, n = 1; published −0.09; 2 original: 4 of 5 diverged"
    assert part([8.0] * 3, [8.5, None, None]).moot == "", "two seeds are to come"


def test_divergences_are_named_with_the_range_of_a_form():
    table = {f"{blocks}-block (proposed)": [8.0, 8.0] for blocks in (2, 3, 4)}
    table |= {f"{blocks}-block (original)": [8.5, None] for blocks in (2, 3)} | {
        "4-block (original)": [None, None]
    }
    (names,) = next(claim.rows for claim in CLAIMS if claim.key == "robust")
    found = compare_ranges(arranged(records("table1", table)), names, -1, {})
    lost = (f"; {blocks} original: {gone} of 2 diverged" for blocks, gone in ((2, 1), (3, 1), (4, 2)))
    assert (found.n, found.numbers) == (0, f"no seed with all six runs{''.join(lost)}")
