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
    """torchvision, also where its compiled part does not load: it is built for CUDA, and torch here is not.

    Only its models and its feature extraction are used. Importing those declares two compiled operators.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    yield torchvision
    del library


@pytest.fixture(scope="session")
def timm(torchvision):
    import timm

    return timm


def randomize(module, seed=0):
    """Draw all parameters and statistics, so that none is 0 or 1 by chance or by initialisation."""
    generator = torch.Generator().manual_seed(seed)
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
