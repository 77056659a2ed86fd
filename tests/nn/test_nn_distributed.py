"""Two processes with half the batch each have the gradients of one process with the whole."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn
from torch.distributed.tensor import distribute_tensor

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


def test_sharded_parameters_are_refused_with_the_fix():
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        stage, mesh = DiffusiveStage(8, 2), distributed.init_device_mesh("cpu", (1,))
        for one in (stage.maps[0].w_g, stage.embeddings[0].theta):
            one.weight = nn.Parameter(distribute_tensor(one.weight.detach(), mesh))
        for ask in (stage.weights, lambda: stage.affinity(torch.ones(1, 8, 3))):
            with pytest.raises(ValueError, match=r"call unshard\(\) first"):
                ask()
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_data_parallel_gradients_are_those_of_the_whole_batch(tmp_path):
    in_processes(2, work, tmp_path)
    model = network()
    model(batch()).square().mean().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for rank in range(2):
        torch.testing.assert_close(load_file(tmp_path / str(rank)), expected)
