"""The bench of convolutions: which shapes, and a table that tells what is wrong or not taken."""

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.convolutions import PASSES, SHAPES, measure, table
from nonloc_paper.networks.build import build


def test_the_shapes_are_those_of_the_network():
    found = {}
    sizes = {}

    def look(module, inputs, output):
        sizes[module] = output.shape[-1]

    network = build("preresnet20/baseline", 10)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(look)
    network(torch.zeros(1, 3, 32, 32))
    for module, size in sizes.items():
        shape = (module.kernel_size[0], module.in_channels, module.out_channels, size)
        found[shape] = found.get(shape, 0) + 1
    assert found == SHAPES


def rows(**changes):
    usual = {"calls": 2, "own": 3.0, "torch": 8.0, "taken": True, "error": 1e-3, "passed": True}
    return [usual | {"shape": [3, 16, 16, 32], "name": name} | changes for name in PASSES]


def test_a_step_takes_the_passes_that_are_taken():
    assert table(rows()).splitlines()[-1].split("|")[2].strip() == "6, 16"
    not_taken = table(rows(taken=False)).splitlines()
    assert not_taken[-1].split("|")[2].strip() == "16, 16"
    assert "torch’s taken" in not_taken[2]


def test_what_is_wrong_has_no_time():
    assert "wrong by 1e-01" in table(rows(passed=False, own=None, error=0.1))


def test_without_a_gpu_there_is_nothing_to_time(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["convolutions"]) == 2
    assert "CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
def test_cuda_every_pass_is_right_and_timed(monkeypatch):
    monkeypatch.setattr("benchmarks.convolutions.SHAPES", {(3, 16, 16, 32): 2, (1, 64, 128, 16): 1})
    found = list(measure(batch=16, repeats=3))
    assert [one.name for one in found] == [*PASSES, *PASSES]
    assert all(one.passed and one.own > 0 and one.torch > 0 for one in found)
