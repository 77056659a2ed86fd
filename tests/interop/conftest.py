"""What the tests with other libraries share. They import them in the tests: without them they fail, and never skip."""

import pytest
import torch


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped:
        report.outcome, report.longrepr = "failed", f"skipped, which shows nothing: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def torchvision():
    from torchvision_models import torchvision

    return torchvision


@pytest.fixture(scope="session")
def timm(torchvision):
    import timm

    return timm


def randomize(module):
    """Draw all parameters and statistics, so that none is 0 or 1 by chance or by initialisation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, one in [*module.named_parameters(), *module.named_buffers()]:
            if one.dtype.is_floating_point:
                one.copy_(torch.randn(one.shape, generator=generator) * 0.5)
                if name.endswith("running_var"):
                    one.abs_().add_(0.5)
    return module


@pytest.fixture
def randomized():
    return randomize
