"""The examples in the docstrings of `nonloc.interop`."""

import importlib

import pytest

from test_docstrings import run_examples

pytestmark = pytest.mark.interop
FUNCTIONS = (
    "huggingface.from_pretrained",
    "huggingface.insert",
    "mmcv.from_nonlocal",
    "mmcv.register",
    "nonlocal_pytorch.from_nonlocal",
    "timm.from_nonlocal_attn",
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.usefixtures("torchvision")  # which timm and transformers import where it is installed
def test_the_example_prints_what_it_says(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, name = function.split(".")
    count, report = run_examples(getattr(importlib.import_module(f"nonloc.interop.{module}"), name), function)
    assert count, f"nonloc.interop.{function} needs an example in its docstring"
    assert not report, report
