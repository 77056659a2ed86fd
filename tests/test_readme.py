"""README.md: its commands exist, its code runs, and its numbers are those of the kept results."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_nonloc_command_is_one_that_the_parser_takes(document):
    from nonloc.cli.commands import find_commands, load_command
    from nonloc.cli.parser import make_command_parser, with_underscores

    text = (ROOT / document).read_text()
    inline = re.findall(r"`(nonloc [^`<…|]+)`", " ".join(text.split()))
    shell = [
        part.partition("  #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
        for part in line.split("&&")
        if part.strip().startswith("nonloc ")
    ]
    for line in inline + shell:
        words = with_underscores(shlex.split(line)[1:])
        if words == ["--help"]:
            continue
        assert words[0] in find_commands(), line
        # A command alone is a name; with more it is meant to be run.
        if len(words) > 1:
            make_command_parser(words[0], load_command(find_commands()[words[0]])).parse_args(words[1:])


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


def anchors(path):
    """What GitHub makes of the headings of a Markdown file."""
    plain = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_links_lead_somewhere(document):
    here = ROOT / document
    targets = re.findall(r"\]\((?!http)([^)\s]+)\)", here.read_text())
    for target in targets:
        name, _, anchor = target.partition("#")
        path = here.parent / name if name else here
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target
