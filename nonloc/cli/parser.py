"""The parser: jsonargparse with subcommands, configuration files and the environment, in the house's words."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from nonloc import __version__
from nonloc.cli.nearest import nearest

if TYPE_CHECKING:
    from nonloc.cli.commands import Command

ENV_PREFIX = "NONLOC"

DESCRIPTION = """\
Nonlocal networks and nonlocal diffusion: train them, see what they learned, reproduce the paper.

  nonloc reproduce demo                             a few minutes on two cores, then open demo/report.html
  nonloc train --network preresnet20/diffusive-5@2  one network by one recipe
  nonloc <command> --help                           what a command does, with examples"""

EPILOG = """\
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 the run diverged; 4 corrupt data; 5 another process holds the run
folder; 130 and 143 interrupted by SIGINT and SIGTERM after saving: the same command continues.
NONLOC_DEBUG=1 shows the traceback of an error, NONLOC_DATA is where the data sets are kept."""


class HelpFormatter(DefaultHelpFormatter):
    """Keeps the lines of descriptions as written, and leaves out the environment's name of every single option."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{"max_help_position": 32, "width": 112} | keywords)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return argparse.HelpFormatter._format_action_invocation(self, action)


def make_parser(commands: Mapping[str, Command], words: Sequence[str]) -> ArgumentParser:
    """The parser of `nonloc`; its result has `command`, and the options under the command's name.

    Only a command that occurs in `words` gets its options: making them all is what would take time.
    """
    parser = ArgumentParser(
        prog="nonloc",
        usage="nonloc <command> [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        version=__version__,
        default_env=True,
        env_prefix=ENV_PREFIX,
        exit_on_error=False,
        allow_abbrev=False,
    )
    subcommands = parser.add_subcommands(
        dest="command", required=True, metavar="<command> …", title="commands"
    )
    for name, command in commands.items():
        subparser = ArgumentParser(
            description=command.description,
            formatter_class=HelpFormatter,
            default_env=True,
            exit_on_error=False,
            allow_abbrev=False,
            epilog=f"Every option can also be set in the environment: NONLOC_{name.upper()}__<OPTION>, with __ for a\n"
            "dot. On the command line - and _ in an option's name are the same.",
        )
        if name in words:
            command.add_arguments(subparser)
        positionals = [action.dest.upper() for action in subparser._actions if not action.option_strings]
        subparser.usage = " ".join(["nonloc", name, *positionals, "[options]"])
        subcommands.add_subcommand(name, subparser, help=command.summary)
    return parser


def with_underscores(words: Sequence[str]) -> list[str]:
    """The words with - turned into _ in the names of options: --data-dir=a-b becomes --data_dir=a-b."""
    changed = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            word = f"--{name.replace('-', '_')}{equals}{value}"
        changed.append(word)
    return changed


def nearest_options(commands: Mapping[str, Command], words: Sequence[str]) -> str:
    """Of the options in `words` that the command does not have, what may have been meant; "" where nothing may."""
    name = next((word for word in words if word in commands), None)
    if name is None:
        return ""
    parser = ArgumentParser()
    commands[name].add_arguments(parser)
    known = [option[2:] for option in parser._option_string_actions if option.startswith("--")]
    given = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    meant = {one: nearest(one, known) for one in given if one not in known}
    return "".join(f"; the nearest to --{one} is --{near}" for one, near in meant.items() if near is not None)
