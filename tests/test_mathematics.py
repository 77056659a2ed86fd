"""docs/mathematics.md: every section names code and a test, and what it names is there."""

import importlib
import re
from pathlib import Path

import pytest

from nonloc.cli.commands import find_commands

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "mathematics.md").read_text()
NAMED = sorted(set(re.findall(r"`([^`]+)`", TEXT)))
FILES = [name for name in NAMED if ".py" in name or name.endswith(".json")]
COMMAND_LINES = [name for name in NAMED if name.startswith("nonloc ")]
NAMES = [name for name in NAMED if name not in FILES and name not in COMMAND_LINES]
MODULES = ("nonloc", "nonloc.ops", "nonloc.processes", "nonloc.spectrum", "nonloc_paper.theory")
SECTIONS = TEXT.split("\n## ")[1:]


@pytest.mark.parametrize("name", FILES)
def test_files_and_tests_are_there(name):
    path, _, test = name.partition("::")
    whole = ROOT / path if (ROOT / path).exists() else ROOT / "nonloc" / path
    assert whole.is_file()
    assert not test or re.search(rf"def {test}\(", whole.read_text())


@pytest.mark.parametrize("name", NAMES)
def test_names_are_public(name):
    first, *rest = name.split(".")
    modules = [importlib.import_module(name) for name in MODULES]
    value = next(getattr(module, first) for module in modules if hasattr(module, first))
    for part in rest:
        value = getattr(value, part)
    assert value.__doc__


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_exist(line):
    assert line.split()[1] in find_commands()


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.splitlines()[0])
def test_every_section_names_code_and_a_test(section):
    named = re.findall(r"`([^`]+)`", section)
    assert any("tests/" in name for name in named)
    assert any("tests/" not in name for name in named)
