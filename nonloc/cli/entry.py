"""main: run the command that the words on the command line name, and return an exit code."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from nonloc._checks import shortened
from nonloc.cli.commands import find_commands, load_command
from nonloc.cli.parser import (
    make_command_parser,
    make_parser,
    naming_options,
    nearest_options,
    unknown_name,
    with_underscores,
)
from nonloc.outcomes import EXIT_DONE, EXIT_FAILED, EXIT_SIGINT, EXIT_SIGPIPE, EXIT_USAGE, NonlocError

DEBUG_VARIABLE = "NONLOC_DEBUG"
LONGEST_MESSAGE = 1500
# What names a wrong argument, file or installation; anything else is a mistake in nonloc.
CORRECTABLE = (NonlocError, ValueError, argparse.ArgumentError, OSError, ImportError)

NO_FOLDER = (FileExistsError, NotADirectoryError)  # of a folder that is to be made where a file is


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, one of outcomes.py.

    An error is one line on stderr, and one that no user can correct says so; NONLOC_DEBUG=1 shows the traceback.
    """
    # A stream that the caller has closed (`>&-`) is None, and print takes None for stdout.
    sys.stdout = sys.stdout or _null_stream()
    sys.stderr = sys.stderr or _null_stream()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show √ must not lose a result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with _noting_interrupt():
            code = _run(with_underscores(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # As in `nonloc … | head`. Python would write to the closed pipe once more.
        sys.stdout = _null_stream()
        return EXIT_SIGPIPE
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG_VARIABLE) not in (None, "", "0"):
            raise
        return _report(error)


def _run(words: Sequence[str]) -> int:
    commands = find_commands()
    if not words or words[0].startswith("-"):
        parsed = make_parser(commands).parse_args(words)
        if parsed.print_completion is not None:
            from nonloc.cli.completion import complete

            print(complete(commands, parsed.print_completion))
            return EXIT_DONE
        raise ValueError(f"name a command: {', '.join(commands)}; `nonloc --help` explains them")
    name, *options = words
    if name not in commands:
        only = "" if "reproduce" in commands else "; the others come with nonloc-paper: pip install ./paper"
        raise ValueError(f"{unknown_name(name, 'command', commands, 'choose one of')}{only}")
    command = load_command(commands[name])
    parser = make_command_parser(name, command)
    try:
        parsed = parser.parse_args(options)
    except argparse.ArgumentError as error:
        if "unrecognized arguments" in str(error):
            raise ValueError(f"{error}{nearest_options(parser, options)}") from None
        raise
    with naming_options(parser, options):
        return command.run(parsed)


@contextmanager
def _noting_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt for any error after a SIGINT: while torch is imported, one may become another error."""
    noted = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if noted and not isinstance(error, NonlocError):
            raise KeyboardInterrupt from error
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _report(error: BaseException) -> int:
    """Print one line on stderr; return the exit code that belongs to the error."""
    if isinstance(error, KeyboardInterrupt):
        _print_error("interrupted")
        return EXIT_SIGINT
    message = str(error)
    if isinstance(error, OSError) and error.filename:
        is_file = isinstance(error, NO_FOLDER)
        reason = "a file is there, or above it, and not a folder; name another" if is_file else error.strerror
        message = f"{error.filename}: {reason}"
    # argparse and jsonargparse spread their messages over lines, and repeat long values in them.
    message = shortened(" ".join(message.split()), LONGEST_MESSAGE)
    if isinstance(error, ImportError):
        message += "; pip install 'nonloc[plots,graphs]' for simulate, or nonloc-paper for all commands"
    elif _is_too_large(error):
        message = f"a size is too large for this machine, make it smaller ({shortened(message)})"
    elif not isinstance(error, CORRECTABLE):
        message = (
            f"{type(error).__name__}: {message}; this is a bug of nonloc: "
            f"please report it, with the traceback that {DEBUG_VARIABLE}=1 shows"
        )
    _print_error(f"error: {message}")
    if isinstance(error, NonlocError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, (ValueError, argparse.ArgumentError, *NO_FOLDER)) else EXIT_FAILED


def _is_too_large(error: BaseException) -> bool:
    """Return whether memory ran out, or a size does not fit into 64 bits; torch has no exception of its own for it."""
    texts = (
        "can't allocate memory",
        "out of memory",
        "Storage size calculation overflowed",
        "Overflow when unpacking",
        "too large to convert",
    )
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def _print_error(text: str) -> None:
    try:
        print(f"nonloc: {text}", file=sys.stderr, flush=True)
    except OSError:
        # stderr is closed; the exit code remains. Python would write to the closed pipe once more.
        sys.stderr = _null_stream()


def _null_stream() -> TextIO:
    return open(os.devnull, "w")
