"""Neither package reads or writes pickles: a run folder or a data set must not be able to run code."""

import ast
from pathlib import Path

import nonloc
import nonloc_paper

PICKLING_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "joblib"}
PICKLING_CALLS = {"torch.load", "torch.save", "np.load", "numpy.load"}


def pickling(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PICKLING_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLING_MODULES:
            yield node.module
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in PICKLING_CALLS:
            yield ast.unparse(node)


def test_no_pickle():
    for package in (nonloc, nonloc_paper):
        paths = sorted(Path(package.__file__).parent.rglob("*.py"))
        assert len(paths) > 20
        assert [path for path in paths if list(pickling(ast.parse(path.read_text())))] == []


def test_the_search_finds_pickles():
    code = "import pickle\nfrom dill import loads\nx = torch.load('file')"
    assert sorted(pickling(ast.parse(code))) == ["dill", "pickle", "torch.load"]
