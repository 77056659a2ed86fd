"""StageOptions: exactly the stages' keywords, checked without torch, carried by JSON."""

import inspect
import json
from dataclasses import fields

import pytest

from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.options import StageOptions
from nonloc.nn.stage import DiffusiveStage, OriginalStage

EVERY = {
    "affinity": "heat",
    "embed": 4,
    "hidden": 3,
    "weight": "factored",
    "shared_embedding": True,
    "normalize": "symmetric",
    "scaled": True,
    "init": "kaiming",
    "init_std": 0.1,
    "batch_norm": True,
    "share_affinity": False,
    "bias": True,
    "subsample": 2,
    "backend": "reference",
}


def test_options_are_the_stages_keywords():
    keywords = set(inspect.signature(NonlocalModule).parameters) | set(
        inspect.signature(DiffusiveStage).parameters
    )
    given_by_the_network = {"channels", "num_blocks", "num_affinities", "keywords", "layout"}
    assert {field.name for field in fields(StageOptions)} == keywords - given_by_the_network


def test_round_trip_by_json():
    options = StageOptions(**EVERY)
    assert StageOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert set(StageOptions().to_dict().values()) == {None}


def test_keywords_are_only_what_was_set():
    assert StageOptions(init="zero", scaled=False).keywords() == {"init": "zero", "scaled": False}
    assert StageOptions(**EVERY).keywords() == EVERY


def test_stages_take_the_keywords():
    keywords = StageOptions(**{**EVERY, "subsample": None}).keywords()
    stage = DiffusiveStage(8, 2, **keywords)
    assert (stage.maps[0].rank, stage.embeddings[0].width, len(stage.embeddings)) == (3, 4, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"affinity": "rbf"}, "affinity='rbf' is unknown; choose one of gaussian, embedded_gaussian"),
        ({"weight": "lean"}, "weight='lean' is unknown; choose one of factored, full, stable"),
        ({"normalize": "softmax"}, "normalize='softmax' is unknown"),
        ({"init": "xavier"}, "init='xavier' is unknown"),
        ({"embed": 0}, "embed must be a whole number ≥ 1"),
        ({"hidden": 2.5}, "hidden must be a whole number"),
        ({"subsample": 1}, "subsample must be a whole number ≥ 2"),
        ({"init_std": -0.1}, "init_std must be a finite number > 0"),
        ({"init_std": float("inf")}, "init_std must be a finite number"),
        ({"scaled": 1}, "scaled must be True or False"),
        ({"backend": 3}, "backend=3 must be the name of a backend"),
        ({"widht": 3}, "stage option='widht' is unknown; choose one of affinity, embed"),
    ],
)
def test_what_is_wrong_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        StageOptions.from_dict(values)


@pytest.mark.parametrize("stage", [OriginalStage, DiffusiveStage])
@pytest.mark.parametrize("asked", [None, True, False])
def test_sharing_is_what_the_stage_does(stage, asked):
    options = StageOptions(share_affinity=asked)
    made = stage(4, 2, **options.keywords())
    assert options.shares_affinity(made.form) is made.shares_affinity


def test_equal_deviations_written_differently_are_one_option():
    assert repr(StageOptions(init_std=1)) == repr(StageOptions(init_std=1.0))
