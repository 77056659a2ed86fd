"""Imports only go down: a file imports strictly lower floors or its own folder (docs/architecture.md)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# By distribution: its folder, and the names of its files and folders, floor by floor from the top.
DISTRIBUTIONS = {
    "nonloc": (
        ROOT / "nonloc",
        "__main__ > cli > estimators plots interop > nn processes spectrum > ops > "
        "outcomes _evaluation _checks _lazy _torch_compat",
    ),
    "nonloc_paper": (
        ROOT / "paper" / "nonloc_paper",
        "commands > explorer > report > map > suites theory > training > fast > networks data > "
        "runs files paths schema file_schemas",
    ),
    "benchmarks": (ROOT / "benchmarks", ""),
}
# A distribution imports itself and the distributions below it.
BELOW = {"nonloc": (), "nonloc_paper": ("nonloc",), "benchmarks": ("nonloc", "nonloc_paper")}
LOWEST = 0  # what is there may use one another
FILES = [(name, path) for name, (folder, _) in DISTRIBUTIONS.items() for path in sorted(folder.rglob("*.py"))]


def floors_of(distribution: str) -> dict[str, int]:
    """The floor of each part, from 0, the lowest."""
    upwards = reversed(DISTRIBUTIONS[distribution][1].split(">"))
    return {part: floor for floor, parts in enumerate(upwards) for part in parts.split()}


def imported(path: Path) -> set[str]:
    """The modules of our distributions that a file imports anywhere in it, functions included."""
    actual = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; write the full name"
            actual.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            actual.update(alias.name for alias in node.names)
    return {name for name in actual if name.split(".")[0] in DISTRIBUTIONS}


@pytest.mark.parametrize(
    ("distribution", "path"), FILES, ids=lambda value: str(value).removeprefix(str(ROOT))
)
def test_imports_only_go_down(distribution, path):
    folder, floors = DISTRIBUTIONS[distribution][0], floors_of(distribution)
    part = path.relative_to(folder).parts[0].removesuffix(".py")
    for name in imported(path):
        other_distribution, *rest = name.split(".")
        if other_distribution != distribution:
            assert other_distribution in BELOW[distribution], (
                f"{distribution} must not import {other_distribution}"
            )
        elif floors and part != "__init__" and rest and rest[0] not in ("__version__", part):
            assert part in floors, f"{part} has no floor; give it one here and in docs/architecture.md"
            assert rest[0] in floors, f"{path.name} takes {rest[0]} from {distribution}; name the module"
            is_lowest = floors[part] == floors[rest[0]] == LOWEST
            assert floors[rest[0]] < floors[part] or is_lowest, f"{part} must not import {rest[0]}"


@pytest.mark.parametrize("distribution", ["nonloc", "nonloc_paper"])
def test_every_part_with_a_floor_exists(distribution):
    folder, floors = DISTRIBUTIONS[distribution][0], floors_of(distribution)
    parts = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
    assert set(floors) == parts - {"__init__"}


def private_torch(path: Path) -> set[str]:
    """The private names of torch that a file imports, or writes after the name of a module that it imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    modules = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    names = set(modules.values())
    for node in nodes:
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            names.add(".".join([modules.get(first, first), *rest]))
    return {name for name in names if re.match(r"torch(\.\w+)*\._(?!_)", name)}


@pytest.mark.parametrize("path", [path for _, path in FILES], ids=lambda path: str(path.relative_to(ROOT)))
def test_private_torch_is_in_one_file(path):
    is_the_file = path == ROOT / "nonloc" / "_torch_compat.py"
    assert bool(private_torch(path)) == is_the_file, "wrap it in nonloc/_torch_compat.py"
