"""The recipe: validated, frozen, plain as JSON, and named so that two recipes never share a folder."""

import dataclasses
import math

import pytest

from nonloc.outcomes import CorruptDataError
from nonloc_paper.runs import Run
from nonloc_paper.training.recipe import Recipe


def test_the_defaults_are_the_papers():
    recipe = Recipe()
    assert (recipe.data, recipe.epochs, recipe.batch_size, recipe.augment) == ("cifar10", 164, 128, True)
    rates = (recipe.learning_rate, recipe.schedule, recipe.milestones, recipe.gamma)
    assert rates == (0.1, "step", (81, 122), 0.1)
    # "Around 32k and 48k iterations" fixes the batch size that the text does not name.
    assert [round(epoch * math.ceil(50_000 / 128), -3) for epoch in recipe.milestones] == [32_000, 48_000]
    assert (recipe.optimizer, recipe.momentum, recipe.nesterov) == ("sgd", 0.9, False)
    assert recipe.weight_decay == 1e-4


def test_unknown_keys_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'learning_rat' is not a field of the recipe; .*learning_rate"):
        Recipe.from_dict({"learning_rat": 0.1})
    with pytest.raises(ValueError, match=r"'hiden' is not a field of the stage; .*hidden"):
        Recipe.from_dict({"stage": {"hiden": 3}})


def test_the_recipe_of_a_run_names_its_file_where_it_is_no_recipe(tmp_path):
    run = Run(tmp_path)
    run.write_recipe(Recipe(seed=3).to_dict())
    assert Recipe.of(run) == Recipe(seed=3)
    run.write_recipe({"bread": 1})
    with pytest.raises(
        CorruptDataError, match=r"recipe\.json is no recipe of this version: 'bread' is not a field"
    ):
        Recipe.of(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network", "nonsense"),
        ("network", 3),
        ("data", "../elsewhere"),
        ("stage", {"hidden": 3}),
        ("epochs", 0),
        ("epochs", 2.0),
        ("steps_per_epoch", 0),
        ("batch_size", -1),
        ("optimizer", "lbfgs"),
        ("learning_rate", 0),
        ("learning_rate", math.nan),
        ("learning_rate", 1e39),
        ("gamma", 1e30),
        ("schedule", "cosine"),
        ("milestones", (122, 81)),
        ("milestones", (0,)),
        ("milestones", 81),
        ("gamma", math.inf),
        ("momentum", 1.0),
        ("nesterov", 1),
        ("weight_decay", -1e-4),
        ("augment", None),
        ("pixel_scale", 0),
        ("pixel_scale", "max"),
        ("noise", -0.1),
        ("precision", "float16"),
        ("channels_last", "yes"),
        ("spectrum_epochs", (1, 1)),
        ("seed", -1),
        ("train_images", 0),
        ("test_images", 1.5),
    ],
)
def test_a_wrong_value_is_refused_with_the_fields_name(field, value):
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})


def test_the_network_decides_the_task_and_the_name():
    assert Recipe(network="restorer8/baseline").task == "restoration"
    recipe = Recipe(network="preresnet20/diffusive-5@2")
    assert recipe.task == "classification"
    assert recipe.name == f"cifar10-preresnet20-diffusive-5@2-seed0-{recipe.sha256[:8]}"


def test_every_field_is_part_of_the_hash():
    other = {
        "network": "preresnet29/baseline",
        "data": "cifar100",
        "stage": dataclasses.replace(Recipe().stage, hidden=3),
        "optimizer": "adam",
        "schedule": "constant",
        "milestones": (1,),
        "spectrum_epochs": (1,),
        "precision": "bfloat16",
        "momentum": 0.8,
    }
    for field in dataclasses.fields(Recipe):
        default = getattr(Recipe(), field.name)
        if field.name not in other:
            other[field.name] = (not default) if isinstance(default, bool) else (default or 0) + 1
    other["nesterov"] = True
    hashes = {Recipe(**{name: value}).sha256 for name, value in other.items()}
    assert len(hashes | {Recipe().sha256}) == len(dataclasses.fields(Recipe)) + 1


def test_the_hash_holds_what_differs_from_the_defaults_only():
    # The SHA-256 of "{}": a field that is added later must not rename the folders of today.
    assert Recipe().sha256 == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_equal_numbers_written_differently_are_one_recipe():
    assert Recipe(learning_rate=1, pixel_scale=64).sha256 == Recipe(learning_rate=1.0).sha256
    whole, decimal = (Recipe().with_(stage={"init_std": value}) for value in (1, 1.0))
    assert whole.sha256 == decimal.sha256
    # They differ in no field, so a run of the one must go on by the other.
    assert Recipe(momentum=-0.0, weight_decay=-0.0).sha256 == Recipe(momentum=0, weight_decay=0).sha256


def test_differences_name_the_fields_and_both_values():
    changed = Recipe(seed=1).with_(stage={"hidden": 5})
    assert changed.differences(Recipe()) == ["seed is 1, was 0", "stage.hidden is 5, was None"]
    assert Recipe().differences(Recipe()) == []
