"""Imports only go down: a file imports strictly lower floors or its own folder (docs/architecture.md)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "nonloc"
FLOORS = {
    "cli": 7,
    "__main__": 8,
    "report": 6,
    "paper": 5,
    "suite": 5,
    "bench": 5,
    "training": 4,
    "networks": 3,
    "nn": 2,
    "processes": 2,
    "spectrum": 2,
    "ops": 1,
    "data": 1,
    "outcomes": 0,
    "runs": 0,
    "numeric": 0,
    "modes": 0,
    "_lazy": 0,
}
# Floor 0 is the ground: its rooms may use one another (a Run raises our exceptions).
GROUND = 0
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms of nonloc that a file imports anywhere in it, functions included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import; write the full name"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        # The root imports every floor on demand: whoever takes more than its version from it may go up unseen.
        assert "nonloc" not in modules, f"{path.name} imports the package itself; name the module"
        names.update(m.split(".")[1] for m in modules if m.startswith("nonloc."))
    rooms = {name for name in names if (ROOT / name).exists() or (ROOT / f"{name}.py").exists()}
    assert names - rooms <= {"__version__"}, (
        f"{path.name} takes {names - rooms} from the root; name the module"
    )
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_go_down(path):
    here = room(path)
    assert here in FLOORS, f"{here} has no floor; give it one here and in docs/architecture.md"
    for other in imported(path) - {here}:
        is_lower = FLOORS[other] < FLOORS[here]
        assert is_lower or FLOORS[here] == FLOORS[other] == GROUND, f"{here} must not import {other}"


def test_every_room_with_a_floor_exists():
    rooms = {room(p) for p in FILES}
    assert set(FLOORS) <= rooms


def drawn():
    """The tree of rooms in docs/architecture.md: {room: (its floor, the files that are named in it)}."""
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    tree = text[text.index("nonloc/\n") : text.index("**Floors.**")]
    found, here = {}, []
    for line in tree.splitlines():
        files = set(re.findall(r"\w+\.py\b", line))
        entry = re.match(r"  (?P<names>\w\S*(?: \w+\.py)*)(?: +(?P<floor>\d)  )?", line)
        if entry and not line.startswith("   "):
            here = [name.removesuffix(".py").rstrip("/") for name in entry["names"].split()]
            floor = int(entry["floor"]) if entry["floor"] else None
            found.update({name: (floor, set()) for name in here})
        for name in here:
            found[name][1].update(files)
    return found


def test_the_architecture_draws_every_room_on_its_floor():
    tree = drawn()
    for name, floor in FLOORS.items():
        if not name.startswith("_"):
            assert name in tree, f"{name} is not in the tree of docs/architecture.md"
            assert tree[name][0] in (floor, None)
    rooms = {name for name in tree if name != "__init__"}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize("folder", ["ops", "nn", "training"])
def test_the_architecture_names_every_file_of_a_room(folder):
    names = {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}
    assert names <= drawn()[folder][1]
