"""The command line. No module here imports torch before a command runs."""

from nonloc.cli.entry import main

__all__ = ["main"]
