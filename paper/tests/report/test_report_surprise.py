"""The headline of the demo says of the best network what its records say, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
from made import make_row, make_run
from made_records import weight

from nonloc_paper.report.records import Collection
from nonloc_paper.report.surprise import best_row, surprise
from nonloc_paper.suites import SUITES

RECIPE = SUITES["demo"].rows[2].recipe
# Of 1 × 3 × 2 × 2: clean is black, the noise known, and the network takes half of it away.
NOISE = np.arange(12.0).reshape(1, 3, 2, 2) / 24
TENSORS = {"images": np.zeros((1, 3, 2, 2), dtype=np.uint8), "noisy": NOISE - 1, "restored": NOISE / 2 - 1}


def features(factor):
    sides = [{"variance": 2.0}, {"variance": 2.0 * factor}]
    return [{"name": "stage", "blocks": [{"before": sides[0], "after": sides[1]}]}]


def collection(folder, *, share=0.9, verdict="unstable", factor=5.0, tensors=TENSORS, recipe=RECIPE):
    run = replace(
        make_run(folder / "run", recipe, 25.0),
        spectrum={"stages": [{"weights": [weight(share), weight(share)]}]},
        stability={"stages": [{"verdict": verdict, "growth": 48.8}]},
        observations={"step": 1, "features": features(factor)},
    )
    run.__dict__["tensors"] = tensors
    best = replace(make_row(folder, "best", []), recipe=recipe, runs=(run,))
    return Collection(folder, (make_row(folder, "worse", [24.0]), best))


def test_all_that_the_records_say_is_said(tmp_path):
    best, sharpens, grows, why = surprise(collection(tmp_path))
    assert best == "Best here: “best”, 25.00 dB."
    assert sharpens.startswith("It sharpens: 90 % of the energy of its weights is negative")
    assert "random weights have 30 to 70 %" in sharpens
    assert grows.startswith("The certificate calls it unstable: some signal grows × 48.8 in its stage.")
    assert "they correlate by 1.00" in why
    assert "× 5 in variance" in why


@pytest.mark.parametrize(
    ("changes", "count", "missing"),
    [
        ({"share": 0.7}, 1, "sharpens"),
        ({"recipe": SUITES["demo"].rows[1].recipe}, 1, "sharpens"),
        ({"verdict": "not decided"}, 3, "unstable"),
        ({"factor": 0.5}, 3, "Why"),
        ({"tensors": {}}, 3, "Why"),
        ({"tensors": TENSORS | {"restored": NOISE * 2 - 1}}, 3, "Why"),
    ],
)
def test_what_they_do_not_say_is_not_said(tmp_path, changes, count, missing):
    sentences = surprise(collection(tmp_path, **changes))
    assert len(sentences) == count
    assert missing not in " ".join(sentences)


def test_without_a_score_there_is_no_best(tmp_path):
    empty = Collection(tmp_path, (make_row(tmp_path, "none", []),))
    assert best_row(empty) is None
    assert surprise(empty) == []
