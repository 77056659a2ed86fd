"""Types that users see: both packages say that they have some, and lazy names have those of their modules."""

import ast
import importlib
from pathlib import Path

import pytest

import nonloc
import nonloc_paper

FOLDERS = [Path(package.__file__).parent for package in (nonloc, nonloc_paper)]
LAZY = [
    path for folder in FOLDERS for path in folder.rglob("__init__.py") if "lazy(__name__" in path.read_text()
]
SNIPPET = """\
import nonloc
stage = nonloc.DiffusiveStage(8, num_blocks=2)
reveal_type(stage.num_blocks)
reveal_type(nonloc.certify)
nonloc.DiffusiveStage(8, num_blocks="two")
nonloc.DiffusiveStag
"""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_package_says_that_it_has_types(folder):
    assert (folder / "py.typed").is_file()


def imports_for_type_checkers(path: Path) -> dict[str, str]:
    """Return {name: module} of the imports under `if TYPE_CHECKING:`."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: node.module for node in imports for alias in node.names}


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_type_checkers_see_the_lazy_names(path):
    root = next(folder.parent for folder in FOLDERS if path.is_relative_to(folder))
    package = importlib.import_module(".".join(path.parent.relative_to(root).parts))
    assert imports_for_type_checkers(path) == package._WHERE


def test_mypy_sees_types_and_mistakes(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    (tmp_path / "user.py").write_text(SNIPPET)
    # Reading torch takes mypy half a minute, and says nothing about our names.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(FOLDERS[0].parent))
    found, problems, _ = api.run(
        ["user.py", "--config-file=mypy.ini", "--cache-dir=cache", "--no-error-summary"]
    )
    assert problems == ""
    lines = [line for line in found.splitlines() if line.startswith("user.py")]
    assert len(lines) == 4
    assert 'Revealed type is "int"' in lines[0]
    assert "nonloc.processes.stability.certificate.Certificate" in lines[1]
    assert 'has incompatible type "str"; expected "int"' in lines[2]
    assert 'no attribute "DiffusiveStag"' in lines[3]
