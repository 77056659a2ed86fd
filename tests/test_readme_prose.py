"""README.md: what its prose says of the runs on CIFAR-10 is so in every kept record it speaks of.

Its tables and lists are generated; these sentences are written by hand, so each is computed here from the records.
"""

import re
from pathlib import Path

import pytest

from nonloc.paper.map_cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc.report.kept import DIVIDED, differences, lost, read_kept, setting
from nonloc.report.statistics import interval
from nonloc.report.table1 import afterwards_table
from nonloc.report.trainability import read_map

ROOT = Path(__file__).parent.parent
TEXT = " ".join(re.sub(r"\]\([^)]*\)|\[", "", (ROOT / "README.md").read_text()).split())
PLACES = (2, 4, 6)


@pytest.fixture(scope="module")
def kept():
    return read_kept(ROOT / "results")


@pytest.fixture(scope="module")
def stages(kept):
    """(what it is a run of, the run) of every run that is kept, with a nonlocal stage."""
    known = [(setting(row.recipe), run) for row in kept.rows for run in row.started]
    return [(what, run) for what, run in known if what.form is not None and run.ending != "unfinished"]


@pytest.fixture(scope="module")
def small(kept, stages):
    """Those at the paper's rate, from the small start, in one place, each form with its own affinity."""
    return [
        (what, run)
        for what, run in stages
        if what == kept.wanted(form=what.form, blocks=what.blocks) and what.weight == "factored"
    ]


def said(sentence):
    assert sentence in TEXT, "the prose has changed: change its test, too"


def trace(run, name):
    """after / before of every stage of a run."""
    stages = [stage["blocks"] for stage in run.observations["features"]]
    return [blocks[-1]["after"][name] / blocks[0]["before"][name] for blocks in stages]


def test_four_original_blocks_train_as_well_as_fewer_and_break_from_larger_maps(kept):
    said("train from small maps as well as fewer do; from larger ones (deviation 0.07) they diverge")
    said("in both whole runs and in two of three of ten epochs, while most proposed stages train")
    four, fewer = kept.find(form="original", blocks=4), [kept.find(form="original", blocks=n) for n in (1, 2)]
    assert not lost(four)
    assert all(four.median <= row.median for row in fewer)
    broken = kept.find(form="original", blocks=4, start="0.07")
    assert len(lost(broken)) == len(broken.started) == 2
    (late,) = [
        cell
        for cell in read_map(ROOT / "results" / "map").ten_epochs
        if (cell.form, cell.blocks, cell.init) == ("original", 4, "normal 0.07")
    ]
    assert (len(late.diverged), late.n) == (2, 3)
    proposed = [kept.find(form="diffusive", blocks=n, start="0.07") for n in range(2, 7)]
    assert 2 * sum(len(lost(row)) for row in proposed) < sum(len(row.started) for row in proposed)


def test_sharing_the_affinity_prevents_nearly_every_divergence_and_differences_do_not():
    said("Sharing the affinity prevents nearly every divergence, in both forms. Differences do not")
    found = dict(read_map(ROOT / "results" / "map").parts)

    def diverged(part, form, blocks):
        cells = [one for one in found[part] if one.form == form]
        chosen = [one for one in cells if one.blocks in blocks]
        return sum(len(one.diverged) for one in chosen) / sum(one.n for one in chosen)

    assert diverged(SHARED, "original", (2, 3, 4)) < 0.1 < diverged(TEN_EPOCHS, "original", (2, 3, 4))
    assert diverged(TEN_EPOCHS, "diffusive", (2, 4, 6)) < 0.1 < diverged(RECOMPUTED, "diffusive", (2, 4, 6))
    assert diverged(RECOMPUTED, "diffusive", (2, 4)) >= diverged(TEN_EPOCHS, "original", (2, 4))


def test_recomputed_affinities_had_lower_errors_in_each_pair(kept):
    said("5 and 6 proposed blocks with an affinity for each had a lower error than with one for all")
    said("in each of four pairs of runs, of two seeds: too few to be sure of it")
    said("Whether the forms differ where both share the affinity, two seeds do not tell either")
    gains = []
    for blocks in (5, 6):
        shared = kept.find(form="diffusive", blocks=blocks)
        own = kept.find(form="diffusive", blocks=blocks, shared=False)
        gains.append(differences(own, shared))
        forms = interval(
            list(differences(kept.find(form="original", blocks=blocks, shared=True), shared).values())
        )
        assert forms.low < 0 < forms.high
    assert [len(one) for one in gains] == [2, 2]
    assert all(value < 0 for one in gains for value in one.values())
    by_seed = interval([(gains[0][seed] + gains[1][seed]) / 2 for seed in gains[0]])
    assert by_seed.low < 0 < by_seed.high


