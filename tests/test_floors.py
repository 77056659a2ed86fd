"""Imports only go down: a file imports strictly lower floors or its own folder (docs/architecture.md)."""

import ast
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
        names.update(m.split(".")[1] for m in modules if m.startswith("nonloc.") and len(m.split(".")) > 1)
    return {name for name in names if (ROOT / name).exists() or (ROOT / f"{name}.py").exists()}


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


def test_the_architecture_names_every_room():
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    missing = [name for name in FLOORS if name.strip("_") not in text]
    assert not missing


@pytest.mark.parametrize("folder", ["ops", "nn"])
def test_the_architecture_names_every_file_of_the_core(folder):
    text = (ROOT.parent / "docs" / "architecture.md").read_text()
    names = [path.name for path in sorted((ROOT / folder).glob("*.py")) if path.name != "__init__.py"]
    assert [name for name in names if name not in text] == []
