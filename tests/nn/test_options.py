"""StageOptions: exactly the stages' keywords, checked without torch, carried by JSON; and the four signatures."""

import inspect
import json
from dataclasses import fields

import pytest

from nonloc.nn import options as choices
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.options import StageOptions
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.ops import BACKENDS

MODULES = [OriginalBlock, OriginalStage, DiffusiveBlock, DiffusiveStage]
EVERY = {
    "affinity": "heat", "embed": 4, "hidden": 3, "weight": "factored", "shared_embedding": True,
    "normalize": "count", "scaled": True, "init": "kaiming", "init_std": 0.1, "batch_norm": True,
    "share_affinity": False, "bias": True, "subsample": 2, "backend": "reference",
}  # fmt: skip


def test_options_are_the_stages_keywords():
    keywords = set(inspect.signature(OriginalStage).parameters)
    own = {"channels", "num_blocks", "layout", "pool_after", "device", "dtype"}
    assert {field.name for field in fields(StageOptions)} == keywords - own


def test_round_trip_by_json_with_none_for_the_stages_own_default():
    options = StageOptions(**EVERY)
    assert StageOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert set(StageOptions().to_dict().values()) == {None}
    assert repr(StageOptions(init_std=1)) == repr(StageOptions(init_std=1.0))


def test_keywords_are_only_what_was_set_and_stages_take_them():
    assert StageOptions(init="zero", scaled=False).keywords() == {"init": "zero", "scaled": False}
    stage = OriginalStage(8, 2, **StageOptions(**EVERY).keywords())
    assert (stage.maps[0].rank, stage.embeddings[0].width, len(stage.embeddings)) == (3, 4, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("affinity", "rbf"), ("weight", "lean"), ("normalize", "softmax"), ("init", "xavier"), ("embed", 0),
        ("hidden", 2.5), ("subsample", 1), ("init_std", -0.1), ("init_std", float("inf")), ("scaled", 1),
        ("share_affinity", "state"),
        ("backend", 3), ("widht", 3),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=name):
        StageOptions.from_dict({name: value})


@pytest.mark.parametrize("stage", [OriginalStage, DiffusiveStage])
@pytest.mark.parametrize("asked", [None, True, False, "embedding", "input"])
def test_sharing_is_what_the_stage_does(stage, asked):
    options = StageOptions(share_affinity=asked)
    made = stage(4, 2, **options.keywords())
    assert options.shares_affinity(made.form) is made.shares_affinity


@pytest.mark.parametrize("kind", MODULES)
def test_the_four_signatures_have_the_defaults_of_the_base(kind):
    parameters = inspect.signature(NonlocalModule).parameters.values()
    expected = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
    if kind.form == "diffusive":
        del expected["subsample"], expected["pool_after"]
    actual = {name: one.default for name, one in inspect.signature(kind).parameters.items()}
    own = ["channels", "num_blocks", "share_affinity"] if "Stage" in kind.__name__ else ["channels"]
    assert list(actual) == [*own, *expected]
    assert {name: actual[name] for name in expected} == expected


@pytest.mark.parametrize("kind", MODULES)
def test_docstrings_explain_every_keyword_once_and_name_every_choice(kind):
    text = inspect.getdoc(kind).partition(">>>")[0]
    lines = [line for line in text.splitlines()[1:] if line[:1].strip()]
    explained = [name for line in lines for name in line.partition("  ")[0].split(", ")]
    assert sorted(explained) == sorted(inspect.signature(kind).parameters)
    known = (
        *choices.WEIGHTS,
        *choices.AFFINITY_NAMES,
        *choices.NORMALIZATIONS,
        *choices.INITS,
        *choices.LAYOUTS,
    )
    assert [name for name in (*known, *BACKENDS) if f'"{name}"' not in text] == []


@pytest.mark.parametrize("kind", MODULES)
def test_an_unknown_keyword_names_the_class_the_nearest_and_all(kind):
    message = (
        rf"^{kind.__name__} has no keyword 'initstd'; the nearest is init_std; it takes channels, .*backend"
    )
    with pytest.raises(TypeError, match=message):
        kind(4, **({"num_blocks": 2} if "Stage" in kind.__name__ else {}), initstd=0.1)


@pytest.mark.parametrize("kind", [OriginalBlock, DiffusiveBlock])
def test_blocks_take_no_number_of_blocks(kind):
    with pytest.raises(TypeError):
        kind(4, 3)
    with pytest.raises(TypeError, match="no keyword 'num_blocks'; it takes channels"):
        kind(4, num_blocks=2)
