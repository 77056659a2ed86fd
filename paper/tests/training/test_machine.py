"""Machine and versions."""

import platform

import pytest
import torch
from tiny import unusual_defaults

import nonloc
from nonloc_paper.training.machine import (
    device_or_best,
    elsewhere,
    machine,
    place,
    plain_defaults,
    versions,
    with_part,
)

HERE = {"machine": {"device": "cpu"}, "versions": {"torch": "2.13"}}
THERE = {"machine": {"device": "a GPU"}, "versions": {"torch": "2.13"}}
UPDATED = {"machine": {"device": "cpu"}, "versions": {"torch": "2.14"}}


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


def test_versions_are_those_in_use_and_on_a_gpu_those_of_its_libraries():
    # "commit" is there in a checkout alone.
    assert versions() | {"commit": ""} == {
        "commit": "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nonloc": nonloc.__version__,
    }
    on_gpu = versions(torch.device("cuda"))
    assert on_gpu["cuda"] == str(torch.version.cuda)
    assert on_gpu.keys() - versions().keys() == {"cuda", "cudnn", "triton"}


def test_a_cpu_is_described_by_its_processor_and_the_cores_in_reach():
    assert place(torch.device("cpu")) == {"machine": machine(torch.device("cpu")), "versions": versions()}
    description = machine(torch.device("cpu"))
    assert description["device"] == "cpu"
    assert description["cores"] >= 1
    assert description["cpu"]


def test_other_machines_and_versions_are_other_parts_and_a_run_that_comes_back_continues_its_part():
    parts = with_part(with_part(with_part([], THERE, 1.0), UPDATED, 2.0), HERE, 4.0)
    assert parts == [THERE | {"seconds": 1.0}, UPDATED | {"seconds": 2.0}, HERE | {"seconds": 4.0}]
    assert elsewhere(parts, HERE) == parts[:2]
    back = with_part(parts, THERE, 9.0)
    assert back == [*parts[1:], THERE | {"seconds": 10.0}]
    assert parts[0] == THERE | {"seconds": 1.0}, "the argument is not changed"
