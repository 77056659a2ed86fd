"""Two processes with half the batch each have the gradients of one process with the whole."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nonloc.nn.stage import DiffusiveStage, OriginalStage
from ranks import in_processes


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        DiffusiveStage(8, 3, init="torch"),
        OriginalStage(8, 2, init="torch", bias=True),
        DiffusiveStage(8, 2, init="torch", share_affinity=False, bias=True, affinity="concat"),
        DiffusiveStage(8, 2, init="torch", weight="stable"),
        nn.Conv2d(8, 1, 1),
    ).double()


def batch():
    return torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def work(rank, folder):
    model = nn.parallel.DistributedDataParallel(network())
    model(batch()[2 * rank : 2 * rank + 2]).square().mean().backward()
    save_file(
        {name: parameter.grad for name, parameter in model.module.named_parameters()}, f"{folder}/{rank}"
    )


@pytest.mark.slow
def test_data_parallel_gradients_are_those_of_the_whole_batch(tmp_path):
    in_processes(2, work, tmp_path)
    model = network()
    model(batch()).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for rank in range(2):
        torch.testing.assert_close(load_file(tmp_path / str(rank)), expected)
