"""PreResNet, Restorer and their blocks: against the same written out, with the parameter counts of the literature."""

import pytest
import torch
from torch import nn

from nonloc.nn.stage import stages
from nonloc_paper.networks.build import build
from nonloc_paper.networks.preresnet import PreResNet
from nonloc_paper.networks.residual import Trunk, basic, bottleneck, initialize_convolutions
from nonloc_paper.networks.restorer import Restorer
from nonloc_paper.networks.spec import LAYERS_PER_GROUP


@pytest.fixture
def x():
    return torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))


def residual(block, active):
    """F of a block, after its first activation."""
    y = block.convolutions[0](active)
    for norm, convolution in zip(block.norms[1:], block.convolutions[1:], strict=True):
        y = convolution(torch.relu(norm(y)))
    return y


@pytest.mark.parametrize("block", [bottleneck(4, 3, 4), basic(4, 4), bottleneck(4, 3, 4, is_public=True)])
def test_shortcut_of_an_unchanged_shape_is_the_input(block, x):
    active = torch.relu(block.eval().norms[0](x))
    torch.testing.assert_close(block(x), x + residual(block, active))


@pytest.mark.parametrize(
    ("block", "strides"),
    [
        (bottleneck(4, 3, 8, stride=2), [2, 1, 1]),
        (basic(4, 8, stride=2), [2, 1]),
        (bottleneck(4, 3, 8), [1, 1, 1]),
        (bottleneck(4, 3, 8, stride=2, is_public=True), [1, 2, 1]),
    ],
)
def test_shortcut_of_a_changed_shape_takes_the_activation_or_publicly_the_input(block, strides, x):
    nn.init.normal_(block.eval().norms[0].bias)
    active = torch.relu(block.norms[0](x))
    expected = block.shortcut(x if block.is_public else active) + residual(block, active)
    torch.testing.assert_close(block(x), expected)
    assert [convolution.stride[0] for convolution in block.convolutions] == strides


class Label(nn.Module):
    """Appends its label to a list."""

    def __init__(self, label, out_channels=None):
        super().__init__()
        self.label, self.out_channels = label, out_channels

    def forward(self, labels):
        return [*labels, self.label]


def test_trunk_runs_stages_after_their_blocks_with_their_channels():
    blocks = [Label("first", 4), Label("second", 5), Label("third", 6)]
    assert Trunk(blocks, {3: Label, 1: Label})([]) == ["first", 4, "second", "third", 6]


def test_convolutions_start_with_hes_deviation():
    torch.manual_seed(0)
    convolution = nn.Conv2d(64, 128, 3, bias=False)
    initialize_convolutions(convolution)
    # 73,728 entries: the sample deviation is known to 0.26 %, so 1.5 % is nearly six of its own deviations.
    assert float(convolution.weight.detach().std()) == pytest.approx((2 / (9 * 128)) ** 0.5, rel=0.015)


@pytest.mark.parametrize(
    ("spec", "num_classes", "parameters"),
    [
        ("preresnet20-basic/baseline", 10, 272_282),
        ("preresnet20/baseline", 10, 219_482),
        # Five pairs of 64 × 32 matrices, and θ and φ of the same size.
        ("preresnet20/diffusive-5@2", 10, 219_482 + 12 * 64 * 32),
        ("preresnet29-public/baseline", 10, 312_218),
        ("preresnet56-basic/baseline", 100, 861_428),
        ("preresnet83/baseline", 100, 891_764),
        ("preresnet20-keras/baseline", 10, 568_410),
        ("preresnet56-keras/baseline", 100, 1_680_820),
    ],
)
def test_parameter_counts(spec, num_classes, parameters):
    assert sum(one.numel() for one in build(spec, num_classes).parameters()) == parameters


@pytest.mark.parametrize(
    ("variant", "widths", "channels"),
    [
        ("bottleneck", [16, 32, 64], [64, 128, 256]),
        ("keras", [16, 64, 128], [64, 128, 256]),
        ("public", [16, 32, 64], [64, 128, 256]),
        ("basic", [16, 32, 64], [16, 32, 64]),
    ],
)
def test_features_at_every_place(variant, widths, channels):
    shapes, widths_of_stages = [], []

    class Watch(nn.Module):
        def forward(self, x):
            shapes.append(tuple(x.shape[1:]))
            return x

    def watch(channels):
        widths_of_stages.append(channels)
        return Watch()

    model = PreResNet(2, variant=variant, stages=dict.fromkeys(range(1, 7), watch))
    assert model(torch.zeros(1, 3, 20, 12)).shape == (1, 10)
    assert widths_of_stages == [c for c in channels for _ in range(2)]
    sizes = [(20, 12), (10, 6), (5, 3)]
    assert shapes == [(c, *size) for c, size in zip(channels, sizes, strict=True) for _ in range(2)]
    assert [block.convolutions[0].out_channels for block in model.trunk.blocks[::2]] == widths
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in name
    ]
    assert len(layers) == 2 * LAYERS_PER_GROUP[variant] + 2


def test_backbone_has_the_same_names_with_and_without_stages():
    plain, nonlocal_ = build("preresnet20/baseline"), build("preresnet20/diffusive-2@2,4")
    missing, unexpected = nonlocal_.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert missing
    assert all(name.startswith("trunk.stages.") for name in missing)


def test_networks_are_plain_torch():
    """A reader of PreResNet sees PreResNet: its layers are torch's own, without biases except in the head."""
    model = PreResNet(1)
    leaves = [module for module in model.modules() if not list(module.children())]
    assert {type(module) for module in leaves} == {nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.ModuleDict}
    assert all(module.bias is None for module in leaves if isinstance(module, nn.Conv2d))
    assert model.head.bias is not None


@pytest.mark.parametrize("spec", ["restorer16/baseline", "restorer6/original-2@1,4"])
def test_untrained_restorer_returns_its_input(spec):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 10)
    assert torch.equal(build(spec)(x), x)


def test_place_2_of_a_restorer_is_in_the_middle():
    torch.manual_seed(0)
    model = build("restorer16/diffusive-4@2", init="torch").eval()
    ((name, stage),) = stages(model)
    assert (name, stage.channels, stage.maps[0].rank) == ("trunk.stages.2", 16, 8)
    nn.init.normal_(model.head.weight)
    x = torch.randn(1, 3, 5, 5)
    blocks = model.trunk.blocks
    features = blocks[3](blocks[2](stage(blocks[1](blocks[0](model.stem(x))))))
    torch.testing.assert_close(model(x), x + model.head(torch.relu(model.norm(features))))


def test_every_parameter_of_a_restorer_gets_a_gradient():
    torch.manual_seed(0)
    model = build("restorer8/diffusive-2@2", init="torch")
    nn.init.normal_(model.head.weight)
    model(torch.randn(2, 3, 6, 6)).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PreResNet(1, num_classes=0), "num_classes"),
        (lambda: PreResNet(1, variant="wide"), "variant='wide'"),
        (lambda: PreResNet(0), "blocks_per_group"),
        (lambda: PreResNet(1, stages={4: nn.Identity}), "place 4; .* 1 to 3"),
        (lambda: PreResNet(1, stages={0: nn.Identity}), "place 0"),
        (lambda: Restorer(1), "channels"),
        (lambda: Restorer(4, stages={5: nn.Identity}), "1 to 4"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
