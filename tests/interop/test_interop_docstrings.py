"""Every public function of `nonloc.interop` has an example in its docstring, which prints what it says."""

import importlib
import inspect

import pytest

from docs.reference import INTEROP
from test_docstrings import run_examples

pytestmark = pytest.mark.interop


def public_functions():
    for library in INTEROP:
        module = importlib.import_module(f"nonloc.interop.{library}")
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                yield pytest.param(value, id=f"{library}.{name}")


@pytest.mark.parametrize("function", list(public_functions()))
@pytest.mark.usefixtures("torchvision")  # which timm and transformers import where it is installed
def test_the_example_prints_what_it_says(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count, report = run_examples(function, function.__name__)
    assert count, f"{function.__module__}.{function.__name__} needs an example in its docstring"
    assert not report, report
