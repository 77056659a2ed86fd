"""Batch norm over several processes is the batch norm of the whole batch."""

import copy

import pytest
import torch
from torch import nn

from nonloc_paper.training.ranks import Ranks
from nonloc_paper.training.shared_norm import share_norms
from ranks import in_threads


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_outputs_gradients_and_statistics_are_those_of_the_whole_batch(kind, affine):
    torch.manual_seed(0)
    dims = {nn.BatchNorm1d: (), nn.BatchNorm2d: (2, 3), nn.BatchNorm3d: (2, 1, 2)}[kind]
    x, slopes = torch.randn(2, 5, 4, *dims, dtype=torch.float64) + 3
    norm = kind(4, momentum=None if affine else 0.3, affine=affine).double()
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)

    def train(norm, part):
        own = x[part].clone().requires_grad_()
        for _ in range(2):
            y = norm(own)
        (y * slopes[part]).sum().backward()
        gradients = [parameter.grad for parameter in norm.parameters()]
        return y.detach(), own.grad, gradients, list(norm.buffers()), norm.eval()(own.detach())

    def work(rank, group):
        one = share_norms(nn.Sequential(copy.deepcopy(norm)), torch.device("cpu"))
        one[0].group = group
        return train(one, Ranks(rank, 2).part(len(x)))

    parts, whole = in_threads(2, work), train(copy.deepcopy(norm), slice(None))
    y, gradient, gradients, buffers, evaluated = zip(*parts, strict=True)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(torch.cat(y), whole[0], **close)
    torch.testing.assert_close(torch.cat(gradient), whole[1], **close)
    torch.testing.assert_close([sum(pair) for pair in zip(*gradients, strict=True)], whole[2], **close)
    torch.testing.assert_close(buffers[0], whole[3], **close)
    torch.testing.assert_close(buffers[1], whole[3], **close)
    torch.testing.assert_close(torch.cat(evaluated), whole[4], **close)
