"""A recipe on the command line: one option for each field, explained in the recipe's own words."""

from __future__ import annotations

import re
from dataclasses import fields

from jsonargparse import ArgumentParser, Namespace

from nonloc.nn.choices import AFFINITY_NAMES, INITS, NORMALIZATIONS, WEIGHTS
from nonloc_paper.networks.spec import StageOptions
from nonloc_paper.training.recipe import Recipe

STAGE_HELP = {
    "affinity": f"the kernel ω: {', '.join(AFFINITY_NAMES)}",
    "embed": "width of the embeddings θ and φ",
    "hidden": "rank of W = W_Z W_g",
    "weight": f"W as {' or '.join(WEIGHTS)}",
    "shared_embedding": "one embedding for both sides, which makes ω symmetric",
    "normalize": f"how ω is normalised: {', '.join(NORMALIZATIONS)}",
    "scaled": "divide the logits by √d",
    "init": f"how the stage's maps start: {', '.join(INITS)}",
    "init_std": "the deviation of init=normal",
    "batch_norm": "batch normalisation after W_Z",
    "share_affinity": "one ω for all sub-blocks, from the stage's input",
    "bias": "give the maps a bias",
    "subsample": "original form: max-pool the givers by this stride",
    "backend": "which implementation of the operator; auto chooses",
}


def add_recipe_arguments(parser: ArgumentParser) -> None:
    """One option for each field of Recipe, --stage.<option> for those of its stage."""
    parser.add_class_arguments(Recipe, nested_key=None)
    explained = field_help(Recipe.__doc__ or "") | {
        f"stage.{name}": text for name, text in STAGE_HELP.items()
    }
    for action in parser._actions:
        if action.dest in explained:
            # A single % would be read as the beginning of argparse's own placeholders.
            action.help = explained[action.dest].replace("%", "%%")
    for group in parser._action_groups:
        if group.title and "StageOptions" in group.title:
            group.title = "the nonlocal stages; null is the stage's own default"
        elif group.title and "Recipe" in group.title:
            group.title = "the recipe"


def recipe_from(options: Namespace) -> Recipe:
    """The Recipe that the options of `add_recipe_arguments` say."""
    names = {entry.name for entry in fields(Recipe)}
    values = {name: value for name, value in options.as_dict().items() if name in names}
    stage = {entry.name for entry in fields(StageOptions)}
    values["stage"] = {name: value for name, value in values["stage"].items() if name in stage}
    return Recipe.from_dict(values)


def field_help(docstring: str) -> dict[str, str]:
    """The explanations in a docstring that lists fields as "name  text", with the text's lines aligned."""
    found: dict[str, str] = {}
    name, column = "", 0
    for line in docstring.splitlines():
        entry = re.match(r" {4}(\w+) {2,}(?=\S)", line)
        if entry:
            name, column = entry[1], entry.end()
            found[name] = line[column:].strip()
        elif name and line[:column].strip() == "" and line.strip():
            found[name] += " " + line.strip()
        else:
            name = ""
    return found
