"""The commands of `nonloc`: `simulate`, and those that installed distributions add.

A distribution adds a command by an entry point in the group `nonloc.commands`. It names a module that does not import
torch and has

    SUMMARY        one line for `nonloc --help`
    DESCRIPTION    for `nonloc <command> --help`: what it does, examples, exit codes
    add_arguments  puts the options into a parser
    run            does it with the parsed options and returns the exit code
    PARSER         optional: a subclass of argparse.ArgumentParser to use in place of the ordinary one
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

GROUP = "nonloc.commands"
BUILT_IN = (EntryPoint("simulate", "nonloc.cli.simulate", GROUP),)
NEEDED = ("SUMMARY", "DESCRIPTION", "add_arguments", "run")


def find_commands(added: Iterable[EntryPoint] | None = None) -> dict[str, EntryPoint]:
    """Return every command by its name, in alphabetical order; two modules under one name are an error."""
    commands: dict[str, EntryPoint] = {}
    for point in (*BUILT_IN, *(entry_points(group=GROUP) if added is None else added)):
        other = commands.setdefault(point.name, point)
        if other.value != point.value:
            raise ValueError(
                f"the command {point.name!r} is added twice, by {other.value} and by {point.value}; uninstall one"
            )
    return dict(sorted(commands.items()))


def load_command(point: EntryPoint) -> ModuleType:
    """Import the module of a command; ImportError says which distribution's command cannot be used, and why."""
    try:
        module = point.load()
    except Exception as error:
        raise ImportError(f"the command {point.name!r} ({point.value}) cannot be loaded: {error}") from error
    lacking = [name for name in NEEDED if not hasattr(module, name)]
    if lacking:
        raise ImportError(f"the command {point.name!r} ({point.value}) lacks {', '.join(lacking)}")
    return module


def summarize(point: EntryPoint) -> str:
    """Return the line of a command in `nonloc --help`; one that cannot be loaded says so."""
    try:
        return load_command(point).SUMMARY
    except ImportError as error:
        return " ".join(str(error).split())
