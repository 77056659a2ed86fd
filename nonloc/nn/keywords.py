"""The keywords of the public modules: signature, docstring and refusal of a wrong one, all from `NonlocalModule`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import TypeVar

from nonloc.nn.nonlocal_module import NonlocalModule

Kind = TypeVar("Kind", bound=type[NonlocalModule])


def with_keywords(kind: Kind) -> Kind:
    """A class decorator: `**keywords` in the signature become the keywords of `NonlocalModule`, and the docstring goes
    on with what that class says of each. A keyword without a meaning for the form is left out."""
    own = inspect.signature(kind.__init__, eval_str=True)
    named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    shared = [one for one in _shared() if one.name != "subsample" or not kind.uses_differences]
    signature = own.replace(parameters=[*named, *shared])
    # On the function: one on the class would be inherited by classes with another __init__.
    kind.__init__.__signature__ = signature  # type: ignore[attr-defined]
    if kind.__doc__ and NonlocalModule.__doc__:
        told = _entries(inspect.cleandoc(NonlocalModule.__doc__))
        wanted = {one.name for one in shared}
        entries = [text for names, text in told.items() if wanted.intersection(names)]
        kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__), *entries])
    return kind


def keywords_of(kind: type[NonlocalModule]) -> list[str]:
    """All that a public module can be told, by name."""
    return list(inspect.signature(kind).parameters)


def unknown_keyword(kind: type[NonlocalModule], given: Iterable[str]) -> str | None:
    """What to say of the first keyword that the module does not have; None where it has them all."""
    known = keywords_of(kind)
    # A keyword of the other form has a refusal of its own, which says why.
    accepted = {*known, *(one.name for one in _shared())}
    for name in given:
        if name not in accepted:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"the nearest is {near[0]}; " if near else ""
            return f"{kind.__name__} has no keyword {name!r}; {hint}it takes {', '.join(known)}"
    return None


def refuse_unknown(kind: type[NonlocalModule], given: Iterable[str]) -> None:
    """TypeError for a keyword that the module does not have, naming the module, the nearest keyword and all others."""
    message = unknown_keyword(kind, given)
    if message is not None:
        raise TypeError(message)


def _shared() -> list[inspect.Parameter]:
    parameters = inspect.signature(NonlocalModule.__init__, eval_str=True).parameters.values()
    return [one for one in parameters if one.kind is one.KEYWORD_ONLY]


def _entries(text: str) -> dict[tuple[str, ...], str]:
    """The entries "name, name  what they are" of a docstring, with the indented lines that go on."""
    found: dict[tuple[str, ...], str] = {}
    names: tuple[str, ...] = ()
    for line in text.splitlines():
        if line[:1].strip():
            names = tuple(line.partition("  ")[0].split(", "))
            found[names] = line
        elif line and names:
            found[names] += f"\n{line}"
    return found
