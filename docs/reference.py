"""The reference: a page for each package, made from its public names, and our docstrings in Sphinx's language."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import nonloc.interop

PACKAGES = (
    "nonloc",
    "nonloc.nn",
    "nonloc.ops",
    "nonloc.processes",
    "nonloc.plots",
    "nonloc.estimators",
    "nonloc_paper",
)
# These have no names of their own; each is for another library, but for what they share.
INTEROP = [one.name for one in pkgutil.iter_modules(nonloc.interop.__path__) if one.name != "blocks"]
ENTRY = re.compile(r"(\S(?:.*?\S)?) {2,}(\S.*)")
NAMES: dict[str, str] = {}


def write_pages(folder: Path) -> None:
    """Write the pages; each name is described once, at the first package that has it."""
    folder.mkdir(exist_ok=True)
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines = _title(package)
        also = []
        for name in module.__all__:
            if name.startswith("__"):
                continue
            if name in NAMES:
                also.append(f":py:obj:`~{NAMES[name]}`")
                continue
            NAMES[name] = f"{package}.{name}"
            lines += _described(_kind(getattr(module, name)), f"{package}.{name}")
        if also:
            lines += [f"Also here: {', '.join(also)}."]
        _write(folder / f"{package}.rst", lines)
    lines = _title("nonloc.interop")
    for library in INTEROP:
        lines += [library, "-" * len(library), "", f".. automodule:: nonloc.interop.{library}", ""]
        for name, value in vars(importlib.import_module(f"nonloc.interop.{library}")).items():
            if inspect.isfunction(value) and value.__module__.endswith(library) and name[0] != "_":
                lines += _described("function", f"nonloc.interop.{library}.{name}")
    _write(folder / "nonloc.interop.rst", lines)
    lines = ["Examples", "========", ""]
    for path in sorted((folder.parents[1] / "examples").glob("*.py")):
        lines += [path.name, "-" * len(path.name), "", f".. literalinclude:: /examples/{path.name}", ""]
    _write(folder / "examples.rst", lines)


def format_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Rewrite a docstring in place: names with explanations become definitions, indented lines stay as they are."""
    if what == "data":  # a constant; its docstring would be that of its type
        lines[:] = [f"``{list(obj) if isinstance(obj, dict) else obj!r}``"]
        return
    result: list[str] = []
    for block in "\n".join(lines).strip("\n").split("\n\n"):
        result += [*_format_block(block.split("\n")), ""]
    lines[:] = result


def format_signature(app, what, name, obj, options, signature, returns):
    """Name a default that is made anew for each object as Sphinx can read it."""
    return (signature or "").replace("<factory>", "...") or None, returns


def _format_block(lines: list[str]) -> list[str]:
    if lines[0].startswith(">>>"):
        return lines
    if all(line.startswith("    ") for line in lines):
        return ["::", "", *lines]
    result: list[str] = []
    is_entry = False
    for line in lines:
        if entry := ENTRY.fullmatch(line):
            result += ["" if not is_entry and result else None, f"``{entry[1]}``", f"    {_inline(entry[2])}"]
            is_entry = True
        elif line.startswith(" ") and is_entry:
            result.append(f"    {_inline(line.strip())}")
        else:
            result += ["" if is_entry else None, _inline(line)]
            is_entry = False
    return [line for line in result if line is not None]


def _inline(text: str) -> str:
    """Code between backticks becomes a link where it is a public name; other signs mean nothing."""
    parts = text.split("`")
    for n, part in enumerate(parts):
        if n % 2 and (target := NAMES.get(re.sub(r"nonloc\.(\w+\.)*", "", part))):
            parts[n] = f":py:obj:`~{target}`"
        else:
            parts[n] = f"``{part}``" if n % 2 else _escape(part)
    return "".join(parts)


def _escape(text: str) -> str:
    """All signs of Sphinx's language but the stars around an *emphasised* word."""
    return re.sub(r"\\\*(\w+)\\\*", r"*\1*", re.sub(r"([\\*|_])", r"\\\1", text))


def _kind(value: object) -> str:
    return "class" if inspect.isclass(value) else "function" if inspect.isfunction(value) else "data"


def _title(package: str) -> list[str]:
    return [package, "=" * len(package), "", f".. automodule:: {package}", ""]


def _described(kind: str, name: str) -> list[str]:
    option = {"class": ["   :members:"], "data": ["   :no-value:"]}.get(kind, [])
    return [f".. auto{kind}:: {name}", *option, ""]


def _write(path: Path, lines: list[str]) -> None:
    """Write a page that has changed; Sphinx reads it again then."""
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
