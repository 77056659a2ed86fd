"""A recipe on the command line: one option for each field, with the field's own help text."""

from __future__ import annotations

from dataclasses import fields

from jsonargparse import ArgumentParser, Namespace

from nonloc.nn.options import StageOptions
from nonloc_paper.training.recipe import Recipe


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """Add one option for each field of Recipe, and --stage.<option> for those of its stage."""
    parser.add_class_arguments(Recipe, nested_key=None)
    texts = {one.name: one.metadata["help"] for one in fields(Recipe)}
    texts |= {f"stage.{one.name}": one.metadata["help"] for one in fields(StageOptions)}
    for action in parser._actions:
        if action.dest in texts:
            # A single % would be read as the beginning of argparse's own placeholders.
            action.help = texts[action.dest].replace("%", "%%")
    for group in parser._action_groups:
        if group.title and "StageOptions" in group.title:
            group.title = "the nonlocal stages; null is the stage's own default"
        elif group.title and "Recipe" in group.title:
            group.title = "the recipe"


def recipe_from(options: Namespace) -> Recipe:
    """Return the Recipe that the options of `add_recipe_arguments` describe."""
    values = {name: value for name, value in options.as_dict().items() if name in Recipe.__dataclass_fields__}
    stage = values["stage"]
    values["stage"] = {name: stage[name] for name in stage if name in StageOptions.__dataclass_fields__}
    return Recipe.from_dict(values)
