"""The command line: one table of commands; every command is a thin call into a floor below.

Nothing here imports torch before a command runs: the command functions are the one place where modules are
imported late.
"""

from nonloc.cli.entry import main

__all__ = ["main"]
