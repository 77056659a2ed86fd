"""Every public function and class has an example in its docstring, which prints what it says."""

import doctest
import importlib

import pytest
import torch

from docs.reference import PACKAGES


def public_names():
    """Return {name: package}, each name once; constants are in capitals and have no docstring."""
    found = {}
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            if not name.isupper() and not name.startswith("_"):
                found.setdefault(name, package)
    return found


def run_examples(value, name):
    """Return how many examples there are, and a report of those that print something else."""
    (test,) = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(
        value, name, globs={"torch": torch}
    )
    report = []
    doctest.DocTestRunner().run(test, out=report.append)
    return len(test.examples), "".join(report)


@pytest.mark.parametrize(("name", "package"), public_names().items())
def test_the_example_prints_what_it_says(name, package, tmp_path, monkeypatch):
    if name == "prepare_sharded" and torch.__version__ < (2, 7):
        pytest.skip("it may wait without end for a group that ends right after its last sum")
    monkeypatch.chdir(tmp_path)
    count, report = run_examples(getattr(importlib.import_module(package), name), name)
    assert count, f"{package}.{name} needs an example in its docstring"
    assert not report, report
