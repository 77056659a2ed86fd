"""Modules with interpreted Triton kernels, also where there is a GPU."""

import importlib
import sys
from contextlib import contextmanager

import pytest

from nonloc._torch_compat import has_triton


@contextmanager
def interpreted(name):
    """The module `name`, imported once more with Triton's interpreter, and all that its name is the beginning of.

    Triton decides when it is imported whether it interprets, and torch may have imported it long before. So it is
    imported once more, its compiled part apart, and everything is put back afterwards.
    """
    if not has_triton():
        pytest.skip("needs Triton, and a torch that comes with one that can run the kernels")
    family = name.rsplit("_", 1)[0] + "_"

    def is_concerned(other):
        return other.startswith(("triton", family)) and not other.startswith("triton._C")

    before = {other: sys.modules.pop(other) for other in list(sys.modules) if is_concerned(other)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.import_module(name)
    for other in list(sys.modules):
        if is_concerned(other):
            del sys.modules[other]
    sys.modules.update(before)
