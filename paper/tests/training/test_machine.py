"""Machine and versions."""

import platform

import pytest
import torch
from tiny import unusual_defaults

import nonloc
from nonloc_paper.training.machine import device_or_best, machine, plain_defaults, versions


@pytest.mark.parametrize("device", ["meta", "mps", torch.device("xpu")])
def test_a_device_that_nothing_here_works_on_is_refused(device):
    with pytest.raises(ValueError, match="is none that nonloc works on; use cpu or cuda"):
        device_or_best(device)


def test_a_cuda_device_beyond_the_last_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_or_best("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="the last CUDA device here is cuda:1"):
        device_or_best("cuda:2")


def test_plain_defaults_hold_inside_and_the_caller_s_outside():
    with unusual_defaults():
        with plain_defaults():
            inside = torch.zeros(1)
        outside = torch.zeros(1)
    assert (inside.dtype, inside.device.type) == (torch.float32, "cpu")
    assert (outside.dtype, outside.device.type) == (torch.float64, "meta")


def test_versions_are_those_in_use():
    assert versions() == {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nonloc": nonloc.__version__,
    }


def test_a_gpu_s_work_depends_on_more():
    found = versions(torch.device("cuda"))
    assert found["cuda"] == str(torch.version.cuda)
    assert found.keys() - versions().keys() == {"cuda", "cudnn", "triton"}


def test_a_cpu_is_described_by_its_processor_and_the_cores_in_reach():
    found = machine(torch.device("cpu"))
    assert found["device"] == "cpu"
    assert found["cores"] >= 1
    assert found["cpu"]
