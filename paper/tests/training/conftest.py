"""The folder of a run that the tests of training share."""

import pytest

from nonloc_paper.runs import Run


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")
