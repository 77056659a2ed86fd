"""The parsers of `nonloc` and of its commands, and hints for mistyped names."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, NoReturn

from nonloc import __version__
from nonloc._checks import shortened, shown
from nonloc.cli.commands import summarize
from nonloc.outcomes import CorruptDataError, NonlocError

DESCRIPTION = """\
Nonlocal networks and nonlocal diffusion: simulate them, train them, see what they learned.

  nonloc simulate diffusion     an image under nonlocal diffusion, as numbers and pictures
  nonloc <command> --help       what a command does, with examples"""

EPILOG = """\
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 it diverged; 4 corrupt data; 5 another process holds the run folder;
130 and 143 interrupted by SIGINT and SIGTERM after saving: the same command continues.
NONLOC_DEBUG=1 shows the traceback of an error."""


LITERALS = {"None": "null", "True": "true", "False": "false"}  # of Python, as options take them


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keep the lines of descriptions as they are written, on a page of 112 characters."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=112)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """The help with its default, where there is one to tell."""
        says_default = "default" in (action.help or "") or action.default in (None, False, argparse.SUPPRESS)
        return action.help if says_default else f"{action.help} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises ArgumentError instead of ending the process."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


def make_parser(commands: Mapping[str, EntryPoint]) -> Parser:
    """Return the parser of `nonloc` without a command: it knows --help, --version and --print_completion."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {summarize(point)}" for name, point in commands.items()]
    parser = Parser(
        prog="nonloc",
        usage="nonloc <command> [options]",
        description=DESCRIPTION,
        epilog="\n".join(["commands:", *lines, "", EPILOG]),
    )
    parser.add_argument("--version", action="version", version=f"nonloc {__version__}")
    parser.add_argument("--print_completion", metavar="SHELL", help="print the completion script for a shell")
    return parser


def make_command_parser(name: str, command: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of one command, by its own PARSER if it has one."""
    make = getattr(command, "PARSER", Parser)
    parser: argparse.ArgumentParser = make(prog=f"nonloc {name}", description=command.DESCRIPTION)
    command.add_arguments(parser)
    for option, action in list(parser._option_string_actions.items()):
        # What is typed arrives with _, see `with_underscores`; a command may have named an option with -.
        parser._option_string_actions.setdefault(with_underscores([option])[0], action)
    positionals = [action.dest.upper() for action in parser._actions if not action.option_strings]
    parser.usage = " ".join([parser.prog, *positionals, "[options]"])
    return parser


def with_underscores(words: Sequence[str]) -> list[str]:
    """Turn - into _ in the names of options: --data-dir=a-b becomes --data_dir=a-b. A value of -- is refused."""
    changed = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if value == "--":
                # Before Python 3.13, argparse takes it for the end of options, and leaves [] for a value.
                raise ValueError(f"argument --{shortened(name)}: expected a value, got --")
            word = f"--{name.replace('-', '_')}{equals}{value}"
        changed.append(word)
    return changed


@contextmanager
def naming_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[None]:
    """Name options in errors that name arguments of Python; what is in `words`, such as a file, stays as it is.

    An error about a file may name fields of it, and is not changed.
    """
    options = [option[2:] for option in parser._option_string_actions if option.startswith("--")]
    try:
        yield
    except CorruptDataError:
        raise
    except (NonlocError, ValueError) as error:
        values = (word.partition("=")[2] if word.startswith("--") else word for word in words)
        kept = [re.escape(value) for value in values if as_options(value, options) != value]
        parts = re.split(f"({'|'.join(kept)})", str(error)) if kept else [str(error)]
        parts[::2] = (as_options(part, options) for part in parts[::2])
        error.args = ("".join(parts),)
        raise


def as_options(message: str, options: Iterable[str]) -> str:
    """Write --stepper exact for stepper="exact" where that is an option, and null, true, false as they are typed.

    A name that is a word of English is an argument in "seed=1", "seed must be …" and "seed is 1, was 0" alone.
    """
    full = {one.rpartition(".")[2]: one for one in options}
    value = r"""(?:"[^"]*"|'[^']*'|[\w.+-]+\b(?!/))"""
    name = rf"(?<![\w/.-])(?:\w+\.)?({'|'.join(full)})\b(?!/)(?: ?= ?({value}(?: or \"\w+\")*))?"

    def option(found: re.Match[str]) -> str:
        is_said = "_" in found[1] or found[2] or re.match(r" must | is [^;]+, was ", message[found.end() :])
        values = (found[2] or "").replace('"', "").replace("'", "")
        return f"--{full[found[1]]} {values}".rstrip() if is_said else found[0]

    literals = r"(?<![\w'/.-])(None|True|False)\b(?![/-])"
    return re.sub(literals, lambda found: LITERALS[found[0]], re.sub(name, option, message))


def nearest_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """Name the known options nearest to the unknown ones in `words`; "" where none is near."""
    known = [option[2:] for option in parser._option_string_actions if option.startswith("--")]
    names = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    meant = {name: nearest(name, known) for name in names if name not in known}
    return "".join(
        f"; the nearest to --{shortened(name)} is --{near}"
        for name, near in meant.items()
        if near is not None
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`; None where none is.

    Of dotted names the last part is enough, and so are initials: scaled is stage.scaled, lr is learning_rate.
    """
    by_part = {one.rpartition(".")[2]: one for one in known}
    initials = {
        "".join(word[:1] for word in part.split("_")): one for part, one in by_part.items() if "_" in part
    }
    part = name.rpartition(".")[2]
    if part in initials and part not in by_part:
        return initials[part]
    near = difflib.get_close_matches(part, by_part, n=1)
    return by_part[near[0]] if near else None


def unknown_name(name: str, kind: str, known: Iterable[str], listing: str) -> ValueError:
    """Return the error for a name that is not known, with the nearest one and all choices."""
    known = list(known)
    near = nearest(name, known)
    hint = "" if near is None else f"the nearest is {near}; "
    return ValueError(f"{shown(name)} is not a {kind}; {hint}{listing} {', '.join(known)}")
