"""CommandParser: jsonargparse, where the environment can set every option; options that commands share."""

from __future__ import annotations

import argparse
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter):
    """Keep the lines of descriptions as written, and leave out the environment's name of every single option."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{"max_help_position": 32, "width": 112} | keywords)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return argparse.HelpFormatter._format_action_invocation(self, action)


class CommandParser(ArgumentParser):
    """The parser of one command of nonloc-paper; `prog` is "nonloc <command>"."""

    def __init__(self, prog: str = "nonloc", description: str = "", **keywords: Any) -> None:
        variable = prog.upper().replace(" ", "_")
        epilog = (
            f"Every option can also be set in the environment: {variable}__<OPTION>, with __ for a dot.\n"
            "On the command line - and _ in an option's name are the same."
        )
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter,
            default_env=True,
            env_prefix=f"{variable}_",
            exit_on_error=False,
            allow_abbrev=False,
            **keywords,
        )


def add_optional(parser: ArgumentParser, name: str, help: str, kind: Any = str, **keywords: Any) -> None:
    """Add an option of the type `kind` that may be null; null is its default."""
    parser.add_argument(name, type=kind | None, default=None, help=help, **keywords)


def add_words(parser: ArgumentParser, name: str, help: str, **keywords: Any) -> None:
    """Add an option that takes one or more words, and may be repeated."""
    parser.add_argument(name, type=str, nargs="+", action="extend", default=[], help=help, **keywords)


def add_data_dir(parser: ArgumentParser, *, note: str = "") -> None:
    add_optional(parser, "--data_dir", f"where the data sets are{note}", metavar="DIR")


def add_device(parser: ArgumentParser) -> None:
    add_optional(parser, "--device", "cpu or cuda; null is cuda where there is one")


def add_budget(parser: ArgumentParser) -> None:
    add_optional(parser, "--budget", "stop, saved, after so long: 90s, 25m, 2h")
