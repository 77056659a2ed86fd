"""complete: the script by which a shell completes `nonloc` (shtab)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from importlib.metadata import EntryPoint

from nonloc.cli.commands import load_command, summarize
from nonloc.cli.parser import make_command_parser, make_parser, unknown_name


def complete(commands: Mapping[str, EntryPoint], shell: str) -> str:
    """Return the script for `shell`, with all commands and their options."""
    try:
        import shtab
    except ImportError as error:
        raise ValueError("--print_completion needs shtab; pip install shtab") from error
    if shell not in shtab.SUPPORTED_SHELLS:
        raise unknown_name(shell, "shell", shtab.SUPPORTED_SHELLS, "choose one of")
    parser = make_parser(commands)
    known = parser.add_subparsers(parser_class=ArgumentParser)
    for name, point in commands.items():
        known.add_parser(name, help=summarize(point))
        known.choices[name] = make_command_parser(name, load_command(point))
    return shtab.complete(parser, shell)
