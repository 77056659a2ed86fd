"""Programs of a model with a stage: exported, compiled ahead of time by a C++ compiler, traced, quantised."""

import pytest
import torch
from torch import nn

import nonloc

pytestmark = pytest.mark.interop
C = 8


@pytest.fixture
def model():
    torch.manual_seed(0)
    stage = nonloc.DiffusiveStage(C, 2, init_std=0.3)
    return nn.Sequential(nn.Conv2d(3, C, 3, padding=1), stage, nn.Conv2d(C, 4, 1)).eval()


@pytest.fixture
def images():
    """The example, and a batch of another size."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for size in ((2, 3, 8, 6), (3, 3, 10, 12))]


def exported(model, example):
    dimensions = {0: torch.export.Dim("batch", min=1, max=64)}
    dimensions |= {2 + n: torch.export.Dim(name, min=2, max=64) for n, name in enumerate(("height", "width"))}
    return torch.export.export(model, (example,), dynamic_shapes=(dimensions,))


def check(program, model, images, atol):
    with torch.no_grad():
        for x in images:
            expected = model(x)
            torch.testing.assert_close(program(x), expected, rtol=0, atol=atol * float(expected.abs().max()))


def test_exported_and_compiled_ahead_of_time(model, images, tmp_path):
    with torch.no_grad():
        program = exported(model, images[0])
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    check(program.module(), model, images, 1e-6)
    check(torch._inductor.aoti_load_package(path), model, images, 2e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dynamic_quantisation(model, images, monkeypatch):
    monkeypatch.setattr(torch.backends.quantized, "engine", "qnnpack")  # which runs on x86 and on Arm
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    assert type(quantised[1].maps[0].w_z) is nn.quantized.dynamic.Linear
    # Seven bits of the weights and eight of the inputs.
    check(quantised, model, images, 0.02)
    with torch.no_grad():
        assert not torch.equal(quantised(images[0]), model(images[0]))
