"""README.md: its commands exist, its code runs, and its numbers are those of the kept results."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"^make ([a-z-]+)", TEXT, re.MULTILINE)))


def test_the_two_commands_are_there():
    assert COMMANDS == ["demo", "test"]


@pytest.mark.parametrize("command", COMMANDS)
def test_make_knows_the_command(command):
    done = subprocess.run(
        ["make", "--dry-run", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"demo": "nonloc reproduce demo", "test": "pytest"}[command] in done.stdout


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs(number):
    code = BLOCKS[number]
    environment = dict(os.environ)
    if "torchvision" in code and importlib.util.find_spec("torchvision") is None:
        environment["PYTHONPATH"] = str(ROOT / "tests" / "stand_ins")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for promised in re.findall(r"print\(\w+\)  # (Inserted\(.*\))", code):
        assert promised in done.stdout


def test_every_nonloc_command_it_names_exists():
    from nonloc.cli.commands import COMMANDS as known

    named = set(re.findall(r"`nonloc ([a-z]+)", TEXT))
    assert named
    assert named <= set(known)


@pytest.mark.parametrize(
    "document", ["README.md", "docs/performance.md", "docs/mathematics.md", "docs/reproduction.md"]
)
def test_the_tables_are_those_of_the_kept_results(document):
    path = ROOT / "docs" / "update_readme.py"
    spec = importlib.util.spec_from_file_location("update_readme", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / document).read_text()
    assert module.rendered(text, document) == text, "run: python docs/update_readme.py"


def test_the_links_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", TEXT)
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert targets
    assert missing == []
