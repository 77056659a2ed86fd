"""CommandParser: jsonargparse, where the environment can set every option; options that commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader

from nonloc._checks import shortened, shown
from nonloc.cli.parser import nearest

# Of a config file, or of any value that is read as YAML. A recipe has less than 2,000 characters and 2 levels.
LONGEST_TEXT, DEEPEST_TEXT = 100_000, 20
# By the name of a type, what an option of that type takes.
WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list such as [1,2]",
    "list": "a list such as [1,2]",
    "NoneType": "null",
}


def load_yaml(text: str) -> Any:
    """Read YAML; ValueError if it is none.

    A text that is too long or too deep, that repeats parts of itself by aliases, or that the reader fails on is an
    ArgumentError. jsonargparse would try a ValueError once more as a number, by a reader without these limits.
    """
    import yaml  # type: ignore[import-untyped]

    def refuse(reason: str) -> NoReturn:
        raise argparse.ArgumentError(None, f"the value {shown(text)} {reason}")

    if len(text) > LONGEST_TEXT:
        refuse(f"has more than {LONGEST_TEXT:,} characters; write the options only")
    try:
        depth, anchors = 0, set()
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent) and event.anchor in anchors:
                refuse(f"repeats a part of itself (*{shortened(event.anchor)}); write it out")
            anchors.add(getattr(event, "anchor", None))
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST_TEXT:
                refuse(f"is nested more than {DEEPEST_TEXT} deep; options have no such depth")
        return get_loader("yaml")(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(str(error)) from error
    except (TypeError, AttributeError) as error:  # of keys that are no words, and of dates that are none
        refuse(f"cannot be read ({error}); write a plain number, word or list")


set_loader("nonloc", load_yaml, exceptions=(ValueError,))


class HelpFormatter(DefaultHelpFormatter):
    """Keep the lines of descriptions as written, and leave out the environment's name of every single option."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **{"max_help_position": 32, "width": 112} | keywords)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return argparse.HelpFormatter._format_action_invocation(self, action)


class CommandParser(ArgumentParser):
    """The parser of one command of nonloc-paper; `prog` is "nonloc <command>".

    What config files say is in `of_files` of the parsed options, by the name of the option.
    """

    def __init__(self, prog: str = "nonloc", description: str = "", **keywords: Any) -> None:
        variable = prog.upper().replace(" ", "_")
        epilog = (
            f"Every option can also be set in the environment: {variable}__<OPTION>, with __ for a dot.\n"
            "On the command line - and _ in an option's name are the same."
        )
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=HelpFormatter,
            default_env=True,
            env_prefix=f"{variable}_",
            exit_on_error=False,
            allow_abbrev=False,
            parser_mode="nonloc",
            **keywords,
        )

    def parse_args(self, *args: Any, **keywords: Any) -> Namespace:  # type: ignore[override]
        """As jsonargparse does; a variable of the environment that sets no option is an error."""
        options = [one.dest for one in self._actions]
        start = f"{self.env_prefix}_"
        known = [start + one.replace(".", "__").upper() for one in options]
        for name in sorted(os.environ):
            if name.startswith(start[:-1]) and name not in known:
                near = nearest(name, known)
                meant = "" if near is None else f"; is {near} meant?"
                raise argparse.ArgumentError(None, f"{name} in the environment sets no option{meant}")
        self._of_files: dict[str, Any] = {}
        try:
            parsed = super().parse_args(*args, **keywords)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(None, in_plain_words(str(error), options)) from None
        parsed.of_files = self._of_files
        return parsed

    def parse_path(self, path: str | os.PathLike[str], *args: Any, **keywords: Any) -> Namespace:
        """Parse a config file; every error names it."""
        try:
            if os.path.getsize(path) > LONGEST_TEXT:
                raise ValueError(f"it has more than {LONGEST_TEXT:,} bytes; write the options only")
            parsed = super().parse_path(path, *args, **keywords)
            self._of_files |= vars(parsed.as_flat())
            return parsed
        except UnicodeDecodeError as error:
            message = f"it is not UTF-8 ({error}); save it as UTF-8"
        except (TypeError, ValueError, argparse.ArgumentError) as error:
            message = str(error)
        raise argparse.ArgumentError(None, f"the config file {path}: {message}")

    def parse_string(self, *args: Any, **keywords: Any) -> Namespace:
        """Parse the text of a config file, which cannot name another one."""
        parsed = super().parse_string(*args, **keywords)
        if not isinstance(parsed.get("config"), (list, type(None))):
            raise argparse.ArgumentError(None, "config cannot be set in a config file; leave it out")
        return parsed


def in_plain_words(message: str, known: Iterable[str] = ()) -> str:
    """What jsonargparse says, as "--seeds must be a whole number or null, got x"; else the message itself.

    A config file has names without dashes.
    """
    dashes = "" if "the config file" in message else "--"
    if unknown := re.search(r"(?:does not accept option|Option) '(.+?)'", message):
        near = nearest(unknown[1], known)
        hint = "" if near is None else f"; the nearest is {near}"
        return f"there is no option {shown(unknown[1])}{hint}"
    by_name = "options by name are needed, such as epochs: 10 or {hidden: 8} of a stage"
    message = re.sub(r'Parser key "\w+":\nUnable to load config .*\n  - ', "", message)
    message = re.sub(r"(Unexpected|Unable to load) config.*", by_name, message)
    # Where several types are allowed, the value is named for each of them, and last as it was given.
    found = re.search(r'Parser key "(.+?)":\s+(.+)(?:Got|Given) value: (.*)', message, re.DOTALL)
    if found is None:
        return re.sub(r'Parser key "(.+?)"', rf"{dashes}\1", message)
    types = found[2].partition("Given value type")[0]
    wanted = [WANTED[kind] for kind in dict.fromkeys(re.findall(r"<class '(\w+)'>", types)) if kind in WANTED]
    if choices := re.search(r"Literal\[(.+?)\]", types):
        wanted.append("one of " + choices[1].replace("'", ""))
    if not wanted:
        return message
    return f"{message[: found.start()]}{dashes}{found[1]} must be {' or '.join(wanted)}, got {found[3]}"


def add_optional(parser: ArgumentParser, name: str, help: str, kind: Any = str, **keywords: Any) -> None:
    """Add an option of the type `kind` that may be null; null is its default."""
    parser.add_argument(name, type=kind | None, default=None, help=help, **keywords)


def add_words(parser: ArgumentParser, name: str, help: str, **keywords: Any) -> None:
    """Add an option that takes one or more words, and may be repeated."""
    parser.add_argument(name, type=str, nargs="+", action="extend", default=[], help=help, **keywords)


def add_data_dir(parser: ArgumentParser, *, note: str = "") -> None:
    add_optional(parser, "--data_dir", f"where the data sets are{note}", metavar="DIR")


def add_device(parser: ArgumentParser) -> None:
    add_optional(parser, "--device", "cpu or cuda; null is cuda where there is one")


def add_budget(parser: ArgumentParser) -> None:
    add_optional(parser, "--budget", "stop, saved, after so long: 90s, 25m, 2h")
