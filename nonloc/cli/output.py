"""What a command says: talk for people, or one JSON object for programs."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any


class Output:
    """With --json, stdout carries one JSON object and nothing else, and all talk goes to stderr.

    With --quiet there is no talk and there are no bars; results and errors stay.
    """

    def __init__(self, options: Namespace) -> None:
        self.is_json = bool(options.json)
        self.is_quiet = bool(options.quiet)

    def talk(self, text: str) -> None:
        """Something on the way."""
        if not self.is_quiet:
            print(text, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def result(self, text: str, value: dict[str, Any]) -> None:
        """What the command was run for: as text, or `value` as JSON."""
        print(
            json.dumps(value, indent=2, ensure_ascii=not _is_unicode(), allow_nan=False)
            if self.is_json
            else text,
            flush=True,
        )


def add_output_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no bars and no talk; the result only")


def _is_unicode() -> bool:
    """Whether stdout takes every character as it is; "\\xe9", as it would write é otherwise, is no JSON."""
    return str(getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"
