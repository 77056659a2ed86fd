"""Restorer: where the stage stands, what an untrained one does, and that it learns."""

import pytest
import torch

from nonloc.nn.stage import stages
from nonloc_paper.networks.build import build
from nonloc_paper.networks.restorer import Restorer


@pytest.mark.parametrize(
    "spec", ["restorer16/baseline", "restorer16/diffusive-4@2", "restorer6/original-2@1,4"]
)
def test_untrained_restorer_returns_its_input(spec):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 10)
    assert torch.equal(build(spec)(x), x)


def test_place_2_is_between_the_pairs_of_blocks():
    torch.manual_seed(0)
    model = build("restorer16/diffusive-4@2", init="torch").eval()
    ((name, stage),) = stages(model)
    assert name == "trunk.stages.2"
    assert (stage.channels, stage.maps[0].rank) == (16, 8)
    torch.nn.init.normal_(model.head.weight)
    x = torch.randn(1, 3, 5, 5)
    blocks = model.trunk.blocks
    features = blocks[3](blocks[2](stage(blocks[1](blocks[0](model.stem(x))))))
    torch.testing.assert_close(model(x), x + model.head(torch.relu(model.norm(features))))


@pytest.mark.parametrize("spec", ["restorer8/baseline", "restorer8/diffusive-2@2"])
def test_learns_to_remove_noise_from_flat_images(spec):
    """The best of a flat image is its mean, which has 64 times less noise; halving the error is a low bar."""
    torch.manual_seed(0)
    model = build(spec, init_std=0.1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    errors = []
    for _ in range(60):
        image = torch.rand(8, 3, 1, 1).expand(-1, -1, 8, 8) * 2 - 1
        error = (model(image + 0.4 * torch.randn(image.shape)) - image).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(float(error.detach()))
    assert sum(errors[-10:]) < 0.5 * sum(errors[:10])


def test_all_parameters_learn_after_the_first_step():
    torch.manual_seed(0)
    model = build("restorer8/diffusive-2@2", init="torch")
    x = torch.randn(2, 3, 6, 6)
    torch.nn.init.normal_(model.head.weight)
    model(x).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="channels must be a whole number ≥ 2"):
        Restorer(1)
    with pytest.raises(ValueError, match="residual blocks go from 1 to 4"):
        Restorer(4, stages={5: lambda channels: torch.nn.Identity()})
