"""Properties of the values that describe networks and runs: specs, stage options, recipes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from nonloc.nn.options import AFFINITY_NAMES, NORMALIZATIONS, StageOptions
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.training.recipe import OPTIMIZERS, PRECISIONS, SCHEDULES, Recipe


@st.composite
def specs(draw):
    family = draw(st.sampled_from(("preresnet", "restorer")))
    variants = ("bottleneck", "keras", "basic", "public") if family == "preresnet" else ("bottleneck",)
    variant = draw(st.sampled_from(variants))
    n = draw(st.integers(1, 20))
    size = n + 1 if family == "restorer" else n * (6 if variant == "basic" else 9) + 2
    form = draw(st.sampled_from((None, "original", "diffusive")))
    if form is None:
        return NetworkSpec(family, size, variant)
    places = draw(st.sets(st.integers(1, 4 if family == "restorer" else 3 * n), min_size=1, max_size=4))
    return NetworkSpec(family, size, variant, form, draw(st.integers(1, 9)), tuple(sorted(places)))


@given(specs())
def test_a_spec_is_what_its_text_says(spec):
    assert NetworkSpec.parse(str(spec)) == spec


POSITIVE = st.floats(1e-6, 1e3)
OPTIONS = st.builds(
    StageOptions,
    affinity=st.none() | st.sampled_from(AFFINITY_NAMES),
    embed=st.none() | st.integers(1, 9),
    weight=st.none() | st.sampled_from(("factored", "full")),
    shared_embedding=st.none() | st.booleans(),
    normalize=st.none() | st.sampled_from(NORMALIZATIONS),
    init_std=st.none() | POSITIVE,
    subsample=st.none() | st.integers(2, 4),
)
EPOCHS = st.sets(st.integers(1, 200), max_size=4).map(lambda chosen: tuple(sorted(chosen)))
RECIPES = st.builds(
    Recipe,
    network=specs().map(str),
    stage=OPTIONS,
    epochs=st.integers(1, 300),
    steps_per_epoch=st.none() | st.integers(1, 500),
    optimizer=st.sampled_from(OPTIMIZERS),
    learning_rate=POSITIVE | st.integers(1, 3),
    schedule=st.sampled_from(SCHEDULES),
    milestones=EPOCHS,
    precision=st.sampled_from(PRECISIONS),
    pixel_scale=POSITIVE | st.just("std"),
    spectrum_epochs=EPOCHS,
    augment=st.booleans(),
    seed=st.integers(0, 2**32),
)


@given(OPTIONS)
def test_stage_options_go_through_json_and_back(options):
    assert StageOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options
    assert StageOptions(**options.keywords()) == options


@given(RECIPES)
def test_a_recipe_goes_through_json_and_back(recipe):
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert again.sha256 == recipe.sha256
    assert again.differences(recipe) == []
