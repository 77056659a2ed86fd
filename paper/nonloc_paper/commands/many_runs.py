"""Options and progress of the commands that train many runs: reproduce and map."""

from __future__ import annotations

import json
import time
from dataclasses import fields
from typing import Any

from jsonargparse import ArgumentParser

from nonloc._checks import check_choice, shortened
from nonloc.cli.durations import format_duration
from nonloc.cli.parser import unknown_name
from nonloc.nn.options import StageOptions
from nonloc_paper.commands.parser import add_budget, add_data_dir, add_device, add_optional, add_words
from nonloc_paper.data import NAMES
from nonloc_paper.networks.spec import NetworkSpec
from nonloc_paper.training.progress import Display
from nonloc_paper.training.recipe import Recipe


def add_many_runs_arguments(parser: ArgumentParser) -> None:
    """Add --budget, --side_by_side, --set, --device and --data_dir."""
    add_budget(parser)
    text = "runs under way at once; null is 1 on the CPU and a measured number on CUDA"
    add_optional(parser, "--side_by_side", text, int, metavar="K")
    add_words(parser, "--set", "change fields of all recipes", metavar="FIELD=VALUE")
    add_device(parser)
    add_data_dir(parser)


def parse_changes(words: list[str]) -> dict[str, Any]:
    """Turn "precision=bfloat16", "stage.init_std=0.07" into {"precision": "bfloat16", "stage": {"init_std": 0.07}}."""
    known = [one.name for one in fields(Recipe)] + [f"stage.{one.name}" for one in fields(StageOptions)]
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        short = shortened(word)
        if not equals:
            raise ValueError(
                f"--set {short}: write FIELD=VALUE, such as precision=bfloat16 or stage.init_std=0.07"
            )
        if name not in known:
            raise unknown_name(name, "field of the recipe", known, "the fields are")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        outer, dot, inner = name.partition(".")
        if dot and not isinstance(changes.get(outer, {}), dict):
            raise ValueError(f"--set {short}: {outer} itself is set before it; set one or the other")
        if name in changes or (dot and inner in changes.get(outer, {})):
            raise ValueError(f"--set {short}: {name} is set before it, in whole or in part; set it once")
        if dot:
            if value is not None:
                StageOptions.__dataclass_fields__[inner].metadata["check"](name, value)
            changes.setdefault(outer, {})[inner] = value
        else:
            changes[name] = value
    if "data" in changes:
        check_choice("data", changes["data"], NAMES)
    if "network" in changes:
        NetworkSpec.parse(changes["network"])  # a network of one's own is for Python
    return changes


class RunsProgress(Display):
    """Many runs: a bar over all of them, or a line a run."""

    def __init__(self, name: str, total: int, *, is_shown: bool) -> None:
        super().__init__(name, 0, total, "{n_fmt}/{total_fmt} runs, {elapsed} so far", is_shown=is_shown)

    def begin(self, index: int, label: str) -> None:
        """Show that the run with number `index`, from 0, is next."""
        self.reach(index)
        if self._bar is not None:
            self._bar.refresh()
        since = format_duration(time.monotonic() - self._started)
        self.print_line(f"{self._name}, run {index + 1} of {self._total}: {label} ({since} so far)")
