"""The kernels of a stage beside their floors."""

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.stage_kernels import StageKernel, measure, table

KERNEL = StageKernel(
    "next", launches=3, microseconds=60.0, low=59.0, high=61.0, exponentials=30.0, products=20.0, bytes=10.0
)


def test_the_ratio_is_to_the_largest_floor():
    assert KERNEL.ratio == 2.0
    assert KERNEL.to_dict()["ratio"] == 2.0


def test_the_table_adds_up_all_launches():
    shown = table([KERNEL])
    assert "| next   |        3 | 60.0 (59.0–61.0) |" in shown
    assert shown.endswith("All launches of the stage: 180 µs.")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["kernels"]) == 2
    assert "CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
def test_cuda_every_launch_of_a_stage_is_timed():
    found = measure(batch=4, positions=256, blocks=3, repeats=3)
    launches = {kernel.name: kernel.launches for kernel in found}
    assert launches == {
        "begin": 1, "first_mean": 1, "next": 2, "turn": 1, "adjoint": 2, "key": 1, "finish": 1, "query": 1,
    }  # fmt: skip
    assert all(0 < kernel.low <= kernel.microseconds <= kernel.high for kernel in found)
