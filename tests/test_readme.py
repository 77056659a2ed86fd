"""The documents: code runs, links lead somewhere, and commands are those that the parsers take."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

import nonloc
from nonloc.cli.commands import find_commands, load_command
from nonloc.cli.parser import make_command_parser, with_underscores

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FOLDERS = (".", "docs", "paper", "benchmarks")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*.md")
)
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "paper" / "pages").glob("*.md"))


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_code_of_the_readme_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec(compile(code, "README.md", "exec"), {})
    for name in re.findall(r'savefig\("([^"]+)"', code):
        assert (tmp_path / name).stat().st_size > 0


def anchors(path):
    """Return the anchors that GitHub gives to the headings of a Markdown file."""
    plain = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS + PAGES)
def test_links_and_anchors_exist(document):
    here = ROOT / document
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", here.read_text()):
        name, _, anchor = target.partition("#")
        path = here.parent / name if name else here
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def code(text):
    """Return the lines of a document's shell blocks, and the code in its sentences."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [part.partition("  #")[0] for block in blocks for part in re.split(r"\n|&&", block)]
    spans = re.findall(r"`([^`]+)`", " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()))
    return [line.strip() for line in (*lines, *spans)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_are_those_that_the_parsers_take(document):
    known = find_commands()
    for line in code((ROOT / document).read_text()):
        if not re.match(r"nonloc [-a-z]", line) or line.startswith("nonloc --") or "…" in line:
            continue
        words = with_underscores(shlex.split(line)[1:])
        assert words[0] in known, line
        if len(words) > 1:  # a command alone is a name; with arguments it is meant to be run
            make_command_parser(words[0], load_command(known[words[0]])).parse_args(words[1:])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_benchmarks_and_make_targets_exist(document):
    benchmarks = (ROOT / "benchmarks" / "__main__.py").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for line in code((ROOT / document).read_text()):
        if name := re.match(r"python -m benchmarks ([a-z_]+)", line):
            assert f'"{name[1]}": (' in benchmarks, line
        if target := re.match(r"make ([a-z-]+)", line):
            assert re.search(rf"^{target[1]}:", makefile, re.MULTILINE), line


def test_the_architecture_names_every_file():
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = ("nonloc", "paper/nonloc_paper", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {path.name for path in files if f" {path.name}" not in text} <= {"__init__.py", "__main__.py"}


def test_tables_of_the_performance_page_are_those_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "update_tables.py"))
    text = script["DOCUMENT"].read_text()
    assert script["filled"](text) == text, "run: python docs/update_tables.py"


def test_the_two_commands():
    assert re.findall(r"^make ([a-z-]+)", README, re.MULTILINE) == ["demo", "test"]
    done = subprocess.run(
        ["make", "--dry-run", "demo", "test"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nonloc reproduce demo" in done.stdout
    assert "pytest" in done.stdout


def test_citation_has_the_version_of_the_package():
    assert f"\nversion: {nonloc.__version__}\n" in (ROOT / "CITATION.cff").read_text()
