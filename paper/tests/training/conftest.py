"""What the tests of training share: the folder of a run, and settings of torch."""

import pytest
import torch

from nonloc_paper.runs import Run


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


@pytest.fixture
def poisoned_memory():
    """What is allocated is NaN, or the largest whole number, until it is written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def deterministic():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before
