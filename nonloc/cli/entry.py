"""main: from the words on the command line to an exit code."""

from __future__ import annotations

import io
import os
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from typing import TextIO

from nonloc.cli.commands import COMMANDS
from nonloc.cli.parser import make_parser, nearest_options, with_underscores
from nonloc.outcomes import EXIT_FAILED, EXIT_SIGINT, EXIT_SIGPIPE, EXIT_USAGE, NonlocError

DEBUG_VARIABLE = "NONLOC_DEBUG"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code of outcomes.py.

    What a user can mend is one line on stderr; NONLOC_DEBUG=1 shows the traceback as well. What only we can
    mend is left to Python, which shows it and exits with 1.
    """
    # A stream that the caller has closed (`>&-`) is None, and print takes None for stdout.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show √ must not cost a result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = with_underscores(sys.argv[1:] if arguments is None else arguments)
    try:
        options = make_parser(COMMANDS, words).parse_args(words)
        command = COMMANDS[options.command]
        code = command.run(options[options.command])
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # As in `nonloc … | head`: who was reading has seen enough. Python would write to the closed pipe once more.
        sys.stdout = _nowhere()
        return EXIT_SIGPIPE
    except (NonlocError, ValueError, ArgumentError, OSError, ImportError, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG_VARIABLE) not in (None, "", "0"):
            raise
        return _say(error, words)


def _say(error: BaseException, words: Sequence[str]) -> int:
    """One line on stderr; the exit code that belongs to it."""
    if isinstance(error, KeyboardInterrupt):
        _print_error("interrupted")
        return EXIT_SIGINT
    # argparse and jsonargparse spread their messages over lines.
    message = " ".join(str(error).split())
    if message.startswith("unrecognized arguments"):
        message += nearest_options(COMMANDS, words)
    if isinstance(error, ImportError):
        message = f"{message}; `pip install 'nonloc[train,analysis]'` brings all that the commands need"
    _print_error(f"error: {message}")
    if isinstance(error, NonlocError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, (ValueError, ArgumentError)) else EXIT_FAILED


def _print_error(text: str) -> None:
    try:
        print(f"nonloc: {text}", file=sys.stderr, flush=True)
    except OSError:
        # Nobody reads it; the exit code still tells. Python would write to the closed pipe once more.
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return open(os.devnull, "w")
