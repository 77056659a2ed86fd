"""README.md: what its prose says of the runs on CIFAR-10 is so in every kept record it speaks of.

Its tables and lists are generated; these sentences are written by hand, so each is computed here from the records.
"""

import re
from pathlib import Path

import pytest

from nonloc.paper.map_cells import RECOMPUTED, SHARED, TEN_EPOCHS
from nonloc.report.kept import DIVIDED, differences, lost, read_kept, setting
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
    said("while most proposed stages train")
    four, fewer = kept.find(form="original", blocks=4), [kept.find(form="original", blocks=n) for n in (1, 2)]
    assert not lost(four)
    assert all(four.median <= row.median for row in fewer)
    broken = kept.find(form="original", blocks=4, start="0.07")
    assert len(lost(broken)) == len(broken.started) > 0
    proposed = [kept.find(form="diffusive", blocks=n, start="0.07") for n in range(2, 7)]
    assert 2 * sum(len(lost(row)) for row in proposed) < sum(len(row.started) for row in proposed)


def test_sharing_the_affinity_prevents_nearly_every_divergence_and_differences_do_not():
    said("Sharing the affinity prevents nearly every divergence, in both forms. Differences do not")
    found = dict(read_map(ROOT / "results" / "map").parts)

    def diverged(part, form, blocks):
        cells = [one for one in found[part] if one.form == form and one.weight == "factored"]
        chosen = [one for one in cells if one.blocks in blocks]
        return sum(len(one.diverged) for one in chosen) / sum(one.n for one in chosen)

    assert diverged(SHARED, "original", (2, 3, 4)) < 0.1 < diverged(TEN_EPOCHS, "original", (2, 3, 4))
    assert diverged(TEN_EPOCHS, "diffusive", (2, 4, 6)) < 0.1 < diverged(RECOMPUTED, "diffusive", (2, 4, 6))
    assert diverged(RECOMPUTED, "diffusive", (2, 4)) >= diverged(TEN_EPOCHS, "original", (2, 4))


def test_recomputed_affinities_had_lower_errors_in_each_pair(kept):
    said("5 and 6 proposed blocks with an affinity for each had a lower error than with one for all")
    said("in each of four pairs of runs: too few to tell by how much")
    said("With the affinity shared, the two forms differ by less than that")
    gains, forms = [], []
    for blocks in (5, 6):
        shared = kept.find(form="diffusive", blocks=blocks)
        own = kept.find(form="diffusive", blocks=blocks, shared=False)
        sums = kept.find(form="original", blocks=blocks, shared=True)
        gains += differences(own, shared).values()
        forms += differences(sums, shared).values()
    assert len(gains) == 4
    assert all(gain < 0 for gain in gains)
    assert abs(sum(forms) / len(forms)) < abs(sum(gains) / len(gains))


def test_in_different_places_most_runs_diverge(kept):
    said("most runs diverge even from the small start")
    rows = [kept.find(form=form, blocks=1, places=PLACES) for form in ("original", "diffusive")]
    assert 2 * sum(len(lost(row)) for row in rows) > sum(len(row.started) for row in rows)


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
    said("most first sub-blocks smooth and nearly all later ones sharpen")
    said("over the whole stage the features' variance grows in every run")
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
