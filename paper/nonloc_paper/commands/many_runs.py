"""The options of commands that train many runs."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from jsonargparse import ArgumentParser

from nonloc.cli.nearest import nearest
from nonloc.nn.options import StageOptions
from nonloc_paper.training.recipe import Recipe


def add_many_runs_arguments(parser: ArgumentParser) -> None:
    """How long, how many at once, what to change in all recipes, where, and on which data."""
    parser.add_argument(
        "--budget", type=str | None, default=None, help="stop, saved, after so long: 90s, 25m, 2h"
    )
    parser.add_argument(
        "--side_by_side",
        type=int | None,
        default=None,
        metavar="K",
        help="runs under way at once; null is 1 on the CPU and a measured number on CUDA",
    )
    parser.add_argument(
        "--set",
        type=str,
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=VALUE",
        help="change fields of all recipes",
    )
    parser.add_argument(
        "--device", type=str | None, default=None, help="cpu or cuda; null is cuda where there is one"
    )
    parser.add_argument(
        "--data_dir", type=str | None, default=None, metavar="DIR", help="where the data sets are"
    )


def parse_changes(words: list[str]) -> dict[str, Any]:
    """{"precision": "bfloat16", "stage": {"init_std": 0.07}} of "precision=bfloat16", "stage.init_std=0.07"."""
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(
                f"--set {word}: write FIELD=VALUE, such as precision=bfloat16 or stage.init_std=0.07"
            )
        _check_field(name)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        outer, dot, inner = name.partition(".")
        if dot and not isinstance(changes.get(outer, {}), dict):
            raise ValueError(f"--set {word}: {outer} itself is set before it; set one or the other")
        if name in changes or (dot and inner in changes.get(outer, {})):
            raise ValueError(f"--set {word}: {name} is set before it, in whole or in part; set it once")
        if dot:
            changes.setdefault(outer, {})[inner] = value
        else:
            changes[name] = value
    return changes


def _check_field(name: str) -> None:
    """ValueError unless it is a field of the recipe, or stage.<one of its stage>."""
    known = [entry.name for entry in fields(Recipe)] + [
        f"stage.{entry.name}" for entry in fields(StageOptions)
    ]
    if name not in known:
        near = nearest(name, known)
        hint = "" if near is None else f"the nearest is {near}; "
        raise ValueError(f"{name!r} is not a field of the recipe; {hint}the fields are {', '.join(known)}")
