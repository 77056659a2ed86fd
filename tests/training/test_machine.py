"""Machine and versions."""

import platform

import torch

import nonloc
from nonloc.training.machine import machine, versions


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