def test_the_proposed_form_has_no_advantage_from_small_maps(kept):
    said("with 3 and with 4 blocks its error is higher than the original one's")
    said("5 blocks of it have a higher one than 3 original blocks, which are as many parameters")
    said("and a trend with the number of blocks cannot be told in either form")
    for blocks in (3, 4):
        pair = [kept.find(form=form, blocks=blocks) for form in ("diffusive", "original")]
        assert interval(list(differences(*pair).values())).low > 0
    ((_, lines),) = afterwards_table(kept).groups
    told = {name: re.search(r"\[(\S+), (\S+)\]", text).groups() for name, text in lines}
    signs = {name: {end[0] for end in ends} for name, ends in told.items()}
    (equal,) = [name for name in signs if name.startswith("5 proposed less 3 original")]
    assert signs[equal] == {"+"}
    slopes = [found for name, found in signs.items() if name.startswith("a block more")]
    assert slopes == [{"−", "+"}] * 2


def test_in_different_places_most_runs_diverge(kept):
    said("most runs diverge even from the small start, every proposed one and sooner than any original one")
    rows = [kept.find(form=form, blocks=1, places=PLACES) for form in ("original", "diffusive")]
    assert 2 * sum(len(lost(row)) for row in rows) > sum(len(row.started) for row in rows)
    original, proposed = ([run.diverged_at for run in row.diverged] for row in rows)
    assert len(proposed) == len(rows[1].started)
    assert max(proposed) < min(original)


def test_nothing_diverged_whose_logits_are_divided(kept, stages):
    said("With logits divided by √d (`scaled=True`) no stage diverged of all that were tried")
    said("lower errors than the baseline in each of four pairs of runs")
    divided = [run for what, run in stages if what.other == DIVIDED]
    assert len(divided) >= 6
    assert all(run.ending == "converged" for run in divided)
    rows = [kept.find(form=f, blocks=1, places=PLACES, other=DIVIDED) for f in ("original", "diffusive")]
    less = [value for row in rows for value in differences(row, kept.find(form=None)).values()]
    assert len(less) == 4
    assert all(value < 0 for value in less)


def test_stable_stages_train_from_small_maps_and_diverge_from_larger_ones(stages):
    said("diverged, too, from larger maps, and no less often than with a free W")
    said("from small maps they train with up to 12 blocks")
    stable = [(what, run) for what, run in stages if what.weight == "stable" and not what.other]
    small = [(what.blocks, run.ending) for what, run in stable if what.start == "0.01"]
    assert max(blocks for blocks, _ in small) == 12
    assert {ending for _, ending in small} == {"converged"}
    ends = {
        weight: [
            run.ending == "diverged"
            for what, run in stages
            if (what.weight, what.form, what.start, what.places, what.shared, what.other)
            == (weight, "diffusive", "0.07", (2,), True, ())
        ]
        for weight in ("stable", "factored")
    }
    share = {weight: sum(lost) / len(lost) for weight, lost in ends.items()}
    assert share["stable"] >= share["factored"]


def test_the_features_of_trained_stages(small):
    said("most of the energy of a trained proposed block's W is positive, as in the paper")
    said("to first order most first sub-blocks smooth and nearly all later ones sharpen")
    said(
        "In fact the variance falls in the first one only with 4 blocks and more, it grows in every later one"
    )
    said("and over the whole stage it grows in every run")
    said("Original stages lower it in every run and, from 2 blocks on, the norm, too")
    first, later = [], []
    for what, run in small:
        (variance,), (norm,) = trace(run, "variance"), trace(run, "norm")
        assert (variance > 1) == (what.form == "diffusive")
        if what.form == "original":
            assert norm < 1 or what.blocks == 1
            continue
        (stage,) = run.observations["features"]
        along = [block["quotient"] for block in stage["blocks"] if block.get("quotient") is not None]
        first += along[:1]
        later += along[1:]
        factors = [block["after"]["variance"] / block["before"]["variance"] for block in stage["blocks"]]
        assert (factors[0] < 1) == (what.blocks >= 4)
        assert all(factor > 1 for factor in factors[1:])
        (weights,) = (stage["weights"] for stage in run.spectrum["stages"])
        assert all(weight["negative_share"] < 0.5 for weight in weights)
    assert sum(value > 0 for value in first) > 0.5 * len(first) > 0
    assert sum(value < 0 for value in later) > 0.9 * len(later) > 0


def test_the_features_in_different_places(stages):
    said(
        "most of the energy of the proposed W after block 2 is negative, and the block after 6 lowers the variance"
    )
    wanted = ("diffusive", PLACES, DIVIDED)
    runs = [run for what, run in stages if (what.form, what.places, what.other) == wanted]
    assert runs
    for run in runs:
        assert run.spectrum["stages"][0]["weights"][0]["negative_share"] > 0.5
        assert trace(run, "variance")[2] < 1


def test_every_trained_stage_can_make_some_signal_grow_except_stable_ones(stages):
    said("Every trained stage that was tested can make some signal grow, except those with a stable W")
    tested = [(what, stage) for what, run in stages for stage in run.stability.get("stages", [])]
    verdicts = {(what.weight == "stable", stage["verdict"]) for what, stage in tested}
    assert verdicts == {(True, "stable"), (False, "unstable")}
