"""Output of a command: text for people, or one JSON object for programs."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any


class Output:
    """Print messages and the result.

    With --json, stdout carries one JSON object and nothing else; messages go to stderr. With --quiet there are no
    messages and no bars; results and errors stay.
    """

    def __init__(self, options: Namespace) -> None:
        self.is_json = bool(options.json)
        self.is_quiet = bool(options.quiet)

    def talk(self, text: str) -> None:
        """Print a message about the work."""
        if not self.is_quiet:
            print(text, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def result(self, text: str, value: dict[str, Any]) -> None:
        """Print the result: as text, or `value` as JSON."""
        if self.is_json:
            text = json.dumps(value, indent=2, ensure_ascii=not _is_unicode(), allow_nan=False)
        print(text, flush=True)


def add_output_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no bars and no talk; the result only")


def check_output_folder(folder: Path) -> None:
    """Raise an error unless files can be written to this --output; asked before the work, which may take hours."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"--output {nearest} is a file; name a folder")
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"--output {nearest} cannot be written to; name another folder")


def _is_unicode() -> bool:
    """Whether stdout takes every character; "\\xe9", which it would write for é otherwise, is not JSON."""
    return str(getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
