"""A stage whose positions are in several processes is the stage of one process."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nonloc.nn import shard
from nonloc.nn.stage import DiffusiveStage, OriginalStage
from ranks import in_processes, in_threads

FRAMES = 5  # of a video [B, C, T, H, W], more of them in the last process
STAGES = {
    "shared affinity": lambda: DiffusiveStage(4, 3, init="torch"),
    "bias, an affinity for each": lambda: DiffusiveStage(
        4, 2, init="torch", share_affinity=False, bias=True, affinity="heat"
    ),
    "original, sub-sampled": lambda: OriginalStage(4, 2, init="torch", affinity="dot", subsample=2),
    "stable": lambda: DiffusiveStage(4, 2, init="torch", weight="stable", affinity="concat", normalize="row"),
}


def video():
    return torch.randn(2, 4, FRAMES, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def make(name):
    torch.manual_seed(0)
    return STAGES[name]().double()


def look(stage, x):
    """The output, the gradient with respect to x, and those of the parameters."""
    x = x.clone().requires_grad_()
    y = stage(x)
    y.pow(3).sum().backward()
    return y.detach(), x.grad, [parameter.grad for parameter in stage.parameters()]


def part(rank, ranks):
    """This process's frames."""
    return video()[:, :, FRAMES * rank // ranks : FRAMES * (rank + 1) // ranks]


def compare(name, pieces):
    """Compare what the processes have found with one process that has the whole video."""
    outs, inputs, parameters = zip(*pieces, strict=True)
    found = torch.cat(outs, 2), torch.cat(inputs, 2), [sum(one) for one in zip(*parameters, strict=True)]
    torch.testing.assert_close(found, look(make(name), video()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STAGES)
def test_values_and_gradients_are_those_of_one_process(name, ranks):
    # Made here: the generator of new weights belongs to all threads.
    stages = [make(name) for _ in range(ranks)]
    compare(name, in_threads(ranks, lambda rank, group: look(shard(stages[rank], group), part(rank, ranks))))


def work(rank, ranks, folder):
    for name in STAGES:
        out, gradient, gradients = look(shard(make(name)), part(rank, ranks))
        save_file(
            {"out": out, "in": gradient} | {str(number): one for number, one in enumerate(gradients)},
            f"{folder}/{name} {rank}",
        )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_do_what_threads_do(ranks, tmp_path):
    in_processes(ranks, work, ranks, tmp_path)
    for name in STAGES:
        files = [load_file(tmp_path / f"{name} {rank}") for rank in range(ranks)]
        compare(
            name,
            [(one.pop("out"), one.pop("in"), [one[key] for key in sorted(one, key=int)]) for one in files],
        )


@pytest.mark.slow
def test_a_million_positions_in_four_parts():
    """Volumes: 4 × 64 × 64 × 64 voxels, with a kernel that is linear in time, too."""
    torch.manual_seed(0)
    stage = OriginalStage(4, 1, affinity="dot", init="torch")
    volume = torch.randn(1, 4, 256, 64, 64)
    whole = stage(volume).detach()
    copies = [copy.deepcopy(stage) for _ in range(4)]

    def work(rank, group):
        x = volume[:, :, 64 * rank : 64 * (rank + 1)]
        return shard(copies[rank], group)(x).detach()

    assert volume[0, 0].numel() >= 10**6
    torch.testing.assert_close(torch.cat(in_threads(4, work), 2), whole)


def test_what_would_differ_is_refused():
    with pytest.raises(ValueError, match="convert_sync_batchnorm"):
        shard(nn.Sequential(DiffusiveStage(4, 1, batch_norm=True)))
    with pytest.raises(ValueError, match="Linear has no nonlocal module"):
        shard(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="init_process_group"):
        shard(DiffusiveStage(4, 1))(torch.rand(1, 4, 3))
